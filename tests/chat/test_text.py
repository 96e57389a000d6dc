import itertools

from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.text import TextPart, TextStream
from localspec.chat.thinking import THINK, style_of
from localspec.events import Kind
from tests.chat.toys import ToyVocabulary, byte_tokens

R, A = Kind.REASONING, Kind.ANSWER
VOCABULARY = ToyVocabulary()
GEMMA = ToyVocabulary(["<s>", "</s>", "<|channel>", "<channel|>", "<turn|>"])


def read(vocabulary, style, reply, stops=(), **options):
    """The text by kind, and whether a stop string ended it; control texts in the reply are control tokens."""
    stream = TextStream(vocabulary, style, stops, **options)
    tokens = reply if isinstance(reply, list) else vocabulary.tokenize(reply, parse_special=True)
    parts = [part for token in tokens for part in stream.push(token)] + stream.flush()
    groups = itertools.groupby(parts, key=lambda part: part.kind)
    return [(kind, "".join(part.text for part in group)) for kind, group in groups], bool(stream.stopped_by)


def test_plain_text_comes_token_by_token():
    stream = TextStream(VOCABULARY, None, [])
    assert stream.push(ord("a")) == [TextPart("a", A)]
    assert stream.push(VOCABULARY.control_texts()["<|im_start|>"]) == []
    assert stream.flush() == []


def test_tags_that_are_control_tokens_are_seen_although_they_have_no_text():
    gemma = style_of("<|channel>thought")
    assert read(GEMMA, gemma, "<|channel>thought\n2+2<channel|>Four<turn|>") == (
        [(R, "2+2"), (A, "Four")],
        False,
    )


def test_characters_reasoning_and_stop_strings_work_together():
    reply = byte_tokens("<think>\n🧠 STOP</think>\n\nhé 😀STOP never".encode())
    assert read(VOCABULARY, THINK, reply, ["STOP"]) == ([(R, "🧠 STOP"), (A, "hé 😀")], True)


def test_a_stop_string_does_not_reach_from_answer_to_reasoning():
    harmony = style_of("<|channel|>analysis")
    channels = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>")
    vocabulary = ToyVocabulary(["<s>", "</s>", *channels])
    reply = (
        "<|channel|>commentary<|message|>ST<|end|><|start|>assistant<|channel|>analysis<|message|>OP<|end|>OK"
    )
    assert read(vocabulary, harmony, reply, ["STOP"]) == ([(A, "ST"), (R, "OP"), (A, "\n\nOK")], False)


def test_a_stop_string_may_be_a_control_text():
    assert read(VOCABULARY, None, "so<|im_end|>much", ["<|im_end|>"]) == ([(A, "so")], True)


def test_what_is_held_back_comes_at_the_end():
    assert read(VOCABULARY, THINK, "<think>a</thi") == ([(R, "a</thi")], False)
    assert read(VOCABULARY, THINK, "aST", ["STOP"]) == ([(A, "aST")], False)
    assert read(VOCABULARY, None, byte_tokens(b"a\xf0\x9f")) == ([(A, "a\ufffd")], False)
    assert read(VOCABULARY, THINK, byte_tokens(b"aST\xf0"), ["ST\ufffd"]) == ([(A, "a")], True)


def test_nothing_comes_after_a_stop_string():
    stream = TextStream(VOCABULARY, None, ["b"])
    assert [stream.push(ord(c)) for c in "abc"] == [[TextPart("a", A)], [], []]
    assert stream.stopped_by
    assert stream.flush() == []


def test_raw_text_that_goes_on_keeps_its_first_space():
    spm = ToyVocabulary(space_prefix=True)
    words = [ord(c) for c in " upon"]
    assert read(spm, None, words)[0] == [(A, "upon")]
    assert read(spm, None, words, continues_text=True)[0] == [(A, " upon")]


@given(st.text(max_size=30))
def test_an_answer_comes_out_as_the_model_wrote_it(reply):
    expected = [(A, reply)] if reply else []
    assert read(VOCABULARY, None, byte_tokens(reply.encode()), ["no stop in here \0\0\0"]) == (
        expected,
        False,
    )
