import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.text import Thinking
from localspec.events import Kind
from localspec.prompt.messages import Message
from localspec.prompt.template import CHATML, ChatTemplate, template_of
from localspec.prompt.thinking import STYLES, THINK, after_prompt, style_of
from tests.prompt.carried import TEMPLATES
from tests.prompt.character_vocabulary import CharacterVocabulary

R, A = Kind.REASONING, Kind.ANSWER
HARMONY = style_of("<|channel|>analysis")


def split(style, *pieces):
    """The parts of a reply, neighbours of one kind joined."""
    thinking = Thinking(style)
    parts = [part for piece in pieces for part in thinking.push(piece)] + thinking.flush()
    groups = itertools.groupby(parts, key=lambda part: part[0])
    return [(kind, "".join(text for _, text in group)) for kind, group in groups]


def opened(style):
    return after_prompt(style, next(iter(style.markers)))


@pytest.mark.parametrize(
    "style", [s for s in STYLES if R in s.markers.values()], ids=lambda style: style.name
)
def test_every_style_tells_reasoning_from_the_answer(style):
    opening = next(iter(style.markers))
    closing = next(marker for marker, kind in style.markers.items() if kind is A)
    reply = f"{opening}\n2+2 is <4>\n{closing}\n\nFour < five"
    for pieces in ([reply], list(reply)):
        assert split(style, *pieces) == [(R, "2+2 is <4>\n"), (A, "Four < five")]
    rest = reply.removeprefix(opening)
    assert split(opened(style), *rest) == [(R, "2+2 is <4>\n"), (A, "Four < five")]


@pytest.mark.parametrize(
    ("header", "kind"),
    [
        ("<|channel|>final <|constrain|>json<|message|>", A),
        ("<|channel|>final<|constrain|>json<|message|>", A),
        ("<|channel|> final json<|message|>", A),
        ("<|channel|>commentary to=functions.weather <|constrain|>json<|message|>", Kind.TOOL_CALL),
        (" to=functions.weather<|channel|>commentary json<|message|>", Kind.TOOL_CALL),
    ],
)
def test_a_channels_header_does_not_show_and_says_whether_a_function_is_called(header, kind):
    reply = f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{header}" + '{"city": "Bern"}'
    for pieces in ([reply], list(reply), [*reply.partition(">final")]):
        assert split(HARMONY, *pieces) == [(R, "Hm."), (kind, '{"city": "Bern"}')]


def test_a_header_that_never_ends_is_text():
    assert split(HARMONY, *("<|channel|>" + "x" * 300))[0][1].endswith("x" * 200)


OPENED = opened(THINK)


@pytest.mark.parametrize(
    ("style", "pieces", "parts"),
    [
        (THINK, ["Four"], [(A, "Four")]),
        (THINK, [" \n Four"], [(A, " \n Four")]),
        (HARMONY, ["<|channel|>final<|message|>Four"], [(A, "Four")]),
        (THINK, ["<think>", "so", " </thin"], [(R, "so </thin")]),  # never closed
        (OPENED, ["so"], [(R, "so")]),
        (THINK, ["<think>x</think>", "Use <think>, </think>."], [(R, "x"), (A, "Use <think>, </think>.")]),
        (THINK, ["Use <think> tags"], [(A, "Use <think> tags")]),
        (THINK, ["<think>a <think> b</think>c"], [(R, "a <think> b"), (A, "c")]),  # quoted in reasoning
        (OPENED, ["<think>\n", "a</think>", "</think>\n", "b"], [(R, "a"), (A, "b")]),  # repeated tags
        (THINK, ["<think>\n\n</think>\n\nFour"], [(A, "Four")]),
        (THINK, ["<think>\n", " "], []),
        (OPENED, ["a `</think>`", " b\n</think>c"], [(R, "a `</think>` b\n"), (A, "c")]),  # quoted
        (OPENED, ['the "</think>', '" b</think>c'], [(R, 'the "</think>" b'), (A, "c")]),
        (OPENED, ['say "yes"</think>"Yes"'], [(R, 'say "yes"'), (A, '"Yes"')]),  # behind what is quoted
        (OPENED, ["a `b</think>c`"], [(R, "a `b"), (A, "c`")]),
    ],
)
def test_markers_split_a_reply_and_quoted_ones_do_not(style, pieces, parts):
    assert split(style, *pieces) == parts


@given(
    st.text(alphabet="<think>/ \nab`", max_size=40), st.lists(st.integers(0, 40), max_size=8), st.booleans()
)
def test_how_a_reply_is_cut_into_pieces_does_not_matter(reply, cuts, inside):
    style = OPENED if inside else THINK
    edges = [0, *sorted(min(cut, len(reply)) for cut in cuts), len(reply)]
    assert split(style, *(reply[a:b] for a, b in itertools.pairwise(edges))) == split(style, reply)


@given(st.text(alphabet="<|>endmsag a", max_size=40))
def test_text_without_markers_comes_out_whole(reply):
    if not any(marker in reply for marker in HARMONY.markers):
        assert "".join(text for _, text in split(HARMONY, *reply)) == reply


@pytest.mark.parametrize(
    ("name", "think", "inside"),
    [
        ("Qwen-Qwen3-0.6B", True, False),
        ("Qwen-Qwen3-0.6B", False, False),
        ("Qwen3.5-4B", True, True),
        ("Qwen3.5-4B", False, False),
        ("deepseek-ai-DeepSeek-V3.1", True, True),
        ("deepseek-ai-DeepSeek-V3.1", False, False),
        ("llama-cpp-deepseek-r1", None, True),
        ("Kimi-K3", True, True),
        ("Kimi-K3", False, False),
        ("google-gemma-4-31B-it", True, False),
        ("google-gemma-4-31B-it", False, False),
        ("openai-gpt-oss-120b", True, False),
        ("Apriel-1.6-15b-Thinker-fixed", None, True),
        ("mistralai-Ministral-3-14B-Reasoning-2512", None, False),
        ("ByteDance-Seed-OSS", False, False),
        ("tencent-Hy3", True, True),
        ("tencent-Hy3", False, False),
    ],
)
def test_the_prompt_says_whether_the_reply_begins_inside_the_reasoning(name, think, inside):
    template = ChatTemplate(TEMPLATES[name], bos_text="<s>", eos_text="</s>")
    prompt = template.render((Message("user", "2+2? <think>"),), think=think)
    assert template.thinking_style(prompt).opened is inside


@pytest.mark.parametrize(
    "name", ["Qwen-Qwen2.5-7B-Instruct", "meta-llama-Llama-3.2-3B-Instruct", "google-gemma-2-2b-it"]
)
def test_models_that_do_not_reason_have_no_style(name):
    assert style_of(TEMPLATES[name]) is None


def test_a_special_token_shows_a_style_that_the_template_does_not():
    vocabulary = CharacterVocabulary(("<s>", "</s>", "<think>", "</think>"))
    assert template_of(CHATML, vocabulary)[0].thinking_style("") == THINK
    assert template_of(CHATML, CharacterVocabulary())[0].thinking_style("") is None
