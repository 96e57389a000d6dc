"""Forms of calls, over all templates: derived, read back, constrained."""

import json
import random
import re
from dataclasses import replace
from functools import cache

import jsonschema
import pytest

from localspec.chat.constraints import PromptBuilder
from localspec.chat.request import request_from
from localspec.chat.text import TextStream
from localspec.events import Kind, ToolCall
from localspec.prompt.messages import Message
from localspec.prompt.template import ChatTemplate
from localspec.prompt.tools import read_tools
from localspec.sampler.sampling import Sampling
from localspec.structure.call_grammar import calls_grammar
from localspec.structure.constraint import GrammarTokens
from localspec.structure.derive_format import format_of
from localspec.structure.read_calls import calls_in
from localspec.structure.tool_call_format import GENERIC
from tests.prompt.carried import NO_FORM, TEMPLATES, ready, tiered
from tests.prompt.character_vocabulary import CharacterVocabulary

TEXT = {"type": "string"}
TOOLS = [
    {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": TEXT,
                "days": {"type": "integer"},
                "deep": {"type": "object"},
                "tags": {"type": "array", "items": TEXT},
                "share": {"type": "number"},
                "sure": {"type": "boolean"},
            },
            "required": ["city"],
        },
    },
    {"name": "ping"},
    {"name": "edit-file", "parameters": {"type": "object", "properties": {"path": TEXT, "text": TEXT}}},
]
FUNCTIONS = {tool.name: tool.schema for tool in read_tools(TOOLS)}
STRANGE = 'Hi, "you" \\ {"a": [1]} é 日本 😀'
MARKUP = 'a <b>c</b> </parameter> <tool_call> {"name": "ping"} ]] [TOOL_CALLS] </tool_call>'
CALLS = {
    "one": [("get_weather", {"city": "Oslo", "days": 2})],
    "two": [("get_weather", {"city": "Oslo"}), ("ping", {})],
    "three": [
        ("get_weather", {"city": "Bern", "days": -3}),
        ("get_weather", {"city": "5", "share": 2.5, "sure": True}),
        ("edit-file", {"path": "true", "text": ""}),
    ],
    "nested": [
        ("get_weather", {"city": "O", "deep": {"a": {"b": [1, 2]}, "d": False}, "tags": ["x", "y z"]})
    ],
    "strange": [("get_weather", {"city": STRANGE})],
    "lines": [("edit-file", {"path": "a", "text": "def f(x):\n    return [x < 1]\n\n\tdone"})],
    "markup": [("edit-file", {"path": "p", "text": MARKUP})],
}


@cache
def form_named(name):
    """The format of the calls of a template, derived when a test first needs it: all of them take 8 seconds."""
    return ready(name).tool_call_format


@pytest.mark.parametrize("name", tiered(TEMPLATES))
def test_a_form_is_found_for_every_template_that_writes_calls(name):
    assert (form_named(name) is GENERIC) == (name in NO_FORM)


@pytest.mark.parametrize("name", tiered(TEMPLATES.keys() - NO_FORM))
def test_what_a_template_renders_is_read_back(name):
    template, form = ready(name), form_named(name)
    for given in CALLS.values():
        calls = given[:1] if form.between is None else given
        turns = [ToolCall(*call, f"abcdefgh{n}") for n, call in enumerate(calls)]
        asked = [Message("user", "localspec asks"), Message("assistant", "", tool_calls=tuple(turns))]
        try:
            text = template.render(asked, add_generation_prompt=False).partition("localspec asks")[2]
        except Exception:  # noqa: BLE001  a template that refuses the call as it is given
            text = ""
        written = form.written(calls)
        later = f"I look.\n{written}"
        for whole in (text, later) if calls[-1][0] in text else (written,):
            read, rest = calls_in(whole, form, FUNCTIONS)
            assert [(call.name, call.arguments) for call in read] == list(calls)
            assert calls[0][0] not in rest


