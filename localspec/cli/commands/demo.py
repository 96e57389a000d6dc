"""Show what drafting gains on this machine: plain decoding and drafting race on one prompt, and colours show who wrote
each token. The first time, this enlarges the small demo pair in the cache folder to the cost of an ordinary model;
`localspec rm demo` removes it. Without room for it or without a gain, the small pair runs at the pace of a large one.
"""

import argparse
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter, sleep
from typing import TYPE_CHECKING
from zlib import crc32

from localspec import demo
from localspec.cli import CANCELLED
from localspec.cli.commands.bench import write_svg
from localspec.cli.loading import StageLine
from localspec.cli.options import drawable
from localspec.display import note, obeys_sequences, say, size_text
from localspec.errors import BadSetting, LocalspecError, NotEnoughMemory
from localspec.files import FileLock
from localspec.gguf.enlarging import Shape, enlarge
from localspec.models.removal import remove_enlarged_demo
from localspec.options import cache_dir

if TYPE_CHECKING:
    from localspec.chat.session import Session
    from localspec.measure.race import Pace, Race

PROMPT = "Why is speculative decoding faster?"
DEPTH, CONTEXT = 4, 512  # tokens
FASTEST = 15.0  # tokens/s of plain decoding that eyes can follow
FREE_SHARE = 0.4  # of the memory and of the disk
TRIAL_TOKENS, LEAST_GAIN, TRIES = 16, 1.3, 2
PASS_SECONDS, DRAFT_SECONDS = 0.07, 0.014  # when the small pair is paced; a guess is made and checked
PACED = f"paced, not measured: {PASS_SECONDS * 1000:.0f} ms a pass, {DRAFT_SECONDS * 1000:.0f} ms a guess"

SHAPES = tuple(Shape(1024, layers, 16, 8, 64, 4096, 2560) for layers in (24, 12))  # of the target
DRAFT_SHAPE = Shape(512, 6, 8, 4, 64, 2048, 2560)

Stage = Callable[[str], object]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "also draw the end of the race into an SVG file"
    parser.add_argument("--svg", type=drawable, metavar="FILE", help=what)


def run(arguments: argparse.Namespace) -> int:
    from localspec.measure.race import svg

    if not obeys_sequences(sys.stdout):
        note("plain decoding and drafting race; the result comes within a minute")
    try:
        with ExitStack() as opened:
            ended, about, outcome = held(opened)
    except KeyboardInterrupt:
        say("Stopped before the end of the race.", to=sys.stderr)
        return CANCELLED
    if not obeys_sequences(sys.stdout):
        say(outcome)
    if arguments.svg:
        write_svg(arguments.svg, svg(ended.lanes, PROMPT, about, outcome))
    return 0


def held(opened: ExitStack) -> tuple["Race", str, str]:
    """Hold the race, on the enlarged pair or else on the small one; returns its end, the models and the outcome."""
    from localspec.measure.race import Pace, race

    why = "a short measurement shows no clear gain here: the CPU may be busy"
    with StageLine() as stage:
        try:
            files = enlarged(stage.show)
            stage.show("loading the enlarged pair and measuring its gain")
            sides = both(opened, *files)
            *_, trial = race(*sides, PROMPT, depth=DEPTH, max_tokens=TRIAL_TOKENS)
            tries = TRIES if trial.speedup >= LEAST_GAIN else 0
        except OSError as error:
            tries, why = 0, f"{folder()} cannot be written: {error.strerror or error}"
        except LocalspecError as error:
            tries, why = 0, str(error)
    for _ in range(tries):
        ended, about, outcome = shown(sides, None, max(1.0, trial.plain.tokens_per_second / FASTEST))
        if ended.is_won:
            return ended, about, outcome
        why = "other programs keep the processor too busy for a fair race"
    opened.close()
    note(f"{why}; so the small pair runs at the pace of a large one")
    return shown(both(opened, demo.target_path(), demo.draft_path()), Pace(PASS_SECONDS, DRAFT_SECONDS), 1.0)


def both(opened: ExitStack, target: Path, draft: Path) -> tuple["Session", "Session"]:
    """A session for plain decoding and one for drafting."""
    return loaded(opened, target, None), loaded(opened, target, draft)


