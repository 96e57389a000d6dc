"""A reasoning that has spent its budget is closed in the model's own form, and the answer follows."""

import re
from dataclasses import replace

import numpy as np
import pytest

from localspec.algorithm.protocols import Strategy
from localspec.chat.constraints import PromptBuilder
from localspec.chat.request import Request, request_from
from localspec.chat.session import Session
from localspec.chat.text import TextStream
from localspec.chat.thinking_budget import ThinkingBudget
from localspec.errors import BadSetting
from localspec.prompt.messages import Message
from localspec.prompt.template import ChatTemplate
from localspec.prompt.thinking import STYLES, THINK, A, R, ThinkingStyle, thinking_variables
from localspec.sampler.chain import Chain
from localspec.sampler.passes import Candidates
from localspec.sampler.sampling import Sampling
from localspec.structure.forcing import Forcing
from tests.algorithm.enumeration import distance, distribution_of
from tests.algorithm.random_pairs import (
    OPEN,
    PROMPT,
    RULES,
    World,
    mixed_drafter,
    text_of,
)
from tests.exact_engine import ExactContext, engine_of
from tests.prompt.carried import TEMPLATES
from tests.prompt.character_vocabulary import CharacterVocabulary, byte_tokens
from tests.structure.characters import SYMBOLS, Characters, scripted_session

THINKING = [style for style in STYLES if R in style.markers.values()]
REASONING = "so2+2isfour,or" * 3
TILDE = SYMBOLS.index("~")
SPECIAL = re.compile(r"<[^<>]+>|\[/?THINK\]")


class Marked(Characters):
    """Characters, and special tokens."""

    def __init__(self, special=()):
        super().__init__()
        self.special = {text: Characters.size + i for i, text in enumerate(special)}
        self.names = {token: text for text, token in self.special.items()}
        self.size = Characters.size + len(special)

    def tokenize(self, text, *, parse_special, add_special=False):
        found = "|".join(map(re.escape, self.special)) if parse_special and self.special else "(?!)"
        parts = re.split(f"({found})", text)
        plain = super().tokenize
        tokens = [[self.special[p]] if p in self.special else plain(p, parse_special=False) for p in parts]
        return [token for part in tokens for token in part]

    def piece(self, token):
        return b"" if token in self.names else super().piece(token)

    def text(self, token):
        return self.names.get(token) or super().text(token)

    def is_special(self, token):
        return token in self.names or super().is_special(token)

    def special_tokens(self):
        return super().special_tokens() | self.special


class Thinker(ExactContext):
    """Reasons until its reasoning is closed, by itself or by a budget, completes the closing text, and answers."""

    def __init__(self, vocabulary, opening, ending, answer, *, slips=0):
        """`slips`: every so many tokens it wants something else."""
        super().__init__(1, vocabulary=vocabulary.size)
        texts = opening + REASONING, ending + answer
        self.reasoning, self.tail = (vocabulary.tokenize(text, parse_special=True) for text in texts)
        self.tail.append(0)
        self.slips = slips

    def wanted(self):
        reply = self.cache[len(self.cache) - [*self.cache[::-1], TILDE].index(TILDE) :]
        whole = self.reasoning + self.tail
        if reply == whole[: len(reply)]:
            return whole[len(reply)] if len(reply) < len(whole) else 0
        n = next((n for n in range(len(self.tail) - 1, 0, -1) if reply[-n:] == self.tail[:n]), 0)
        return self.tail[n] if n or len(reply) >= len(self.reasoning) else self.reasoning[len(reply)]

    def row(self):
        row, slipped = super().row(), self.slips and len(self.cache) % self.slips == 0
        row[5 if slipped else self.wanted()] += 100
        return row


def texts_of(style):
    """The opening of a style, the text from its reasoning to the answer, and the part of it that a first cut writes."""
    opening, closing = (next(m for m, kind in style.markers.items() if kind is wanted) for wanted in (R, A))
    ending = style.ending or closing
    return opening, ending, "<|end|>" if style.name == "harmony" else ending


def session_of(style, *, opened=False, special=True, answer="Four", draft=False, ending=None):
    opening, usual, _ = texts_of(style)
    ending = usual if ending is None else ending
    marks = SPECIAL.findall("".join(style.markers) + ending)
    vocabulary = Marked(dict.fromkeys(marks) if special else ())
    thoughts = f"{{% if m.reasoning %}}{opening}{{{{ m.reasoning }}}}{ending}{{% endif %}}"
    turns = f"{{% for m in messages %}}{thoughts}{{{{ m.content }}}}~{{% endfor %}}"
    template = f"{{# {' '.join(style.signs)} #}}{turns}{opening * opened}{{{{ '' }}}}"
    target = Thinker(vocabulary, opening, ending, answer)
    drafted = Thinker(vocabulary, opening, ending, answer, slips=5) if draft else None
    return Session(engine_of(vocabulary, template, target, drafted)), vocabulary