@pytest.mark.parametrize("name", tiered(TEMPLATES.keys() - NO_FORM))
def test_a_grammar_accepts_what_its_form_writes_and_nothing_wrong(name):
    """Twelve random changes of each form."""
    form = form_named(name)
    matcher = GrammarTokens(ByteVocabulary()).matcher(
        calls_grammar(form, FUNCTIONS, choice="required", names={})
    )

    def accepted(text):
        matcher.reset()
        raw = list(text.encode())
        return matcher.try_consume_tokens(raw) == len(raw) and matcher.is_accepting()

    texts = [form.written(given[:1] if form.between is None else given) for given in CALLS.values()]
    for text in texts:
        # A grammar ends a text where its mark stands first; the reader looks at what follows.
        assert accepted(text) or (form.arg_close and form.arg_close in MARKUP and MARKUP in text), text
    rnd = random.Random(form.open)
    for _ in range(12):
        changed = change(rnd.choice(texts), rnd)
        if accepted(changed) and changed not in texts:
            calls, rest = calls_in(changed, form, FUNCTIONS)
            assert calls, changed
            assert not rest.strip(), changed
            for call in calls:
                jsonschema.validate(call.arguments, FUNCTIONS[call.name])


def change(text, rnd):
    at = rnd.randrange(len(text))
    match rnd.randrange(4):
        case 0:
            return text[:at] + text[at + 1 :]
        case 1:
            return text[:at] + rnd.choice('{}[]"<>/,:x1\n ') + text[at:]
        case 2:
            return text.replace(rnd.choice(list(FUNCTIONS)), "get_wether")
    return text.replace(rnd.choice(["2", "-3", "2.5", "true"]), rnd.choice(['"x"', "x", "[]"]))


class ByteVocabulary:
    """A vocabulary of bytes, an end, and control tokens."""

    bos, eos, add_bos = None, 256, False

    def __init__(self, controls=()):
        self.texts = ["<end>", *controls]
        self.size = 256 + len(self.texts)

    def tokenize(self, text, *, parse_special, add_special=False):
        parts = re.split(f"({'|'.join(map(re.escape, self.texts))})", text) if parse_special else [text]
        return [
            t
            for part in parts
            for t in ([self.special_tokens()[part]] if part in self.texts else part.encode())
        ]

    def piece(self, token):
        return bytes([token]) if token < 256 else b""

    def text(self, token):
        return chr(token) if token < 256 else self.texts[token - 256]

    def is_end(self, token):
        return token == 256

    def is_special(self, token):
        return token >= 256

    def special_tokens(self):
        return {text: 256 + n for n, text in enumerate(self.texts)}


def test_a_form_that_does_not_read_back_what_the_template_writes_is_none():
    def render(answer, calls):
        words = [json.dumps({"name": call.name, "arguments": {"a": 1}}) for call in calls]
        return f"[{answer}{''.join(words)}]"

    assert format_of("", render) is None


def test_a_template_that_refuses_what_it_is_asked_has_the_generic_form():
    refusing = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}<f={{ c.function.name }}>"
        "{% for k, v in c.function.arguments.items() %}{% if v is number %}{{ raise_exception('no numbers') }}"
        "{% endif %}<p={{ k }}>{{ v }}</p>{% endfor %}</f>{% endfor %}{% endfor %}"
    )
    assert ChatTemplate(refusing, bos_text="", eos_text="").tool_call_format is GENERIC


