"""Loads a pair for a command: chooses it, fetches it if wanted, and shows each stage."""

import argparse
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

from localspec.cli.options import load_options
from localspec.display import DrawnLine, note

if TYPE_CHECKING:
    from localspec.api import Session
    from localspec.engine.client import EngineSession
    from localspec.models.registry import Pair

_TOLD_FROM = 3  # seconds of a stage, from which its time is shown


def wanted(arguments: argparse.Namespace, **changes: float) -> dict[str, Any]:
    """Options of `localspec.load`; without a named pair the configured one, if there is one."""
    from localspec.options import configured

    options = load_options(arguments) | changes | {"rpc": configured(rpc=arguments.rpc).get("rpc")}
    if not {"pair", "target"} & options.keys():
        options["pair"] = configured().get("pair")
    return options


def wanted_here(arguments: argparse.Namespace, **changes: float) -> dict[str, Any]:
    """The same with a pair, which is fetched if the user wants it. Raises what `find` raises."""
    from localspec.cli.fetching import fetch_if_wanted
    from localspec.models.names import PairNotOnDisk, asked_as, find

    options = wanted(arguments, **changes)
    draft = options.get("draft") if options["speculate"] else "lookup"
    try:
        found = find(options.get("pair"), options.get("target"), draft)
    except PairNotOnDisk as missing:
        fetch_if_wanted(missing, pull=arguments.pull)
        return options
    if options.get("pair") or "target" in options:
        return options
    tell_default(found)
    return options | asked_as(found)


def tell_default(pair: "Pair") -> None:
    """Name the pair that nobody named, unless it is the one used last; the demo has a note of its own."""
    from localspec.models.names import used_as
    from localspec.models.places import last_uses
    from localspec.models.registry import DEMO

    uses = last_uses()
    if pair.name != DEMO and used_as(pair) != max(uses, key=lambda used: uses[used], default=""):
        note(f"{pair.name} answers: the pair that you used or fetched last")


def open_session(arguments: argparse.Namespace) -> "Session":
    """Load the pair for a measurement: nothing of it is stored."""
    from localspec import api

    options = wanted_here(arguments, cache_gb=0)
    with StageLine() as stage:
        return api.load(**options, on_stage=stage.show)


def open_engine_session(arguments: argparse.Namespace) -> "EngineSession":
    """Load the pair in the engine process; with --no-store nothing is remembered."""
    from localspec.engine.client import EngineProcess, EngineSession
    from localspec.engine.spawn import take_early

    options = wanted_here(arguments, **({"cache_gb": 0} if arguments.store is False else {}))
    session = EngineSession(EngineProcess(started=take_early()))
    try:
        with StageLine() as stage:
            session.load(stage.show, spare_cores=0, **options)
    except BaseException:
        session.close()
        raise
    return session


def names_of(session: "Session | EngineSession") -> dict[str, str]:
    """Facts of the pair and its models, for JSON."""
    return {"pair": session.name, "target": session.target_name, "draft": session.draft_name}


class StageLine(AbstractContextManager["StageLine"]):
    """The stage of loading and its time, on one line of a terminal."""

    def __init__(self) -> None:
        self._line = DrawnLine(sys.stderr)
        self._stage, self._began = "", 0.0
        self._over = threading.Event()
        self._drawing = threading.Lock()
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def show(self, stage: str) -> None:
        """A new stage, or progress of the same one behind its first colon."""
        with self._drawing:
            if stage.partition(":")[0] != self._stage.partition(":")[0]:
                self._began = monotonic()
            self._stage = stage
            self._draw()
        if not self._thread.is_alive() and not self._over.is_set():
            self._thread.start()

    def _draw(self) -> None:
        seconds = monotonic() - self._began
        self._line.draw(f"{self._stage}  {seconds:.0f} s" if seconds >= _TOLD_FROM else self._stage)

    def _tick(self) -> None:
        while not self._over.wait(1.0):
            with self._drawing:
                if not self._over.is_set():
                    self._draw()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with self._drawing:
            self._line.clear()


@contextmanager
def stop_on_interrupt(session: "Session | EngineSession | None" = None) -> Iterator[threading.Event]:
    """Cancel the reply that runs, if there is one, and set the event."""
    stopped = threading.Event()

    def stop(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        stopped.set()
        if session:
            session.cancel()

    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:  # a job in the background
        yield stopped
        return
    signal.signal(signal.SIGINT, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)
