"""Sends random command lines, environments and files through the command line, in processes that may die of them.

    python -m tests.cli.fuzz [--cases 20000] [--first 0] [--seed 1]     # POSIX; prints the cases that failed

A case fails by a traceback, a report of a mistake of localspec's own, an unknown exit code, a death or a hang.
"""

import argparse
import contextlib
import io
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from tests.cli.fuzz_cases import FITTING, NAMES, NUMBERS, Case, Options, case
from tests.gguf import Shape, write_gguf
from tests.gguf.mutations import by_meaning, taken_apart
from tests.pairs.hub import Hub

CODES = {0, 1, 2, 3, 130}
HANG_SECONDS = 120.0  # on a busy machine
MISTAKE = "localspec made a mistake"
_ADD_LATER = ("--target", "org/later:target.gguf", "--draft", "org/draft:draft.gguf")
_SETTLING = (
    ("run", "Hi", "--max-tokens", "2", "--pair", "demo"),
    ("run", "Hi", "--max-tokens", "2", "--target", "good.gguf", "--draft", "good.gguf"),
    ("pairs", "add", "mine", "--target", "good.gguf", "--draft", "good.gguf"),
    ("pairs", "add", "tiny", "--target", "org/target:target.gguf", "--draft", "org/draft:draft.gguf"),
    ("pairs", "add", "later", *_ADD_LATER),
    ("pairs", "add", "self", "--target", "org/later:target.gguf", "--draft", "org/later:target.gguf"),
    ("pull", "tiny"),
    *(
        ("bench", "demo", "--runs", "1", "--only", "json", "--max-tokens", "24", "--threads", "1"),
        ("doctor",),
    ),
)


@dataclass
class World:
    """What all cases have in common: a folder with files, a home to copy, a Hub."""

    folder: Path
    hub: Hub
    options: Options
    mutations: list[bytes]

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def case(self, number: int, seed: int) -> Case:
        return case(number, seed, self.options, self.mutations)


@contextlib.contextmanager
def world(folder: Path, cache: Path | None = None) -> Iterator[World]:
    """`cache`: what was found out about this machine before."""
    if cache:
        shutil.copytree(cache, folder / "home" / "cache")
        shutil.copytree(folder / "home", folder / "before")
    work = folder / "work"
    (work / "folder").mkdir(parents=True)
    (work / "words.txt").write_text("some words\n" * 9)
    (work / "bytes.bin").write_bytes(bytes(range(256)))
    (work / "loop").symlink_to("loop")
    good = write_gguf(work / "good.gguf", Shape(vocab_size=400, layers=1, context_length=256))
    larger = write_gguf(folder / "larger.gguf", Shape(vocab_size=400, layers=2, context_length=256))
    raw = taken_apart(good)
    (work / "vocabulary.gguf").write_bytes(replace(raw, tensors=(), data=b"").written())
    with Hub() as hub:
        hub.add("org/target", "target.gguf", good)
        hub.add("org/draft", "draft.gguf", good)
        hub.add("org/later", "target.gguf", larger)
        made = World(folder, hub, _options(), [mutation.written() for mutation in by_meaning(raw)])
        _settle(made)
        yield made


def _options() -> Options:
    from localspec.cli.program import parser

    commands = next(action.choices for action in parser()._actions if action.dest == "command")
    return {
        name: {
            flag: _fitting(flag, action)
            for action in command._actions
            for flag in action.option_strings
            if flag not in ("-h", "--help")
        }
        for name, command in commands.items()
        if name != "serve"  # which runs until it is stopped
    }


def _fitting(flag: str, action: argparse.Action) -> tuple[str, ...]:
    if action.nargs == 0:
        return ()
    return FITTING.get(flag) or (NUMBERS if action.type in (int, float) else (*NAMES, *NUMBERS))


def _settle(world: World) -> None:
    """A home that has been used: the files that localspec writes, for the cases to damage."""
    before = world.folder / "before"
    process = os.fork()
    if process == 0:
        with _exit_code():
            for words in _SETTLING:
                code, problem = run(Case(list(words), {"LOCALSPEC_REMEMBER_LOGITS": "1"}), world)
                assert (code, problem) == (0, ""), (words, problem)
                shutil.rmtree(before, ignore_errors=True)
                shutil.copytree(world.home, before)
    assert os.waitpid(process, 0)[1] == 0


