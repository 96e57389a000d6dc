import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from localspec.chat.text import StopScanner

text = st.text(alphabet="ab\n", max_size=30)
stops = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), max_size=4)
cuts = st.lists(st.integers(0, 30), max_size=10)


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


@given(text, stops, cuts)
@example("abab", ["abab", "b"], [1, 2, 3])
@example("abab", ["abab", "b"], [])
@example("aab", ["ab"], [1, 2])
def test_any_split_gives_what_reading_the_whole_text_gives(text, stops, cuts):
    scanner = StopScanner(stops)
    released = "".join(map(scanner.push, pieces(text, cuts)))
    assert (released + scanner.flush(), bool(scanner.found)) == naive(text, stops)


@given(text, stops, cuts)
def test_only_what_could_begin_a_stop_string_is_held_back(text, stops, cuts):
    scanner, shown, read = StopScanner(stops), "", ""
    for piece in pieces(text, cuts):
        shown, read = shown + scanner.push(piece), read + piece
        if scanner.found:
            break
        ends = [read[i:] for i in range(len(read) + 1)]
        held = max((len(e) for e in ends if any(s != e and s.startswith(e) for s in stops)), default=0)
        assert len(shown) == len(read) - held


def test_a_stop_string_across_pieces_ends_the_text():
    scanner = StopScanner(["\nUser:"])
    assert [scanner.push(piece) for piece in ("Hello\nUs", "er: no", "more")] == ["Hello", "", ""]
    assert (scanner.flush(), scanner.found) == ("", "\nUser:")


@pytest.mark.parametrize("stops", [[], [""]])
def test_without_stop_strings_everything_passes_at_once(stops):
    assert StopScanner(stops).push("abc") == "abc"
