"""What a model or a person wrote is shown as it is: markup is not read, and nothing steers the terminal."""

import ast
import unicodedata
from pathlib import Path

import pytest
from driving import open_conversations, running
from localspec.tui.dialogs import ConfirmDialog
from localspec.tui.widgets.reply import LiveTail, ReplyPart
from scripted_engine import Gate

from localspec.display import for_terminal

CLIPBOARD = "\x1b]52;c;aGk=\x07"
COLOUR = "\x9b31m"
STEERING = f"first {CLIPBOARD} then {COLOUR} last"


def controls(text):
    return {character for character in text if unicodedata.category(character) == "Cc"} - {"\n"}


async def shows(chat, text):
    """The screen shows a text, and nothing on it steers the terminal."""
    await chat.pilot.pause()
    assert text in chat.drawn
    assert not controls(chat.drawn)


async def test_no_control_character_of_a_reply_reaches_the_terminal_while_it_is_written(tmp_path):
    gate = Gate(hold_after=2)
    async with running(tmp_path, gate=gate) as chat:
        await chat.type(f"exact {STEERING} {STEERING} and more words to come")
        await chat.until(
            lambda: chat.replies and "\ufffd" in str(chat.replies[0].query_one(LiveTail).content)
        )
        await shows(chat, "first \ufffd]52;c;aGk=\ufffd")
        gate.opened.set()
        await chat.until(lambda: not chat.state.engine.busy)


async def test_a_finished_reply_is_shown_with_signs_and_kept_as_it_was(chat):
    await chat.ask(f"exact {STEERING}\n\n{STEERING}")
    shown = for_terminal(f"{STEERING}\n\n{STEERING}")
    for _ in range(2):
        assert not controls(chat.drawn)
        assert "".join(part.source for part in chat.screen.query(ReplyPart)) == shown
        await chat.screen.transcript.open(chat.state.conversation.messages)
        await chat.until(lambda: chat.screen.query(ReplyPart))
        await chat.pilot.pause()
    assert [m.content.count(CLIPBOARD) for m in chat.saved[0].messages] == [2, 2]


async def test_what_the_program_repeats_in_prompt_notices_titles_and_questions_steers_nothing(chat):
    chat.screen.prompt.replace_text(STEERING)
    await shows(chat, "first \ufffd]52")
    await chat.type(f"/system {STEERING}")
    await chat.until(lambda: chat.notices)
    assert chat.state.conversation.about.system == STEERING
    await chat.ask(f"exact {STEERING}")
    await chat.pilot.pause()
    assert not controls(chat.drawn)
    await chat.pilot.press("ctrl+n")
    await open_conversations(chat, rows=1)
    await shows(chat, "first \ufffd]52")
    await chat.pilot.press("ctrl+d")
    await chat.until(lambda: isinstance(chat.app.screen, ConfirmDialog))
    await shows(chat, "first \ufffd]52")


async def test_no_character_that_markdown_spells_out_turns_the_text_around(chat):
    await chat.ask("exact so &#8238;backwards &#x2066;isolated &#27;]0;x")
    await chat.until(lambda: chat.replies[0].finished_parts[0].is_drawn)
    await chat.pilot.pause()
    assert "so backwards isolated" in chat.drawn
    assert not {c for c in chat.drawn if unicodedata.bidirectional(c) in ("RLO", "LRI")}


FILTERS = {"for_terminal", "line_for_terminal"}
SHOWING = {"Input", "Static", "Label", "Option", "print", "input", "write"}
ROOT = Path(__file__).resolve().parents[2]
UNFILTERED = {  # what shows a text without a filter around it, and why it may
    ("tui/plain.py", "prompt"): "a prompt of the program",
    ("tui/dialogs.py", "self.KEYS"): "the program's own words",
    ("tui/dialogs.py", "self.text"): "filtered",
    ("tui/widgets/prompt.py", "Content(for_terminal(path))"): "filtered",
    ("tui/widgets/prompt.py", "Content('\\n').join(lines)"): "the program's own commands",
    ("tui/widgets/reply.py", "status.footer(message)"): "numbers",
    ("tui/widgets/reply.py", "self.source"): "filtered",
    ("tui/widgets/transcript.py", "folded(text)"): "filtered",
    ("tui/widgets/transcript.py", "text"): "a number of messages",
}


