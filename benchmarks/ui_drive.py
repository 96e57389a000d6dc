"""Walks through a whole chat in a real terminal (tmux) at two sizes and says what failed.

python benchmarks/ui_drive.py: ask, stop, retry, swap the pair, kill -9 of the engine in mid-reply, resume,
resize, quit in mid-reply, and a killed terminal. The engine is a scripted process.
"""

import os
import signal
import tempfile
import time
from collections.abc import Callable

from ui_tmux import SCRIPTED, Tmux, children, gone

os.environ["SCRIPT_CYCLE_SECONDS"] = "0.03"


def ask_and_wait(chat: Tmux, text: str, tokens: int) -> None:
    chat.type(text)
    chat.press("Enter")
    chat.until(lambda screen: f" {tokens} tokens · " in screen, "a finished reply")


def in_mid_reply(chat: Tmux) -> None:
    chat.type("tokens 3000")
    chat.press("Enter")
    chat.until(
        lambda screen: "tok/s" in screen and "waiting" not in screen and "▌\n" in screen, "a running reply"
    )
    time.sleep(0.5)


def drive(columns: int, rows: int) -> None:
    folder = tempfile.mkdtemp()
    chat = Tmux("drive", (*SCRIPTED, folder), columns, rows)
    try:
        step("ready", lambda: chat.until(lambda s: "8,192" in s, "ready"))
        step("ask", lambda: ask_and_wait(chat, "why?", 176))
        step("retry", lambda: retry(chat))
        step("stop", lambda: stop(chat))
        step("swap the pair", lambda: swap(chat))
        step("kill -9 of the engine in mid-reply", lambda: kill_engine(chat))
        step("the next message brings it back", lambda: ask_and_wait(chat, "exact Back again.", 2))
        step("resize to 60x20 and back", lambda: resize(chat, columns, rows))
        step("quit in mid-reply", lambda: quit_in_mid_reply(chat))
    finally:
        chat.close()
    chat = Tmux("drive", (*SCRIPTED, folder, ""), columns, rows)
    try:
        step("resume", lambda: chat.until(lambda s: "stopped · " in s and "8,192" in s, "the old messages"))
        step("a killed terminal leaves no process", lambda: kill_terminal(chat))
    finally:
        chat.close()


def retry(chat: Tmux) -> None:
    chat.press("C-r")
    chat.until(lambda screen: "per pass" not in screen, "the old reply is gone")
    chat.until(lambda screen: "per pass" in screen, "a new reply")


def stop(chat: Tmux) -> None:
    in_mid_reply(chat)
    chat.press("Escape")
    chat.until(lambda screen: "stopped · " in screen, "the reply is marked as stopped", seconds=3)


def swap(chat: Tmux) -> None:
    chat.press("C-o")
    chat.until(lambda screen: "speed-up" in screen and "qwen3-8b" in screen, "the picker")
    chat.press("Down", "Enter")
    chat.until(lambda screen: "qwen3-8b+0.6b · " in screen and "context" in screen, "the other pair")


def kill_engine(chat: Tmux) -> None:
    in_mid_reply(chat)
    engines = children(chat.pid)
    os.kill(engines[-1], signal.SIGKILL)  # the first one lists pairs
    chat.until(
        lambda screen: "SIGKILL" in screen and "engine died here" in screen, "the message about it", seconds=3
    )


def resize(chat: Tmux, columns: int, rows: int) -> None:
    chat.resize(60, 20)
    chat.until(
        lambda screen: len(screen.splitlines()[0]) <= 60 and "Ask anything" in screen, "the small screen"
    )
    chat.resize(columns, rows)
    chat.until(lambda screen: "Ask anything" in screen, "the large screen")


def quit_in_mid_reply(chat: Tmux) -> None:
    in_mid_reply(chat)
    engines = children(chat.pid)
    began = time.monotonic()
    chat.press("C-q")
    while chat.alive or not all(map(gone, engines)):
        assert time.monotonic() - began < 5, "still there"
        time.sleep(0.01)
    print(f"    after {time.monotonic() - began:.2f} s", end="")


def kill_terminal(chat: Tmux) -> None:
    in_mid_reply(chat)
    family = [chat.pid, *children(chat.pid)]
    chat.close()
    began = time.monotonic()
    while not all(map(gone, family)):
        assert time.monotonic() - began < 5, "orphans"
        time.sleep(0.01)
    print(f"    after {time.monotonic() - began:.2f} s", end="")


def step(name: str, action: Callable[[], object]) -> None:
    action()
    print(f"  {name}: yes")


def main() -> None:
    for columns, rows in ((80, 24), (200, 60)):
        print(f"{columns}x{rows}")
        drive(columns, rows)


if __name__ == "__main__":
    main()
