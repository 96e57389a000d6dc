"""Random command lines, environments and files for the command line, in processes that may die of them."""

import argparse
import contextlib
import io
import json
import os
import random
import select
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.settings import Settings
from tests.gguf import Shape, write_gguf
from tests.models.hub import Hub
from tests.models.mutations import by_meaning, taken_apart

CODES = {0, 1, 2, 130}
HANG_SECONDS = 180.0  # on a busy machine
MISTAKE = "localspec made a mistake"

WORDS = (
    *(
        "",
        "-",
        "--",
        "0",
        "1",
        "-1",
        "7",
        "0.5",
        "-0.1",
        "1e9",
        "nan",
        "inf",
        "99999999999999999999",
        "auto",
        "x y",
    ),
    *(
        "demo",
        "tiny",
        "mine",
        "qwen3-4b+0.6b",
        "gemma-4-e2b+mtp",
        "Demo ",
        "lookup",
        "CPU",
        "CUDA0",
        "q8_0",
        "f16",
    ),
    *(
        "a\0b",
        "\udcff",
        "\x1b[2J",
        "漢字",
        "x" * 5000,
        "~nobody-here/x",
        "~",
        "/",
        "/dev/null",
        "..",
        "C:\\x.gguf",
    ),
    *(
        "org/target:target.gguf",
        "org/draft:draft.gguf",
        "org/target:nothing.gguf",
        "no/body:x.gguf",
        "a--b/c:x.gguf",
    ),
    *(
        "https://huggingface.co/org/target/resolve/main/target.gguf",
        "hf.co/org/target",
        "org/target:../x.gguf",
    ),
    *("good.gguf", "bad.gguf", "folder", "words.txt", "bytes.bin", "missing.gguf", "loop", "vocabulary.gguf"),
    *('{"type": "object"}', '{"type": 5}', "[1,", "(a", "[a-z]{1,3}", "root ::= 'a'", "null", '{"a": ' * 500),
    *("code", "chat,json", "0,0.8", "1,2", "a,b", "greedy", "coupled", "compare", "7,7,7", "100,0", ","),
)
EARNEST = ("run", "run", "info", "info", "pull", "pairs", "rm", "bench", "compare", "tune")
FEW = (
    "good.gguf",
    "bad.gguf",
    "demo",
    "tiny",
    "mine",
    "org/target:target.gguf",
    "1",
    "0",
    "2",
    "0.5",
    "words.txt",
)
NUMBERS = ("0", "1", "2", "4", "-1", "0.5", "0,0.8", "1e9", "nan", "inf", "70000", "9" * 12, "9" * 30, "auto")
# So that a command that begins in earnest ends soon; the last one of an option counts.
SHORT = {
    "run": ("--max-tokens", "2", "--threads", "1"),
    "compare": ("--max-tokens", "2", "--runs", "1", "--threads", "1"),
    "bench": ("--max-tokens", "2", "--seconds", "0.1", "--threads", "1"),
    "tune": ("--seconds", "0.1", "--threads", "1"),
    "verify": ("--seconds", "1", "--threads", "1"),
}
PROXIES = (
    "",
    "socks5://127.0.0.1:9",
    "socks4://x",
    "http://127.0.0.1:9",
    "http://[bad",
    "nonsense",
    "http://a:b:c",
)
VARIABLES: dict[str, tuple[str, ...]] = {
    **{
        f"LOCALSPEC_{name.upper()}": (*NUMBERS * 4, *FEW, *(word for word in WORDS if "\0" not in word))
        for name in Settings.__slots__
    },
    **dict.fromkeys(("ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"), PROXIES),
    "LOCALSPEC_HOME": ("", "~nobody-here", "words.txt/x", "/dev/null/x", "loop", "x" * 300, "new", "\udcff"),
    "LOCALSPEC_TEMPRATURE": ("1",),
    "HF_TOKEN": ("", "hf_x", "hf_ü", "a b", "\udcff", "x" * 9000),
    "HF_ENDPOINT": ("", "127.0.0.1:9", "http://127.0.0.1:9", "http://[bad", "ftp://x", "\udcff"),
    "HF_HOME": ("", "words.txt", "new", "~nobody-here/x"),
    "HF_HUB_CACHE": ("words.txt", "loop", "~nobody-here/x", "x" * 300),
    "SSL_CERT_FILE": ("missing", "words.txt", "folder"),
    "XDG_CACHE_HOME": ("words.txt", "", "relative"),
    "COLUMNS": ("0", "-5", "1", "999999", "x"),
    "TERM": ("dumb", ""),
    "LANG": ("C", "xx"),
}
VALUES: tuple[object, ...] = (
    *(
        None,
        True,
        0,
        -1,
        10**30,
        1.5,
        float("nan"),
        "",
        "x",
        "\udcff",
        [],
        {},
        [1, "a", None],
        {"a": {"b": []}},
    ),
    *(
        {"name": "x", "kind": "cpu", "free": "a", "total": []},
        [{"name": 5}],
        {"demo": "soon"},
        {"demo": 1e300},
    ),
)