def unfiltered(tree):
    """The texts that a file shows as they are. Notices pass the filter in the app and in `say`."""
    for node in ast.walk(tree):
        own = isinstance(node, ast.ClassDef) and SHOWING & {ast.unparse(base) for base in node.bases}
        for call in ast.walk(node) if own else [node]:
            if isinstance(call, ast.Call) and (named(call) in SHOWING or (own and named(call) == "__init__")):
                yield from (ast.unparse(text) for text in call.args[:1] if open_in(text))


def named(call):
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def open_in(text):
    """Whether something of a text does not come out of a filter."""
    if isinstance(text, ast.Call) and named(text) in FILTERS:
        return False
    if isinstance(text, ast.Name | ast.Attribute | ast.Call | ast.Subscript | ast.Starred):
        return True
    return any(open_in(part) for part in ast.iter_child_nodes(text))


def test_nothing_is_shown_without_the_filter_that_is_not_known_to_be_harmless():
    files = [*ROOT.glob("tui/**/*.py"), *ROOT.glob("localspec/cli/**/*.py")]
    assert len(files) > 30
    shown = {
        (path.relative_to(ROOT).as_posix(), text)
        for path in files
        for text in unfiltered(ast.parse(path.read_text("utf-8")))
    }
    assert shown - UNFILTERED.keys() == set()
    assert UNFILTERED.keys() - shown == set()  # nothing is excused that is gone


def test_no_text_is_read_as_markup():
    calls = [
        (path.name, ast.unparse(node), [ast.unparse(k.value) for k in node.keywords if k.arg == "markup"])
        for path in ROOT.glob("tui/**/*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and named(node) in ("Static", "Label")
    ]
    assert len(calls) > 10
    assert [call for call in calls if call[2] != ["False"]] == []


@pytest.mark.parametrize("text", ["[/x]", "[bold]loud[/bold]", "[@click=app.quit]out[/]", f"x{CLIPBOARD}"])
async def test_a_notice_in_the_corner_says_what_was_typed_as_it_is(text, chat):
    await chat.type(f"/rename {text}")
    await chat.until(lambda: f"is called “{for_terminal(text)}”" in chat.drawn)
    assert not controls(chat.drawn)


async def test_the_reason_why_nothing_was_remembered_is_reported_in_full(monkeypatch, chat):
    def full(*_):
        raise OSError(28, "No space left on device", "chat.json")

    monkeypatch.setattr("localspec.tui.state.chat.change_json_object", full)
    await chat.type("/tokens off")
    await chat.until(lambda: "A prompt or preference could not be saved" in chat.drawn)
    assert "[Errno 28] No space" in chat.drawn


async def click_link(chat, href, around="see [docs]({}) for more"):
    """Answer with a link in a text, and click it."""
    await chat.ask("exact " + around.format(href))
    await chat.until(lambda: "docs" in chat.drawn.partition("tokens")[0].rpartition("exact")[2])
    lines = chat.drawn.splitlines()
    row = max(n for n, line in enumerate(lines) if "docs" in line)
    await chat.pilot.click(offset=(lines[row].rindex("docs") + 1, row))
    await chat.pilot.pause()


@pytest.mark.parametrize(
    "around", ["see [docs]({}) for more", "| a |\n|---|\n| [docs]({}) |\n", "# [docs]({})"]
)
async def test_the_address_of_a_link_is_shown_and_nothing_opens_it(monkeypatch, around, chat):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda url, **_: opened.append(url))
    await click_link(chat, "https://example.org/a%20b?c=d#e", around)
    await chat.until(lambda: chat.remarks == ["https://example.org/a b?c=d#e"])
    assert opened == []
