"""Show the gain of drafting on this machine: plain decoding and drafting race on one prompt, and colours show which
model wrote each token. The first run writes an enlarged demo pair, as slow as an ordinary model, into the cache folder;
`localspec rm demo` removes it. If it does not fit or shows no gain, the small demo pair races, and passes are counted.
"""

import argparse
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from localspec import demo
from localspec.cli import CANCELLED
from localspec.cli.commands.bench import compare_shown
from localspec.display import DrawnLine, obeys_sequences, print_notice, say, size_text
from localspec.errors import LocalspecError, NotEnoughMemory
from localspec.files import FileLock, alone
from localspec.gguf.enlarging import Shape, enlarge
from localspec.machine.devices import available_bytes
from localspec.models.removal import remove_enlarged_demo
from localspec.options import cache_dir

if TYPE_CHECKING:
    from localspec.measure.race import Race

PROMPT = "Why is speculative decoding faster?"
DEPTH, CONTEXT = 4, 512  # draft tokens in a cycle; context length in tokens
FREE_SHARE = 0.4  # the enlarged pair may take this share of the free memory and disk

SHAPES = tuple(Shape(1024, layers, 16, 8, 64, 4096, 2560) for layers in (24, 12))  # largest first
DRAFT_SHAPE = Shape(512, 6, 8, 4, 64, 2048, 2560)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments, because the demo has no options."""


def run(arguments: argparse.Namespace) -> int:
    if not obeys_sequences(sys.stdout):
        print_notice("the demo answers with and without drafting; the result comes within a minute")
    try:
        say(race()[2])
        print_notice("the demo knows a few texts only; `localspec pull qwen3-4b+0.6b` downloads a real pair")
    except KeyboardInterrupt:
        say("Stopped before the end of the race.", to=sys.stderr)
        return CANCELLED
    return 0


def race() -> tuple["Race", str, str]:
    """Race the enlarged pair, or the small pair if that fails. Return the race, its title, and its result in words."""
    why = "a short measurement shows no clear gain here: the CPU may be busy"
    try:
        with DrawnLine(sys.stderr) as line:
            files = enlarged(line.draw)
        for _ in range(2):
            ended, about, outcome = raced(*files)
            if ended.is_won:
                return ended, about, outcome
    except OSError as error:
        why = f"{cache_dir() / 'demo'} cannot be written: {error.strerror or error}"
    except LocalspecError as error:
        why = str(error)
    print_notice(f"{why}; the small pair runs instead, and its race counts forward passes, not seconds")
    return raced(demo.target_path(), demo.draft_path())


def raced(target: Path, draft: Path) -> tuple["Race", str, str]:
    """Answer the prompt on the CPU, with and without drafting. Ignore the user's settings for replies."""
    from localspec import api
    from localspec.chat.session import Session
    from localspec.measure.race import STALLED
    from localspec.measure.summary import this_machine

    with (
        api.load(
            target=target, draft=draft, context_length=CONTEXT, gpu_layers=0, cache_gb=0, is_use=False
        ) as opened,
        Session(opened.pair) as session,
    ):
        about = f"{session.target_name}, on the CPU; {this_machine().sentence()}"
        found, race = compare_shown(session, PROMPT, about, depth=DEPTH)
    return race, about, STALLED if race.held_up else str(found)


def enlarged(stage: Callable[[str], object]) -> tuple[Path, Path]:
    """Return the enlarged target and draft; write missing files. Raises OSError, LocalspecError."""
    folder, sources = cache_dir() / "demo", (demo.target_path(), demo.draft_path())
    version = f"{crc32(b''.join(path.read_bytes() for path in sources)):08x}"
    target, draft = (folder / f"{name}-{version}.gguf" for name in ("target", "draft"))
    memory = available_bytes() or sys.maxsize
    if target.exists() and draft.exists():
        if memory < target.stat().st_size / FREE_SHARE / 2:
            what = "too little memory is free for the enlarged demo pair"
            raise NotEnoughMemory(what, hint="close other programs and retry")
        return target, draft
    what = "another `localspec demo` is making its model files"
    with alone(FileLock(folder / ".lock"), what, "wait until it ends"):
        try:
            remove_enlarged_demo()  # remove files of other versions, and of a killed process
            free = min(memory, shutil.disk_usage(folder).free)
            sizes = [2 * (shape.parameters + DRAFT_SHAPE.parameters) for shape in SHAPES]  # bytes in F16
            fitting = [pair for pair in zip(SHAPES, sizes, strict=True) if pair[1] < FREE_SHARE * free]
            if not fitting:
                what = f"too little memory or disk is free for the demo's {size_text(sizes[-1])}"
                raise NotEnoughMemory(what, hint="free memory or disk space")
            shape, size = fitting[0]
            takes = size_text(size)
            print_notice(f"an enlarged demo pair takes {takes} in {folder}; `localspec rm demo` removes it")
            stage(f"writing {takes}")
            enlarge(sources[1], draft, DRAFT_SHAPE)
            return enlarge(sources[0], target, shape), draft
        except BaseException:
            remove_enlarged_demo()
            raise
