"""Two processes that change the same small files, killed at any moment, lose nothing that they have reported."""

import json
import os
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from localspec.tui.state.chat import PromptHistory

from localspec.conversations import conversations
from localspec.files import read_json_object
from localspec.gguf.facts import DraftKind
from localspec.models.local_models import ModelFile, last_uses
from localspec.models.registry import Pair, add_pair, users_pairs

pytestmark = pytest.mark.process

CHANGES = 15  # of each kind, by each process
TOGETHER = 2 * CHANGES
WORK = f"""
import sys
from dataclasses import replace
from pathlib import Path
from localspec.conversations import conversations
from localspec.gguf.facts import DraftKind
from localspec.models.local_models import ModelFile
from localspec.models.registry import Pair, add_pair, take_out
from localspec.models.local_models import mark_used
from localspec.files import change_json_object
from localspec.tui.state.chat import PromptHistory

name, start, chat = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
history = PromptHistory(chat)
lock = conversations.hold(chat, name)
stored = [one.name for one in conversations.listing(chat)]
talk = conversations.read(chat, name) if name in stored else conversations.Conversation(name)
def done(*what):
    print(*what, flush=True)
for n in range(start, start + {CHANGES}):
    add_pair(Pair(f"{{name}}{{n}}", DraftKind.LOOKUP, ModelFile.at(Path("t.gguf"), 1, "a" * 64), None))
    done("pair", f"{{name}}{{n}}")
    change_json_object(chat / "chat.json", {{name: n}})
    done("choice", n)
    mark_used(f"{{name}}{{n}}")
    done("used", f"{{name}}{{n}}")
    history.add(f"{{name}}{{n}}")
    done("prompt", f"{{name}}{{n}}")
    saved = *talk.messages, conversations.StoredMessage("user", f"{{name}}{{n}} " * 500)
    talk = replace(talk, messages=saved)
    conversations.save(chat, talk, conversations.Conversation(f"{{name}}-{{n}}", messages=saved[-1:]))
    done("saved", f"{{name}}{{n}}")
    if n % 3 == 2:
        conversations.delete(chat, f"{{name}}-{{n - 1}}")
        done("deleted", f"{{name}}-{{n - 1}}")
    take_out(f"old-{{name}}{{n}}")
    done("taken", f"old-{{name}}{{n}}")
"""


def run(home: Path, round_: int, chance: random.Random | None) -> dict[str, list[list[str]]]:
    """What two processes report as done; each is killed at a random moment where there is `chance`."""
    environment = os.environ | {"LOCALSPEC_HOME": str(home)}

    def one(name: str, kill_after: int, wait: float) -> list[list[str]]:
        command = [sys.executable, "-c", WORK, name, str(round_ * CHANGES), str(home)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
            assert process.stdout is not None
            reported = []
            for line in process.stdout:
                reported.append(line.split())
                if len(reported) == kill_after:
                    time.sleep(wait)
                    process.kill()
        assert process.returncode == 0 or chance, name
        return reported

    with ThreadPoolExecutor() as threads:
        kills = [
            (chance.randrange(1, 6 * CHANGES), chance.random() / 100) if chance else (0, 0) for _ in "ab"
        ]
        return dict(zip("ab", threads.map(one, "ab", *zip(*kills, strict=True)), strict=True))


def lost(home: Path, reported: dict[str, list[list[str]]]) -> list[str]:
    """What was reported as done and is not there."""
    pairs = set(users_pairs())
    there = {
        "pair": pairs,
        "used": set(last_uses()),
        "prompt": set(PromptHistory(home).entries),
        "saved": set(),
    }
    talks = [row.name for row in conversations.listing(home)]
    for name in set(talks) & set(reported):
        there["saved"] |= {message.content.split()[0] for message in conversations.read(home, name).messages}
    missing = []
    for name, steps in reported.items():
        for kind, what in steps:
            if kind == "choice":
                kept = read_json_object(home / "chat.json").get(name, -1) >= int(what)
            elif kind == "taken":
                kept = what not in pairs
            elif kind == "deleted":
                kept = what not in talks and f"{what} ".encode() not in (home / "chats.db").read_bytes()
            else:
                kept = what in there[kind]
            if not kept:
                missing.append(f"{kind} {what}")
    return missing


def damaged(home: Path) -> list[str]:
    """Files that were set aside or cannot be read."""
    found = [str(path) for path in home.rglob("*.damaged*")]
    for path in home.rglob("*.json"):
        json.loads(path.read_text("utf-8"))
    return found


def play(home: Path, rounds: int, seed: int | None) -> tuple[int, list[str]]:
    """How many changes were reported in so many rounds, and what was lost or damaged."""
    chance = None if seed is None else random.Random(seed)
    count, wrong = 0, []
    home.mkdir(exist_ok=True)
    for round_ in range(rounds):
        numbers = range(round_ * CHANGES, (round_ + 1) * CHANGES)
        old = ["old-mine", *(f"old-{name}{n}" for n in numbers for name in "ab")]
        for name in old:
            add_pair(Pair(name, DraftKind.LOOKUP, ModelFile.at(Path("t.gguf"), 1, "a" * 64), None))
        reported = run(home, round_, chance)
        count += sum(map(len, reported.values()))
        wrong += lost(home, reported) + damaged(home)
        if "old-mine" not in set(users_pairs()):
            wrong.append("a pair that nobody took out")
    return count, wrong


@pytest.mark.parametrize("seed", [None, 1])
def test_nothing_that_was_done_is_lost_to_another_process_or_to_a_kill(tmp_path, monkeypatch, seed):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    rounds = 1 if seed is None else 2
    count, wrong = play(tmp_path / "home", rounds, seed)
    assert wrong == []
    if seed is None:
        assert count == 6 * TOGETHER + TOGETHER // 3
        assert sum(not name.startswith("old") for name in users_pairs()) == TOGETHER