HARMONY = "openai-gpt-oss-120b"
REPLIES = {
    HARMONY: [
        (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.ping "
            "<|constrain|>json<|message|>{}",
            "Hm.", "", ["ping"],
        ),
        (" to=functions.ping<|channel|>commentary json<|message|>{}", "", "", ["ping"]),
        (
            "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.ping<|channel|>commentary "
            "json<|message|>{}",
            "", "I look.", ["ping"],
        ),
        ("<|channel|>final<|message|>Cold.", "", "Cold.", []),
    ],
    "muse-glimmer": [
        (
            ' to=self<|message|>Hm.<|eom|><|start|>assistant to=ping<|message|><atem:function_calls>\n<atem:invoke '
            'name="ping">\n</atem:invoke>\n</atem:function_calls>',
            "Hm.", "", ["ping"],
        ),
        (" to=user<|message|>Cold, to=ping.", "", "Cold, to=ping.", []),
    ],
    "google-gemma-4-31B-it": [
        ("<|channel>thought\nHm.<channel|><|tool_call>call:ping{}<tool_call|>", "Hm.", "", ["ping"]),
        ("<|tool_call>call:get_weather{city:<|\"|>a, \"b\"}<|\"|>,days:3}<tool_call|>", "", "", ["get_weather"]),
    ],
    "Qwen3.5-4B": [
        (
            "<think>\nping?\n</think>\n\n<tool_call>\n<function=ping>\n</function>\n</tool_call>",
            "ping?\n", "", ["ping"],
        ),
        (
            "<think>\n<tool_call>\n<function=ping>\n</function>\n</tool_call>?\n</think>\n\nNo.",
            "<tool_call>\n<function=ping>\n</function>\n</tool_call>?\n", "No.", [],
        ),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", REPLIES)
def test_calls_are_separated_from_reasoning_and_answer(name):
    template, form = ready(name), form_named(name)
    harmony = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>", "<|eom|>")
    gemma = ("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>")
    vocabulary = CharacterVocabulary(("<s>", "</s>", *harmony, *gemma))
    for text, reasoning, answer, names in REPLIES[name]:
        stream = TextStream(vocabulary, template.thinking_style(""), (), calls=form, functions=FUNCTIONS)
        parts = [part for t in vocabulary.tokenize(text, parse_special=True) for part in stream.push(t)]
        parts += stream.flush()
        words = {kind: "".join(part.text for part in parts if part.kind is kind) for kind in Kind}
        assert (words[Kind.REASONING], words[Kind.ANSWER]) == (reasoning, answer)
        assert [call.name for call in stream.calls] == names
        assert words[Kind.TOOL_CALL] == "".join(json.dumps(call.arguments) for call in stream.calls)


@pytest.mark.parametrize("name", tiered(TEMPLATES.keys() - NO_FORM))
@pytest.mark.parametrize(
    ("behind", "cut", "called"), [("", False, True), (" Or not?", False, False), ("", True, False)]
)
def test_a_call_that_ends_a_reply_within_its_reasoning_is_a_call(name, behind, cut, called):
    form, style = form_named(name), ready(name).thinking_style("")
    if not form.tag or style is None or style.channels or Kind.REASONING not in style.markers.values():
        return  # the reasoning has channels, or none is known
    vocabulary = CharacterVocabulary(("<s>", "</s>"))
    opening = next(mark for mark, kind in style.markers.items() if kind is Kind.REASONING)
    call = form.written([("get_weather", {"city": "Oslo"})]) + behind
    stream = TextStream(vocabulary, style, (), calls=form, functions=FUNCTIONS)
    text = vocabulary.tokenize(f"{opening}I need it.\n{call}", parse_special=True)
    parts = [part for token in text for part in stream.push(token)] + stream.flush(cut=cut)
    thought = "".join(part.text for part in parts if part.kind is Kind.REASONING)
    assert [call.name for call in stream.calls] == ["get_weather"] * called
    assert thought == ("I need it.\n" if called else f"I need it.\n{call}")
    assert not any(part.text for part in parts if part.kind is Kind.ANSWER)


def test_a_grammar_lets_a_reply_end_behind_a_call_within_its_reasoning():
    vocabulary, template = ByteVocabulary(), ready("Qwen3.5-4B")
    style = replace(template.thinking_style(""), opened=True)
    builder, request = PromptBuilder(vocabulary, template), request_from({"tools": TOOLS}, Sampling())
    call = form_named("Qwen3.5-4B").written([("get_weather", {"city": "Oslo"})])
    for text, ends in ((f"Hm.\n{call}", True), ("Hm.\n", False), (f"Hm.\n{call}\nNo.", False)):
        tokens = vocabulary.tokenize(text, parse_special=True)
        constraint = builder.constraint(request, style, 0)
        assert constraint.valid([], tokens) == len(tokens)
        assert bool(constraint.valid(tokens, [vocabulary.eos])) == ends


@pytest.mark.parametrize(
    "text", ["<|tool_call>call:ping{}<tool_call|>", "<channel|> ends <|channel>thought\n"]
)
def test_control_tokens_that_are_spelled_are_an_answer(text):
    name = "google-gemma-4-31B-it"
    controls = ("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>")
    vocabulary = CharacterVocabulary(("<s>", "</s>", *controls))
    style = ready(name).thinking_style("")
    stream = TextStream(vocabulary, style, (), calls=form_named(name), functions=FUNCTIONS)
    parts = [part for token in vocabulary.tokenize(text, parse_special=False) for part in stream.push(token)]
    assert "".join(part.text for part in parts + stream.flush()) == text
    assert stream.calls == []