@contextlib.contextmanager
def _exit_code() -> Iterator[NoReturn]:
    """Ends the process: with 0, or with 1 and what was raised."""
    try:
        yield  # type: ignore[misc]
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def run(given: Case, world: World) -> tuple[object, str]:
    """The exit code of a command line, and what is wrong with how it ended; "" for nothing."""
    from huggingface_hub import close_session

    from localspec.cli import main
    from localspec.models import hub

    hub.sleep = lambda *_: None  # type: ignore[assignment]
    close_session()
    _prepare(given, world)
    out, err = (_Stream(given) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _replaced(given, world):
        try:
            code: object = main(given.words)
        except BaseException as error:  # noqa: BLE001
            code = repr(error)
    told = out.told() + err.told()
    wrong = code not in CODES or "Traceback" in told or MISTAKE in told
    return code, f"{code}: {told[-600:]}{_reports(world)}" if wrong else ""


class _Stream(io.TextIOWrapper):
    def __init__(self, given: Case) -> None:
        super().__init__(io.BytesIO(), encoding=given.encoding)
        self._terminal = given.terminal

    def isatty(self) -> bool:
        return self._terminal

    def told(self) -> str:
        self.flush()
        return self.buffer.getvalue().decode(self.encoding, "replace")  # type: ignore[attr-defined,no-any-return]


def _reports(world: World) -> str:
    return "".join("\n" + path.read_text("utf-8") for path in world.home.glob("data/reports/*"))[-1500:]


def _prepare(given: Case, world: World) -> None:
    shutil.rmtree(world.home, ignore_errors=True)
    before = world.folder / "before"
    if before.is_dir():
        shutil.copytree(before, world.home)
    for pattern, content in given.files.items():
        parent, _, name = pattern.rpartition("/")
        folder = world.home / parent
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob(name) if "*" in name else [folder / name]:
            with contextlib.suppress(OSError):
                path.unlink()
            if content is None:
                path.mkdir(exist_ok=True)
            elif not path.is_dir():
                path.write_bytes(content)
    for pattern, (which, value) in given.edits.items():
        for path in world.home.glob(pattern):
            with contextlib.suppress(OSError, ValueError):  # another damage came first
                path.write_text(json.dumps(_edited(json.loads(path.read_text("utf-8")), which, value)))


def _edited(document: object, which: float, value: object) -> object:
    """JSON with one of its values replaced, however deep it lies."""
    if not isinstance(document, dict | list) or not document or which < 0.1:
        return value
    keys = list(document) if isinstance(document, dict) else list(range(len(document)))
    place, deeper = divmod((which - 0.1) / 0.9 * len(keys), 1)
    key = keys[int(place)]
    document[key] = _edited(document[key], deeper, value)  # type: ignore[index]
    return document


@contextlib.contextmanager
def _replaced(given: Case, world: World) -> Iterator[None]:
    """The environment, the folder and standard input of a case."""
    environment, stdin = dict(os.environ), sys.stdin
    for name in environment:
        if name.startswith(("HF_", "LOCALSPEC_")) or name.upper().endswith("_PROXY"):
            del os.environ[name]
    os.environ |= {
        "HOME": str(world.folder),
        "LOCALSPEC_HOME": str(world.home),
        "HF_ENDPOINT": world.hub.endpoint,
        "HF_HOME": str(world.folder / "hf"),
        **given.environment,
    }
    sys.stdin = io.TextIOWrapper(io.BytesIO(given.piped))
    os.chdir(world.folder / "work")
    try:
        yield
    finally:
        sys.stdin = stdin
        os.environ.clear()
        os.environ.update(environment)


def failures(numbers: range, seed: int, world: World) -> Iterator[str]:
    """Run cases in a process of their own, a fresh one after a death or a hang; what went wrong, with the case."""
    first = numbers.start
    while first < numbers.stop:
        reader, writer = os.pipe()
        process = os.fork()
        if process == 0:
            with _exit_code():
                _run_all(range(first, numbers.stop), seed, world, writer)
        os.close(writer)
        with os.fdopen(reader, "rb", buffering=0) as told:
            for number, problem in _heard(told, process):
                first = number + 1
                if problem:
                    yield f"case {number}: {world.case(number, seed)}\n{problem}"
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if first < numbers.stop:
            yield f"case {first}: {world.case(first, seed)}\nthe process ended with {status}"
            first += 1


def _run_all(numbers: range, seed: int, world: World, writer: int) -> None:
    for number in numbers:
        _, problem = run(world.case(number, seed), world)
        os.write(writer, json.dumps([number, problem]).encode() + b"\n")


def _heard(told: io.RawIOBase, process: int) -> Iterator[tuple[int, str]]:
    """What the process reports; it is killed when it is silent for too long."""
    left = b""
    while True:
        if not select.select([told], [], [], HANG_SECONDS)[0]:
            os.kill(process, signal.SIGKILL)
        piece = told.read(1 << 16)
        if not piece:
            return
        *lines, left = (left + piece).split(b"\n")
        yield from map(json.loads, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cache", type=Path, help="of a home in which llama.cpp was found to work")
    options = parser.parse_args()
    numbers = range(options.first, options.first + options.cases)
    with tempfile.TemporaryDirectory() as folder, world(Path(folder), options.cache) as shared:
        found = list(failures(numbers, options.seed, shared))
    print(*found, f"{len(numbers)} cases, {len(found)} failed", sep="\n\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