@dataclass(frozen=True)
class Case:
    """One command line with its surroundings; equal seeds give equal cases."""

    words: list[str]
    environment: dict[str, str]
    files: dict[str, bytes | None]  # below the home; None is a folder in its place
    piped: bytes = b""
    encoding: str = "utf-8"


@dataclass
class World:
    """What all cases have in common: a folder with files, a home to copy, a Hub."""

    folder: Path
    hub: Hub
    options: dict[str, dict[str, tuple[str, ...]]]  # of each command, with values that fit; none for switches
    mutations: list[bytes]

    @property
    def home(self) -> Path:
        return self.folder / "home"


@contextlib.contextmanager
def world(folder: Path) -> Iterator[World]:
    from localspec.cli import parser

    commands = next(action.choices for action in parser()._actions if action.dest == "command")
    options = {
        name: {
            flag: _kinds(action)
            for action in command._actions
            for flag in action.option_strings[1:] or action.option_strings
            if flag != "--help"
        }
        for name, command in commands.items()
    }
    work = folder / "work"
    (work / "folder").mkdir(parents=True)
    (work / "words.txt").write_text("some words\n" * 9)
    (work / "bytes.bin").write_bytes(bytes(range(256)))
    (work / "loop").symlink_to("loop")
    good = write_gguf(work / "good.gguf", Shape(vocab_size=400, layers=1, context_length=256))
    raw = taken_apart(good)
    (work / "vocabulary.gguf").write_bytes(replace(raw, tensors=(), data=b"").written())
    with Hub() as hub:
        hub.add("org/target", "target.gguf", good)
        hub.add("org/draft", "draft.gguf", good)
        yield World(folder, hub, options, [mutation.written() for mutation in by_meaning(raw)])


def _kinds(action: argparse.Action) -> tuple[str, ...]:
    if action.nargs == 0:
        return ()
    return NUMBERS if action.type in (int, float) or action.metavar in ("N", "S", "K", "T", "P", "X") else FEW


def case(number: int, seed: int, world: World) -> Case:
    chance = random.Random(f"{seed} {number}")
    command = chance.choice((*world.options, *EARNEST))
    words = [command] if chance.random() < 0.99 else []
    if command == "pairs" and chance.random() < 0.7:
        words += ["add", chance.choice(WORDS), "--target", chance.choice(FEW), "--draft", chance.choice(FEW)]
    elif chance.random() < 0.7:
        words.append(chance.choice((*FEW, *WORDS)))
    for _ in range(chance.choice((0, 0, 1, 1, 2, 3, 6))):
        flag, kinds = chance.choice(list(world.options[command].items()))
        words.append(flag if chance.random() < 0.95 else chance.choice(WORDS))
        if kinds:
            words.append(chance.choice(kinds if chance.random() < 0.8 else WORDS))
    words += SHORT.get(command, ())
    environment = {
        name: chance.choice(VARIABLES[name])
        for name in chance.sample(sorted(VARIABLES), chance.choice((0, 0, 1, 2)))
    }
    files = {name: _content(name, chance) for name in chance.sample(FILES, chance.choice((0, 0, 1, 2)))}
    if "bad.gguf" in words:
        files["../work/bad.gguf"] = chance.choice(world.mutations)
    piped = chance.choice((b"", b"", b"some text", b"\x80\xff", b"\0", b"\n\n"))
    return Case(words, environment, files, piped, chance.choice(("utf-8", "ascii", "cp1252")))


# What localspec reads below its home; a star is whatever an earlier run has written there.
FILES = (
    *(
        "config.toml",
        "models.toml",
        "config.toml",
        "models.toml",
        "data/last-used.json",
        "data/speedups.json",
    ),
    *(
        "cache/devices.json",
        "data/stamps/*",
        "cache/memory/*",
        "data/lessons/*",
        "data/bench/*",
        "data/replies/*",
    ),
)


def _content(name: str, chance: random.Random) -> bytes | None:
    kind = chance.random()
    if kind < 0.1:
        return None
    if kind < 0.25:
        return bytes(chance.randrange(256) for _ in range(chance.randrange(60)))
    if name.endswith("toml"):
        return chance.choice(_TOML)(chance).encode("utf-8", "surrogatepass")
    return json.dumps(chance.choice(VALUES)).encode()


def _setting(chance: random.Random) -> str:
    name = chance.choice((*Settings.__slots__, "tempratur"))
    return f"{name} = {json.dumps(chance.choice((None, *VALUES)), ensure_ascii=False)}\n"