def run(session, budget=True, **options):
    return session.run("2+2?", think=budget, temperature=0, **options)


@pytest.mark.parametrize("style", THINKING, ids=lambda style: style.name)
@pytest.mark.parametrize(
    ("special", "opened"), [(True, True), (False, False)], ids=["special opened", "textual unopened"]
)
def test_the_text_is_the_beginning_of_the_unlimited_one_the_closing_text_and_an_answer(
    style, special, opened
):
    opening, ending, _ = texts_of(style)
    for draft, message in ((False, ""), (True, "Time is up.")):
        session, vocabulary = session_of(style, opened=opened, special=special, draft=draft)
        unlimited = run(session)
        assert (unlimited.reasoning.strip(), unlimited.text) == (REASONING, "Four")
        assert run(session, 1000).tokens == unlimited.tokens
        begin = 0 if opened else len(vocabulary.tokenize(opening, parse_special=True))
        tail = (*vocabulary.tokenize(message + ending + "Four", parse_special=True), 0)
        for budget in (0, 1, 16):
            reply = run(session, budget, think_message=message)
            assert reply.tokens == (*unlimited.tokens[: begin + budget], *tail)
            assert (reply.reasoning.strip(), reply.text) == (REASONING[:budget] + message, "Four")
            assert reply.stats.thinking_cut > unlimited.stats.thinking_cut


def test_the_closing_text_is_drafted_as_forced_tokens():
    reply = run(session_of(THINK, opened=True, special=False)[0], 0, think_message="Stop!")
    assert reply.stats.from_grammar == len("Stop!\n</think>\n\n")
    assert reply.stats.cycles < 10


