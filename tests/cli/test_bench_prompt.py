"""`localspec bench PROMPT`: the headline, two rows, both texts when asked for."""

import json
import re

import pytest

from localspec.chat.loaded_pair import TOY
from localspec.cli import main

pytestmark = pytest.mark.usefixtures("home")


def bench(capsys, *arguments):
    code = main(["bench", *map(str, arguments), "--pair", "demo", "--threads", "1", "--max-tokens", "16"])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_speed_comes_first_then_the_text_then_both_sides(capsys):
    code, out, err = bench(capsys, "Tell me a story", "--temperature", 0, "--runs", 2)
    headline, _, rows = out.partition("\n\n")
    lines, rows = headline.splitlines(), rows.splitlines()
    assert code == 0
    assert re.fullmatch(r"The same text in \d+ passes instead of 16, \d+ of \d+ guesses kept\.", lines[0])
    assert lines[1:] == [TOY]
    assert "slower" not in out.casefold()
    assert rows[0].split() == ["tokens", "passes", "kept", "a", "pass"]  # a toy has no times
    assert not re.search(r"times as fast|tokens/s|\d s\b", out)
    assert rows[1].startswith("plain ")
    assert rows[2].startswith("drafting ")
    assert "small demo pair" in err


def test_the_temperature_is_0_unless_another_is_asked_for(capsys):
    _, out, _ = bench(capsys, "Tell me a story", "--json")
    assert json.loads(out)["rule"] == "greedy"


def test_the_race_is_drawn_with_its_models_the_machine_and_the_program(capsys, tmp_path):
    drawing = tmp_path / "race.svg"
    assert bench(capsys, "Tell me <a> story", "--svg", drawing)[0] == 0
    words = drawing.read_text("utf-8").replace("&#160;", " ")
    for part in (
        "Tell me &lt;a&gt; story",
        "plain decoding",
        "with drafting",
        "16 tokens · 16 passes ✓",
        "localspec demo target",
        "llama-cpp-python",
    ):
        assert part in words


def test_json_is_one_object_with_both_sides(capsys):
    code, out, _ = bench(capsys, "Tell me a story", "--seed", 3, "--temperature", 0.8, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["plain"]["stats"]["drafted"] == 0
    assert found["plain"]["seed"] == found["speculative"]["seed"] == 3
    assert found["rule"] == "block"
    assert len(found["speculative"]["runs"]) == 1
    assert found["identical"] == (found["divergence"] is None)
    assert TOY in found["verdict"]


@pytest.mark.parametrize("arguments", [["Hi", "--runs", 0], [""]])
def test_what_cannot_be_compared_is_one_sentence_and_a_hint(arguments, capsys):
    code, out, err = bench(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.splitlines()[0].startswith("error: ")
    assert err.splitlines()[1].startswith("hint: ")