def _pair(chance: random.Random) -> str:
    def value() -> str:
        return json.dumps(chance.choice(WORDS))

    lines = ["[[pair]]", f"name = {chance.choice((value(), json.dumps('mine')))}"]
    lines += [
        f"{key} = {chance.choice((value(), '5', '-5', '[]', 'true'))}"
        for key in ("use", "context", "kind")[:1]
    ]
    for role in ("target", "draft"):
        lines += [f"[pair.{role}]", f"path = {value()}"]
    return "\n".join(lines) + "\n"


_TOML: tuple[Callable[[random.Random], str], ...] = (
    _setting,
    _pair,
    lambda _: "[[pair",
    lambda _: "a = 1\na = 2\n",
)


def run(given: Case, world: World) -> str:
    """What is wrong with how a command line ended; "" for nothing."""
    from huggingface_hub import close_session

    from localspec.cli import main
    from localspec.models.hub import Patience

    Patience.pause = lambda *_: None  # type: ignore[method-assign]
    close_session()
    _prepare(given, world)
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=given.encoding) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _replaced(given, world):
        try:
            code: object = main(given.words)
        except BaseException as error:  # noqa: BLE001
            code = repr(error)
    out.flush()
    err.flush()
    told = (out.buffer.getvalue() + err.buffer.getvalue()).decode(given.encoding, "replace")  # type: ignore[attr-defined]
    if code in CODES and "Traceback" not in told and MISTAKE not in told:
        return ""
    return f"{code}: {told[-600:]}"


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


@contextlib.contextmanager
def _replaced(given: Case, world: World) -> Iterator[None]:
    """The environment, the folder and standard input of a case."""
    environment, stdin = dict(os.environ), sys.stdin
    for name in [
        name for name in os.environ if name.startswith(("HF_", "LOCALSPEC_")) or name.endswith("_PROXY")
    ]:
        del os.environ[name]
    fixed = {"HOME": str(world.folder), "LOCALSPEC_HOME": str(world.home), "HF_ENDPOINT": world.hub.endpoint}
    os.environ.update(
        {**fixed, "HF_HOME": str(world.folder / "hf"), "HF_HUB_DISABLE_XET": "1", **given.environment}
    )
    sys.stdin = io.TextIOWrapper(io.BytesIO(given.piped))
    os.chdir(world.folder / "work")
    try:
        yield
    finally:
        sys.stdin = stdin
        os.environ.clear()
        os.environ.update(environment)


def failures(
    numbers: range, seed: int, world: World, on_step: Callable[[int], None] = lambda _: None
) -> Iterator[str]:
    """Run cases in a process of their own, a fresh one after a death or a hang; what went wrong, with the case."""
    first = numbers.start
    while first < numbers.stop:
        reader, writer = os.pipe()
        process = os.fork()
        if process == 0:
            _run_all(range(first, numbers.stop), seed, world, writer)
        os.close(writer)
        died_at = first
        with os.fdopen(reader, "rb", buffering=0) as told:
            for number, problem in _heard(told, process):
                died_at = number
                on_step(number)
                if problem:
                    yield f"case {number}: {case(number, seed, world)}\n{problem}"
        _, status = os.waitpid(process, 0)
        if status == 0:
            return
        code = os.waitstatus_to_exitcode(status)
        yield f"case {died_at}: {case(died_at, seed, world)}\nthe process ended with {code}"
        first = died_at + 1


def _run_all(numbers: range, seed: int, world: World, writer: int) -> None:
    try:
        for number in numbers:
            os.write(writer, json.dumps([number, ""]).encode() + b"\n")
            problem = run(case(number, seed, world), world)
            if problem:
                os.write(writer, json.dumps([number, problem]).encode() + b"\n")
    finally:
        os._exit(0)


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
        for line in lines:
            number, problem = json.loads(line)
            yield number, problem


def settle(world: World) -> None:
    """A home that has been used: the files that localspec writes, for the cases to damage."""
    for words in (
        ["run", "Hi", "--max-tokens", "2", "--pair", "demo"],
        ["run", "Hi", "--max-tokens", "2", "--target", "good.gguf", "--draft", "good.gguf"],
        ["pairs", "add", "mine", "--target", "good.gguf", "--draft", "good.gguf"],
        ["pairs", "add", "tiny", "--target", "org/target:target.gguf", "--draft", "org/draft:draft.gguf"],
        [
            "bench",
            "demo",
            "--runs",
            "1",
            "--only",
            "json",
            "--temperature",
            "0",
            "--max-tokens",
            "24",
            "--threads",
            "1",
        ],
        ["doctor"],
        ["info", "demo"],
    ):
        process = os.fork()
        if process == 0:
            with contextlib.suppress(BaseException):
                problem = run(Case(words, {"LOCALSPEC_REMEMBER_REPLIES": "1"}, {}), world)
                if not problem and world.home.is_dir():
                    shutil.rmtree(world.folder / "before", ignore_errors=True)
                    shutil.copytree(world.home, world.folder / "before")
            os._exit(0)
        os.waitpid(process, 0)