# The text between reasoning and answer in the template of a model, and the part of it that a first cut writes.
ENDINGS = {
    "Qwen-Qwen3-0.6B": ("\n</think>\n\n", 0),
    "GLM-4.6": ("</think>\n", 0),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": ("\n</think>\n\n", 0),  # the template drops reasoning
    "Kimi-K3": ("<|close|>think<|sep|><|open|>response<|sep|>", 21),
    "upstage-Solar-Open-100B": ("<|end|><|begin|>assistant<|content|>", 7),
    "muse-glimmer": ("<|eom|><|start|>assistant to=user<|message|>", 7),
    "openai-gpt-oss-120b": ("<|end|><|start|>assistant<|channel|>final<|message|>", 7),
    "Cohere2MoE": ("<|END_THINKING|><|START_TEXT|>", 16),
    "google-gemma-4-31B-it": ("<channel|>", 0),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_the_closing_text_is_that_of_the_models_template(name):
    template, (ending, first) = ChatTemplate(TEMPLATES[name], bos_text="", eos_text=""), ENDINGS[name]
    assert template.thinking_ending == ending
    style = replace(template.thinking_style(""), opened=True)
    budget, vocabulary = budget_of(style, 2, ending=ending, special=SPECIAL.findall(ending))
    assert text_from(vocabulary, budget.forced(tokens_of(vocabulary, "ab"))) == ending[: first or None]
    again = "ab" + ending[: first or None] + texts_of(style)[0]
    assert text_from(vocabulary, budget.forced(tokens_of(vocabulary, again))) == ending


def budget_of(style, budget, *, ending=None, special=(), message="", inner=None):
    vocabulary = CharacterVocabulary(["<s>", "</s>", *dict.fromkeys(special)])
    request = Request(Sampling(), think=budget, think_message=message)
    text = TextStream(vocabulary, style, ())
    return ThinkingBudget(
        inner, request, text, texts_of(style)[1] if ending is None else ending, 0
    ), vocabulary


def tokens_of(vocabulary, text):
    return text if isinstance(text, list) else vocabulary.tokenize(text, parse_special=True)


def text_from(vocabulary, tokens):
    return "".join(map(vocabulary.text, tokens))


OPENED = replace(THINK, opened=True)
HARMONY = STYLES[0]
REOPENED = "<|start|>assistant<|channel|>analysis<|message|>"


@pytest.mark.parametrize(
    ("style", "special", "written", "due"),
    [
        (OPENED, False, "abc</th", "ink>"),  # a marker under way
        (OPENED, False, "abc<", "/think>"),
        (OPENED, False, "ab<c", "Stop!\n</think>\n\n"),
        (
            OPENED,
            True,
            "abc<",
            "Stop!\n</think>\n\n",
        ),  # letters are no marker where markers are special tokens
        (OPENED, True, "a</think>bcdef", ""),
        (OPENED, True, "a</think>b<think>cdefg", ""),  # an answer may quote a marker
        (THINK, False, "<think>a", ""),
        (THINK, False, "<think>abcd", "Stop!\n</think>\n\n"),
        (OPENED, False, byte_tokens("ab🧠".encode())[:3], ""),  # a character under way
        (OPENED, False, byte_tokens("ab🧠".encode())[:5], ""),
        (OPENED, False, byte_tokens("ab🧠".encode()), "Stop!\n</think>\n\n"),
        (HARMONY, True, "<|channel|>analysis<|message|>abc", ""),
        (HARMONY, True, "<|channel|>analysis<|message|>abcd", "Stop!<|end|>"),
        (HARMONY, True, f"<|channel|>analysis<|message|>ab<|end|>{REOPENED}c", ""),
        (HARMONY, True, f"<|channel|>analysis<|message|>ab<|end|>{REOPENED}cd", "Stop!<|end|>"),
        (HARMONY, True, f"<|channel|>analysis<|message|>abcdStop!<|end|>{REOPENED}", HARMONY.ending),
        (HARMONY, True, "<|channel|>analysis<|message|>abc<|start|>assi", "stant"),
        (HARMONY, True, "<|channel|>analysis<|message|>abc<|channel|>commentary to=now", ""),
    ],
)
def test_what_is_due_after_a_reply(style, special, written, due):
    names = SPECIAL.findall("".join(style.markers)) if special else ()
    budget, vocabulary = budget_of(style, 4, special=names, message="Stop!")
    assert text_from(vocabulary, budget.forced(tokens_of(vocabulary, written))) == due


def test_a_state_depends_on_the_text_alone():
    """Whatever was asked before: longer texts, other ones, or the same ones token by token."""
    budget, vocabulary = budget_of(OPENED, 4, message="Stop!")
    texts = [tokens_of(vocabulary, text) for text in ("abcdStop!\n</think>", "abc</think>x", "ab", "abcdSt")]
    for text in texts * 2:
        for size in [len(text), *range(len(text) + 1)]:
            fresh, _ = budget_of(OPENED, 4, message="Stop!")
            assert budget.forced(text[:size]) == fresh.forced(text[:size])
    budget.settle(texts[3])
    assert text_from(vocabulary, budget.forced(texts[3])) == "op!\n</think>\n\n"
    assert budget.times_ended == 0
    budget.settle(tokens_of(vocabulary, "abcdStop!\n</think>\n\n"))
    assert budget.times_ended == 1


def test_a_draft_is_cut_where_it_leaves_the_closing_text():
    budget, vocabulary = budget_of(OPENED, 2)
    begin = tokens_of(vocabulary, "a")
    for draft, kept in (("bcd", 1), ("b\n</thin!", 8), ("b\n</think>\n\nFour", 16), ("</think>", 8)):
        assert budget.valid(begin, tokens_of(vocabulary, draft)) == kept


def test_neither_bias_nor_penalty_moves_a_forced_token():
    budget, _ = budget_of(OPENED, 0)
    for temperature in (0.0, 0.8):
        sampling = Sampling(temperature, logit_bias=((ord("\n"), -np.inf),), presence_penalty=1.0)
        for row in (np.ones(20, np.float32), Candidates(np.array([7, 9]), np.ones(2, np.float32))):
            chain = Chain(sampling, budget)
            assert chain.best(row, []) == chain.likeliest(row, [])[0] == ord("\n")
            assert chain.distribution(row, []).of(ord("\n")) == 1.0


def test_a_budget_without_a_grammar_needs_no_whole_rows():
    budget, vocabulary = budget_of(OPENED, 0)
    row = Candidates(np.arange(50), np.arange(50, dtype=np.float32), whole=lambda: pytest.fail("it was read"))
    for text, ids in ("", [ord("\n")]), ("\n</think>\n\n", list(range(48, 50))):
        sampling = Sampling(0.8, top_k=2, top_p=1.0, min_p=0.0)
        assert Chain(sampling, budget).distribution(row, tokens_of(vocabulary, text)).ids.tolist() == ids


class Digits(Characters):
    symbols, size, unknown = "0123", 4, 0


class Inner(Strategy):
    def __init__(self, propose, rule):
        self._propose, self._rule = propose, rule

    def propose(self, tokens, room):
        return self._propose(self._rule, tokens, room)


DIGITS = ThinkingStyle("digits", (), {"1": R, "2": A}, opened=True, ending="2")


def due_in(text):
    """Whether a text over 0, 1, 2, 3, which begins in reasoning, must close it: 1 opens it, and 2 closes it."""
    inside, spent = True, 0
    for token in text:
        spent += inside and token != 2
        inside = token == 1 or (inside and token != 2)
    return inside and spent >= 1


def distribution_with_budget(world, sampling, length):
    found, chain = {(): 1.0}, Chain(sampling)
    for _ in range(length):
        before, found = found, {}
        for text, probability in before.items():
            if due_in(text):
                found[*text, 2] = probability
                continue
            p = chain.distribution(world.target((*PROMPT, *text)), (*PROMPT, *text))
            for token, share in zip(p.ids.tolist(), p.probabilities.tolist(), strict=True):
                found[*text, token] = probability * share
    return found


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("forces", [True, False])
@pytest.mark.parametrize("pattern", ["qq", "03", "q0", "2q"])
def test_before_and_after_the_border_the_distribution_is_the_targets(rule, forces, pattern):
    sampling = replace(OPEN, top_k=2, presence_penalty=0.4)
    for seed in (3, 4):
        world = World(seed, symbols=4)
        drafted = mixed_drafter(world, pattern)

        def reply(noise, world=world, drafted=drafted):
            request = Request(sampling, think=1)
            budget = ThinkingBudget(None, request, TextStream(Digits(), DIGITS, ()), "2", len(PROMPT))
            made = RULES[rule](Chain(sampling, budget), noise)
            forcing = Forcing(Inner(drafted, made), budget, 3 if forces else 0)
            return text_of(world, made, lambda _, text, room: forcing.propose(text, room), 3)

        assert distance(distribution_of(reply), distribution_with_budget(world, sampling, 3)) < 1e-7


PERSON = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


@pytest.mark.process
@pytest.mark.parametrize("style", THINKING, ids=lambda style: style.name)
def test_a_schema_and_a_call_follow_the_closing_text_of_every_style(style):
    templates = (ChatTemplate(TEMPLATES[name], bos_text="", eos_text="") for name in ENDINGS)
    endings = {each.thinking_ending for each in templates if each.thinking_style("").name == style.name}
    for ending in endings or {None}:
        schema, _ = session_of(style, opened=True, answer='{"age":7}', ending=ending)
        reply = run(schema, 3, json_schema=PERSON, think_message="Stop!")
        assert (reply.reasoning.strip(), reply.text, reply.unmatched) == ("so2Stop!", '{"age":7}', "")
        assert schema.run("2+2?", think=3, json_schema=PERSON, max_tokens=8, temperature=0).unmatched
        calls, _ = session_of(style, answer=CALL, ending=ending)
        reply = run(calls, 3, tools=[{"name": "now"}], tool_choice="required")
        assert (reply.reasoning.strip(), [call.name for call in reply.tool_calls]) == ("so2", ["now"])


def test_a_reply_that_ends_before_its_budget_says_nothing_of_it():
    session, _ = session_of(THINK)
    assert not run(session, 16, max_tokens=16).stats.thinking_cut
    assert run(session, 16, max_tokens=40).stats.thinking_cut


def test_a_model_that_does_not_reason_replies_as_without_a_budget():
    session = scripted_session("<think>Four", "{{ messages[0].content }}|")
    assert run(session, 0).text == run(session).text == "<think>Four"


def test_a_bool_is_no_number():
    for think in (True, False, 0, 1, 16):
        assert repr(request_from({"think": think}, Sampling()).think) == repr(think)
    for wrong in (-1, 1.5, "many"):
        with pytest.raises(BadSetting, match="true, false or a whole number"):
            request_from({"think": wrong}, Sampling())


def test_a_template_gets_the_budget_that_it_has_a_variable_for():
    names = {"thinking_budget", "enable_thinking"}
    for think, on, budget in ((16, True, 16), (0, True, 0), (False, False, 0)):
        assert thinking_variables(think, names, set()) == {"enable_thinking": on, "thinking_budget": budget}
    assert thinking_variables(True, names, set()) == {"enable_thinking": True}


OFF = "enable_thinking is defined and not enable_thinking"
SWITCH = "{% if " + OFF + " %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"


@pytest.mark.parametrize(
    ("options", "written", "valid"),
    [
        ({"think": 3}, "no</think>\n\ntrue", None),
        ({"think": 3}, "no</think>\n\n<think>no</think>true", 12),
        ({"think": False}, "true", None),
        ({"think": False}, "<think>no</think>true", 0),
        ({"template_arguments": {"enable_thinking": False}}, "true", None),
        ({"template_arguments": {"enable_thinking": False}}, "<think>no</think>true", 0),
    ],
)
def test_reasoning_that_ended_does_not_begin_again_before_a_schema(options, written, valid):
    vocabulary, template = Characters(), ChatTemplate(SWITCH, bos_text="", eos_text="")
    builder = PromptBuilder(vocabulary, template)
    request = request_from({"json_schema": {"type": "boolean"}, **options}, Sampling(), vocabulary.tokenize)
    prompt = builder.encode(replace(request, messages=(Message("user", "2+2?"),)))
    constraint = builder.constraint(request, template.thinking_style(prompt.text), 0)
    tokens = vocabulary.tokenize(written, parse_special=False)
    assert constraint.valid([], tokens) == (len(tokens) if valid is None else valid)
