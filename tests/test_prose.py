"""The README is short and shows a picture first; sentences for users are short; figures and quotes have a source."""

import ast
import re
from pathlib import Path
from statistics import mean

import pytest

from localspec.models import registry

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text("utf-8")
USER_PAGES = [page for page in sorted((ROOT / "docs").glob("*.md")) if page.name != "commands.md"]
CODE = re.compile(r"^```.*?^```$", re.M | re.S)


def prose(text):
    """The text without code, comments, pictures and addresses."""
    text = re.sub(r"<!--.*?-->|!\[[^\]]*\]\([^)]*\)", "", CODE.sub("", text), flags=re.S)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


def sentences(text):
    """The sentences of paragraphs and lists; headings and tables have none."""
    text = re.sub(r"^(?:#|\|).*$", "", prose(text), flags=re.M)
    text = re.sub(r"^(?:[-*]|\d+\.) ", "\n\n", re.sub(r"`[^`]+`", "code", text), flags=re.M)
    found = re.split(r"(?<=[.!?])\s+(?=[\"'(]?[A-Za-z0-9])|\n\s*\n", text)
    return [words for sentence in found if len(words := re.findall(r"\w\S*", sentence)) > 1]


def test_the_readme_has_at_most_600_words():
    assert len(re.findall(r"\w\S*", prose(README))) <= 600


def test_a_picture_stands_before_the_first_command_of_the_readme():
    assert README.index("![") < README.index("```")


def test_the_sentences_of_the_readme_have_15_words_on_average():
    assert mean(map(len, sentences(README))) <= 15


@pytest.mark.parametrize("page", USER_PAGES, ids=lambda page: page.name)
def test_the_sentences_for_users_have_15_words_on_average(page):
    assert mean(map(len, sentences(page.read_text("utf-8")))) <= 15


def test_every_speed_in_the_readme_stands_in_a_stored_result():
    results = "\n".join(page.read_text("utf-8") for page in (ROOT / "benchmarks" / "results").glob("*.md"))
    for figure in re.findall(r"\b\d+(?:\.\d+)?(?= ?(?:x\b|times\b|%|tokens/s|seconds\b|minutes\b))", README):
        assert re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d]|\.\d)", results), figure


def test_pairs_that_are_recommended_have_this_name_and_size():
    pages = [README, (ROOT / "docs" / "which-pair.md").read_text("utf-8")]
    rows = [row for page in pages for row in re.findall(r"^\| .*GB.*`.*\|$", page, re.M)]
    assert len(rows) > 8
    for row in rows:
        names = re.findall(r"`([^`]+)`", row)
        sizes = re.findall(r"[\d.]+", row.split("|")[-2])
        assert len(names) == len(sizes), row
        for name, size in zip(names, sizes, strict=True):
            pair = registry.named(name)
            assert pair.name == name
            assert f"{pair.file_bytes / 1e9:.1f}" == size, row


@pytest.mark.process
@pytest.mark.parametrize("page", ["not-faster.md", "troubleshooting.md"])
def test_sentences_that_a_page_quotes_are_those_of_the_program(page):
    """Between their numbers and names."""
    sources = [*ROOT.glob("localspec/**/*.py"), *ROOT.glob("tui/**/*.py")]
    nodes = [node for path in sources for node in ast.walk(ast.parse(path.read_text("utf-8")))]
    shown = "\n".join(n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str))
    text = re.sub(r"`[^`]+`", "", prose((ROOT / "docs" / page).read_text("utf-8")))
    parts = [
        part.strip()
        for quoted in re.findall(r'"([^"]+)"', text)
        for part in re.split(r"\S*\d\S*|\(?[A-Z]{2,}\)?|\.\.\.|: ", " ".join(quoted.split()))
    ]
    assert len(parts) > 5
    assert [part for part in parts if part not in shown] == []
