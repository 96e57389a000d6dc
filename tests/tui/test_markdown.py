"""Cutting a growing text: nothing is lost, no fence is broken, and the tail stays short."""

import itertools

import pytest
from driving import running
from hypothesis import given
from hypothesis import strategies as st
from localspec.tui.widgets import markdown
from localspec.tui.widgets.markdown import LONG_BLOCK, GrowingMarkdown, parts_of
from scripted_engine import ESSAY

SHORT = ("text", "", "```py", "```", "~~~~", "  ```", "- item", "| a | b |", "# head", "> q")
LINES = st.sampled_from([*SHORT, "word " * 300, "x" * 5000])


def stream(text, sizes):
    growing, blocks = GrowingMarkdown(), []
    while text:
        size = next(sizes)
        blocks += growing.feed(text[:size])
        text = text[size:]
    return blocks, growing


@given(lines=st.lists(LINES, max_size=30), chunk=st.integers(1, 70))
def test_finished_blocks_and_tail_cover_the_text(lines, chunk):
    text = "\n".join(lines)
    blocks, growing = stream(text, iter(lambda: chunk, 0))
    assert sum(block.characters for block in blocks) + len(growing.tail) == len(text)
    assert text.endswith(growing.tail)
    finished = blocks + growing.finish()
    assert sum(block.characters for block in finished) == len(text)
    assert growing.tail == ""


@given(lines=st.lists(LINES, max_size=30), chunk=st.integers(1, 70))
def test_streaming_makes_the_same_sources_as_the_finished_text(lines, chunk):
    # Only whole lines: a single line that is longer than a block may be cut where the chunk happened to end.
    text = "\n".join(line for line in lines if len(line) < LONG_BLOCK // 2)
    blocks, growing = stream(text, iter(lambda: chunk, 0))
    assert "".join(p.source for p in blocks + growing.finish()) == "".join(parts_of(text))


def test_an_ordinary_reply_is_shown_from_exactly_its_own_text():
    assert parts_of(ESSAY) == [ESSAY]


@pytest.mark.parametrize("fence", ["```", "~~~~", "````"])
def test_a_blank_line_inside_a_fence_finishes_no_block(fence):
    growing = GrowingMarkdown()
    assert growing.feed(f"{fence}py\na = 1\n\nb = 2\n") == []
    assert [block.source for block in growing.feed(f"{fence}\n")] == [f"{fence}py\na = 1\n\nb = 2\n{fence}\n"]


def test_a_shorter_mark_does_not_close_a_fence():
    growing = GrowingMarkdown()
    assert growing.feed("````\n```\n\n") == []


def test_a_long_fence_is_cut_into_fences_of_the_same_language():
    parts = GrowingMarkdown().feed("```python\n" + "x = 1\n" * 2000)
    assert len(parts) > 2
    assert all(part.source.startswith("```python\n") and part.source.endswith("\n```\n") for part in parts)


def test_the_tail_stays_short_whatever_comes():
    for text in ("word " * 10_000, "line\n" * 10_000, "```\n" + "code\n" * 10_000, "- item\n" * 10_000):
        growing = GrowingMarkdown()
        for start in range(0, len(text), 7):
            growing.feed(text[start : start + 7])
            assert len(growing.tail) <= LONG_BLOCK + 50


def test_a_table_of_a_hundred_rows_stays_whole():
    table = "| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * 100
    assert parts_of(table) == [table]


def test_parts_are_bounded():
    text = "A paragraph of some words.\n\n" * 2000
    assert max(map(len, parts_of(text))) < markdown.LONG_PART + markdown.LONG_BLOCK


ITEMS = ("- item\n", "1. item\n\n", "- ", "- a\n  - b\n", "  - b\n", "* \n", "> q\n", "# h\n")


@pytest.mark.parametrize("item", [*ITEMS, "- a\n\n  text\n\n"])
def test_every_part_of_a_long_list_has_few_lines(item):
    for text in (item * 1500, "head\n" + item * 1500):
        assert max(part.count("\n") for part in parts_of(text)) <= 3 * markdown.MANY_LINES


def test_a_list_is_cut_before_an_item_and_goes_on_in_the_next_part():
    parts = parts_of("".join(f"{n}. one\n   more of it\n" for n in range(1, 100)))
    assert all(part[0].isdigit() for part in parts)
    assert len(parts) == 5
    assert all(markdown.is_list_cut(*pair) for pair in itertools.pairwise(parts))


async def test_no_end_of_a_long_line_of_code_is_hidden(tmp_path):
    async with running(tmp_path, size=(60, 20)) as chat:
        await chat.ask("exact ```\n" + "a long line of code " * 4 + "END\n```\n")
        await chat.until(lambda: chat.drawn.count("END") == 2)
