"""A first hour with the chat by keyboard alone, in tmux at 80x24 and 40x12, and line by line through a pipe.

python benchmarks/ui_walk.py [FOLDER]: says what was seen; with a folder, every screen is written into it as text.
The engine is a scripted process.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from ui_tmux import SCRIPTED, Tmux

os.environ["SCRIPT_CYCLE_SECONDS"] = "0.02"
RUNNING = re.compile(r"^ +\d+ tokens( |$)", re.MULTILINE)  # in the status line
SIZES = ((40, 12), (80, 24))


def without(text: str) -> Callable[[str], bool]:
    return lambda screen: text not in screen


class Walk:
    """One chat; each step types, waits for what should be seen, and keeps the screen."""

    def __init__(self, columns: int, rows: int, kept: Path | None) -> None:
        work = Path(tempfile.mkdtemp())
        (work / "notes.md").write_text("# Notes\n\nDrafts are cheap.\n", encoding="utf-8")
        script = f"cd {work} && exec {' '.join(SCRIPTED)} {work / 'data'}"
        self.chat = Tmux("walk", ("sh", "-c", script), columns, rows)
        self._name = f"{columns}x{rows}"
        self._kept = kept
        self._count = 0

    def step(self, name: str, *keys: str, seen: str | Callable[[str], object], text: str = "") -> None:
        if text:
            self.chat.type(text)
        self.chat.press(*keys)
        wanted = seen if callable(seen) else lambda screen: seen in screen
        screen = self.chat.until(wanted, f"{name} at {self._name}")
        self._count += 1
        print(f"  {name}: seen", flush=True)
        if self._kept:
            path = self._kept / f"{self._name}-{self._count:02}-{name.replace(' ', '-')}.txt"
            path.write_text(screen, encoding="utf-8")


def walk(columns: int, rows: int, kept: Path | None) -> None:
    walk = Walk(columns, rows, kept)
    step = walk.step
    try:
        step("start", seen="Ask anything")
        step("help", "F1", seen="Help")
        step("back", "Escape", seen=without("esc close"))
        step("ask", "Enter", text="why?", seen="176 tokens")
        step("a list", "Enter", text="list 60", seen="360 tokens")
        step("page up", "PageUp", seen=without("item 59"))
        step("to the message before", *["C-Up"] * 4, seen="why?")
        step("to the end", *["C-Down"] * 5, seen="item 59 of many")
        step("another reply", "C-r", seen="‹2/2›")
        step("the version before", "F5", seen="‹1/2›")
        step("stop", "Enter", text="tokens 3000", seen=RUNNING.search)
        step("stopped", "C-c", seen="stopped")
        step("how to leave", "C-c", seen="^q leaves")
        step("edit", "F8", seen="changing message 3 of 3")
        step("edit the one before", "F8", seen="changing message 2 of 3")
        step("leave it", "Escape", seen=without("changing message"))
        step("a file is offered", text="exact @no", seen="@notes.md")
        step("the file goes along", "Tab", "Enter", seen="Drafts are cheap")
        step("commands are offered", text="/co", seen="/continue")
        step("a block to copy", "C-u", text="", seen="Ask anything")
        step("blocks", "Enter", text="/copy block", seen="↵ copy")
        step("copied", "Enter", seen="copied")
        step("a title", "Enter", text="/rename Hour", seen="“Hour”")
        step("conversations", "C-s", seen="↵ open")
        step("find", "/", text="", seen="words that it holds")
        step("found", "Enter", text="cheap", seen=lambda screen: "(open) Hour" in screen)
        step("close", "Escape", seen=without("↵ open"))
        step("a branch", "Enter", text="/branch 2", seen="copy of 2 messages")
        step("pairs", "C-o", seen="qwen3-8b")
        step("another pair", "Down", "Enter", seen="from here on")
        step("compare", "F9", seen="With and without")
        step("close again", "Escape", seen=without("With and without"))
        walk.chat.press("C-d")
        walk.chat.until(lambda _: not walk.chat.alive, "gone")
        print("  leave: gone")
    finally:
        walk.chat.close()


def walk_lines(kept: Path | None) -> None:
    said = "why?\n/retry\n/version 1\nexact @nothing\n/rename Lines\n/load\n/help\n/exit\n"
    folder = tempfile.mkdtemp()
    done = subprocess.run(
        (*SCRIPTED, folder, "--plain"), input=said, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("## Why a draft helps") == 3, done.stdout
    assert "“Lines”" in done.stderr, done.stderr
    assert "/quit: Leave" in done.stderr, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    print("  questions, versions, titles, help: seen")
    if kept:
        (kept / "pipe-out.txt").write_text(done.stdout, encoding="utf-8")
        (kept / "pipe-err.txt").write_text(done.stderr, encoding="utf-8")


def main() -> None:
    kept = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    if kept:
        kept.mkdir(parents=True, exist_ok=True)
    for columns, rows in SIZES:
        print(f"{columns}x{rows}")
        walk(columns, rows, kept)
    print("lines through a pipe")
    walk_lines(kept)


if __name__ == "__main__":
    main()
