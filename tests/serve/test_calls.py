"""Tool calls reported piece by piece are those that are read from the whole text."""

import sys

import pytest

from localspec.structure.read_calls import CallReader
from localspec.structure.tool_call_format import HERMES
from tests.structure.test_forms import form_named

LENGTHS = (300, 1200)  # of values: parts, or characters
GROWING = {
    "text": lambda n: 'a "b"\n' * (n // 6),
    "numbers": lambda n: [*range(n)],
    "objects": lambda n: [{"id": i, "text": "x, y]"} for i in range(n // 4)],
    "nested": lambda n: {"a": {f"k{i}": [i, {}] for i in range(n // 4)}},
    "escapes": lambda n: "\\\"'" * n,
    "space": lambda n: " \n" * n,
}
PIECE = 3  # characters
# JSON in tags, JSON alone, parameters in tags, and values between special tokens.
SYNTAXES = ("Qwen-Qwen2.5-7B-Instruct", "google-gemma-2-2b-it", "MiniMax-M2", "deepseek-ai-DeepSeek-V3.1")


@pytest.mark.parametrize("value", GROWING)
@pytest.mark.parametrize("name", SYNTAXES)
def test_four_times_the_text_is_at_most_five_times_the_work(name, value):
    """The lines of the reader that run, and the characters that it is given to look at, again or for the first time."""
    form = form_named(name)
    small, large = (work(form.written([("f", {"v": GROWING[value](n)})]), form) for n in LENGTHS)
    assert large[0] <= 5 * small[0]
    assert large[1] <= 5 * small[1]


@pytest.mark.parametrize(
    "before", ["", "<tool_call>", '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>']
)
def test_space_without_end_is_not_looked_at_again_and_again(before):
    small, large = (work(before + "\n" * n, HERMES) for n in (1000, 4000))
    assert large[0] <= 5 * small[0]
    assert large[1] <= 5 * small[1]


def work(text, form):
    reader = CallReader(form, {"f": {"properties": {"v": {}}}})
    lines = characters = 0

    def count(frame, event, _):
        nonlocal lines
        if "structure" not in frame.f_code.co_filename:
            return None
        lines += event == "line"
        return count

    for at in range(0, len(text), PIECE):
        piece = text[at : at + PIECE]
        characters += len(reader.held) + len(piece)
        sys.settrace(count)
        reader.push(piece)
        sys.settrace(None)
    return lines, characters
