"""A terminal is shown what a model wrote and never steered by it; a file or a pipe gets it as it is."""

import sys
import unicodedata
from types import SimpleNamespace

import pytest

from localspec.cli.commands.bench import compare_shown
from localspec.cli.commands.run import show
from localspec.cli.program import tell
from localspec.control.timing import Tally
from localspec.display import for_terminal, print_notice, printable
from localspec.errors import BadSetting
from localspec.events import Finished, FinishReason, Kind, Notice, Origin, Piece, Reply, Source
from localspec.measure.compare import SideEvent

STEERING = "first \x1b]52;c;aGk=\x07 then\n\t\x9b31m last\n"
EMBEDDINGS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def events(kind):
    yield Piece(STEERING, kind, Origin.PLAIN, Source.PLAIN)
    yield Finished(Reply(STEERING, "", (1,), 0, FinishReason.STOP, Tally().stats()))


def test_control_characters_become_signs_one_for_one():
    everything = "".join(map(chr, range(0x250)))
    safe = for_terminal(everything)
    replaced = [a for a, b in zip(everything, safe, strict=True) if a != b]
    assert set(replaced) == {c for c in everything if unicodedata.category(c) == "Cc"} - {"\n", "\t"}
    assert set(safe) - set(everything) == {"\ufffd"}


@pytest.mark.parametrize("show_text", [for_terminal, printable])
def test_what_reorders_or_breaks_a_line_and_what_cannot_be_printed_becomes_a_sign(show_text):
    reordering = {c for c in map(chr, range(0x110000)) if unicodedata.bidirectional(c) in EMBEDDINGS}
    for character in {*reordering, "\u2028", "\u2029", "\x9b", "\udce9"}:
        assert show_text(f"a{character}b") == "a\ufffdb", hex(ord(character))


def test_a_value_out_of_a_file_stays_one_line_and_keeps_its_letters():
    assert printable("a\n\tb\rc") == "a\ufffd\ufffdb\ufffdc"
    assert printable("Qwen\u00a02.5 漢🙂 עברית") == "Qwen\u00a02.5 漢🙂 עברית"


def test_an_ordinary_text_is_shown_untouched():
    for text in ("a\tb\nä→漢🙂", "עברית\u200f, العربية\u200e"):
        assert for_terminal(text) == text


@pytest.mark.parametrize("terminal", [True, False])
def test_an_answer_on_a_terminal_has_signs_and_in_a_pipe_every_character(capsys, monkeypatch, terminal):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    reply, _ = show(events(Kind.ANSWER), quiet=False)
    assert capsys.readouterr().out == (for_terminal(STEERING) if terminal else STEERING)
    assert reply.text == STEERING


def test_reasoning_on_a_terminal_has_signs(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    show(events(Kind.REASONING), quiet=False)
    assert capsys.readouterr().err == f"\x1b[2m{for_terminal(STEERING)}\x1b[0m"


def noted_by_run():
    show(iter([Notice(STEERING), *events(Kind.ANSWER)]), quiet=True)


def noted_late_by_run():
    _, finished = events(Kind.ANSWER)
    pieces = [Piece("word", Kind.ANSWER, Origin.PLAIN, Source.PLAIN), Notice(STEERING), finished]
    _, late = show(iter(pieces), quiet=False)
    for text in late:
        print_notice(text)


def noted_by_bench():
    steps = [SideEvent(False, Notice(STEERING))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("localspec.measure.compare.compare_events", lambda *_, **__: iter(steps))
        compare_shown(SimpleNamespace(pair=SimpleNamespace(is_demo=False)), "", "", quiet=True)


def reported_as_an_error():
    tell(BadSetting(STEERING, hint=STEERING))


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("say", [noted_by_run, noted_late_by_run, noted_by_bench, reported_as_an_error])
def test_notes_and_errors_have_signs_wherever_they_go(say, capsys, monkeypatch, terminal):
    """What lands in a log is read on a terminal later."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    say()
    err = capsys.readouterr().err
    assert for_terminal(STEERING) in err
    assert STEERING not in err
