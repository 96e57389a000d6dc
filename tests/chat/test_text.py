import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from localspec.chat.text import Detokenizer, StopScanner, TextPart, TextStream
from localspec.events import Kind
from localspec.prompt.thinking import THINK, style_of
from tests.prompt.character_vocabulary import CharacterVocabulary, byte_tokens

R, A = Kind.REASONING, Kind.ANSWER
VOCABULARY = CharacterVocabulary()
GEMMA = CharacterVocabulary(["<s>", "</s>", "<|channel>", "<channel|>", "<turn|>"])


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
    assert stream.push(VOCABULARY.special_tokens()["<|im_start|>"]) == []
    assert stream.flush() == []


def test_tags_that_are_control_tokens_are_seen_although_they_have_no_text():
    gemma = style_of("<|channel>thought")
    reply = "<|channel>thought\n2+2<channel|>Four<turn|>"
    assert read(GEMMA, gemma, reply) == ([(R, "2+2"), (A, "Four")], False)


def test_characters_reasoning_and_stop_strings_work_together():
    reply = byte_tokens("<think>\n🧠 STOP</think>\n\nhé 😀STOP never".encode())
    assert read(VOCABULARY, THINK, reply, ["STOP"]) == ([(R, "🧠 STOP"), (A, "hé 😀")], True)


def test_a_stop_string_does_not_reach_from_answer_to_reasoning():
    harmony = style_of("<|channel|>analysis")
    channels = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>")
    vocabulary = CharacterVocabulary(["<s>", "</s>", *channels])
    reply = (
        "<|channel|>commentary<|message|>ST<|end|><|start|>assistant<|channel|>analysis<|message|>OP<|end|>OK"
    )
    assert read(vocabulary, harmony, reply, ["STOP"]) == ([(A, "ST"), (R, "OP"), (A, "\n\nOK")], False)


def test_what_is_held_back_comes_at_the_end():
    assert read(VOCABULARY, None, "so<|im_end|>much", ["<|im_end|>"]) == ([(A, "so")], True)
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
    spm = CharacterVocabulary(space_prefix=True)
    words = [ord(c) for c in "  upon"]
    assert read(spm, None, words)[0] == [(A, " upon")]
    assert (
        read(VOCABULARY, None, words)[0] == read(spm, None, words, continues_text=True)[0] == [(A, "  upon")]
    )


def decoded(tokens):
    detokenizer = Detokenizer(VOCABULARY, {})
    return [detokenizer.push(token) for token in tokens], detokenizer.flush()


def test_bytes_become_a_replacement_only_when_nothing_can_save_them():
    assert decoded(byte_tokens("a😀b".encode())) == (["a", "", "", "", "😀", "b"], "")
    assert decoded(byte_tokens(b"\xf0\x9fA")) == (["", "", "\ufffdA"], "")
    assert decoded(byte_tokens(b"\xff")) == (["\ufffd"], "")
    assert decoded(byte_tokens(b"\xe2\x82")) == (["", ""], "\ufffd")


@given(st.binary(max_size=40))
def test_any_bytes_read_one_by_one_give_what_decoding_them_together_gives(raw):
    pieces, rest = decoded(byte_tokens(raw))
    assert "".join(pieces) + rest == raw.decode(errors="replace")


TEXTS = st.text(alphabet="ab\n", max_size=30)
STOPS = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), max_size=4)
CUTS = st.lists(st.integers(0, 30), max_size=10)


def naive(text, stops):
    """Read character by character; the first moment at which the text ends with a stop string decides."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - len(max(found, key=len))], True
    return text, False


def pieces(text, cuts):
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


@given(TEXTS, STOPS, CUTS)
@example("abab", ["abab", "b"], [1, 2, 3])
@example("abab", ["abab", "b"], [])
@example("aab", ["ab"], [1, 2])
def test_any_split_gives_what_reading_the_whole_text_gives(text, stops, cuts):
    scanner = StopScanner(stops)
    released = "".join(map(scanner.push, pieces(text, cuts)))
    assert (released + scanner.flush(), bool(scanner.found)) == naive(text, stops)


@given(TEXTS, STOPS, CUTS)
def test_only_what_could_begin_a_stop_string_is_held_back(text, stops, cuts):
    scanner, shown, read = StopScanner(stops), "", ""
    for piece in pieces(text, cuts):
        shown, read = shown + scanner.push(piece), read + piece
        if scanner.found:
            break
        ends = [read[i:] for i in range(len(read) + 1)]
        held = max((len(e) for e in ends if any(s != e and s.startswith(e) for s in stops)), default=0)
        assert len(shown) == len(read) - held