def loaded(opened: ExitStack, target: Path, draft: Path | None) -> "Session":
    """A session on the CPU, without the user's settings of replies."""
    from localspec import api
    from localspec.chat.session import Session

    session = api.load(
        target=target,
        draft=draft or "lookup",
        speculate=draft is not None,
        context_length=CONTEXT,
        gpu_layers=0,
        cache_gb=0,
    )
    return opened.enter_context(Session(session.pair))


def folder() -> Path:
    """The folder of the enlarged pair."""
    return cache_dir() / "demo"


def enlarged(stage: Stage) -> tuple[Path, Path]:
    """The enlarged target and draft, written unless they are there. Raises OSError, LocalspecError."""
    sources = (demo.target_path(), demo.draft_path())
    version = f"{crc32(b''.join(path.read_bytes() for path in sources)):08x}"
    target, draft = (folder() / f"{name}-{version}.gguf" for name in ("target", "draft"))
    if target.exists() and draft.exists():
        if free_bytes() < target.stat().st_size / FREE_SHARE / 2:
            raise NotEnoughMemory("too little memory is free for the enlarged pair", hint="close programs")
        return target, draft
    lock = FileLock(folder() / ".lock")
    if not lock.try_acquire():
        raise BadSetting("another `localspec demo` is writing the enlarged pair", hint="wait for it")
    try:
        remove_enlarged_demo()  # other versions, and what a killed process half wrote
        free = min(free_bytes(), shutil.disk_usage(folder()).free)
        shape = next((shape for shape in SHAPES if bytes_of(shape) < FREE_SHARE * free), None)
        if shape is None:
            what = f"too little memory or disk is free for {size_text(bytes_of(SHAPES[-1]))}"
            raise NotEnoughMemory(what, hint="free some")
        size = size_text(bytes_of(shape) + bytes_of(DRAFT_SHAPE))
        note(f"the demo pair is enlarged to {size} in {folder()}; `localspec rm demo` removes it")
        stage(f"writing {size}")
        enlarge(sources[1], draft, DRAFT_SHAPE)
        return enlarge(sources[0], target, shape), draft
    except BaseException:
        remove_enlarged_demo()
        raise
    finally:
        lock.release()


def bytes_of(shape: Shape) -> int:
    """The size of a model of this shape in F16."""
    return 2 * shape.parameters


def free_bytes() -> int:
    """Memory for the models; plenty if that is unknown."""
    from localspec.health.devices import available_bytes

    return available_bytes() or sys.maxsize


def shown(sides: tuple["Session", "Session"], pace: "Pace | None", slower: float) -> tuple["Race", str, str]:
    """Draw the race while it runs, if there is a terminal; returns its end, the models and the outcome."""
    from rich.live import Live

    from localspec.measure.race import Race, picture, race
    from localspec.measure.summary import this_machine

    about = f"{sides[1].target_name}, on the CPU; {this_machine().sentence()}"
    live_about = f"Slowed down {slower:.1f} times, so that you can follow. {about}" if slower > 1 else about
    steps, now = race(*sides, PROMPT, pace, depth=DEPTH), Race()
    if not obeys_sequences(sys.stdout):
        *_, now = steps
        return now, about, outcome_of(now, pace)
    with Live(auto_refresh=False) as live:
        drawn = perf_counter()
        for step in steps:
            due = (step.seconds - now.seconds) * slower
            now = step
            sleep(max(0.0, drawn + due - perf_counter()))
            drawn = perf_counter()
            live.update(picture(now.lanes, PROMPT, live_about), refresh=True)
        outcome = outcome_of(now, pace)
        live.update(picture(now.lanes, PROMPT, live_about, outcome), refresh=True)
    return now, about, outcome


def outcome_of(ended: "Race", pace: "Pace | None") -> str:
    from localspec.measure.race import STOOD_STILL, headline

    if ended.held_up:
        return STOOD_STILL
    seconds = ended.plain.seconds, ended.drafting.seconds
    return headline(ended.speedup, ended.identical, seconds, ended.stats, PACED if pace else "")
