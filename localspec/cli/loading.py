"""Choose the pair of a command, fetch it if the user agrees, load it, and show each stage."""

import argparse
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from localspec.cli.options import load_options, pair_of
from localspec.display import DrawnLine, print_notice
from localspec.errors import NotOnDisk
from localspec.options import configured

if TYPE_CHECKING:
    from localspec.api import Session
    from localspec.engine.client import EngineSession
    from localspec.engine.messages import LoadPair
    from localspec.models.registry import Pair


def chosen_pair(arguments: argparse.Namespace, *, leave_missing: bool = False) -> "Pair":
    """Return the pair that the command names, else the configured pair, else the pair used last.

    Offer to fetch missing files. `leave_missing`: make no offer, and return a known pair even without its files.
    Raises the errors of `names.find`.
    """
    from localspec.models.download import PairNotOnDisk
    from localspec.models.local_models import last_uses
    from localspec.models.names import find
    from localspec.models.registry import DEMO

    name, target, draft = pair_of(arguments), arguments.target, arguments.draft
    is_named = name is not None or target is not None
    wanted = name if is_named else configured().get("pair"), target, draft
    try:
        pair = find(*wanted)
    except NotOnDisk as missing:
        if leave_missing and isinstance(missing, PairNotOnDisk):
            return missing.pair
        from localspec.cli.fetching import fetch_if_wanted

        fetch_if_wanted(missing, target or name, draft, pull=arguments.pull)
        return find(*wanted)
    if pair.found and not (pair.draft or draft or arguments.no_draft) and pair.used_as not in last_uses():
        from localspec.cli.fetching import suggest_draft

        pair = suggest_draft(pair)
    if wanted[:2] == (None, None):
        uses = last_uses()
        last_used = max(uses, key=lambda used: uses[used], default="")
        if pair.name != DEMO and pair.used_as != last_used:  # the demo prints another notice
            print_notice(f"{pair.name} answers, because you used or downloaded it last")
    return pair


def load_request(
    arguments: argparse.Namespace, *, leave_missing: bool = False, **changes: float | str
) -> "LoadPair":
    """Return the request that loads the pair in the engine process; `changes` override the user's options.

    With --no-store no prompt cache is written to disk.
    """
    from localspec.engine.messages import LoadPair

    stores = {"cache_gb": 0} if vars(arguments).get("store") is False else {}
    options = load_options(arguments) | stores | changes
    pair = chosen_pair(arguments, leave_missing=leave_missing)
    return LoadPair(pair, options, speculate=not arguments.no_draft)


def open_session(arguments: argparse.Namespace) -> "Session":
    """Load the pair in this process for a measurement, without prompt caches on disk."""
    from localspec import api

    pair, options = chosen_pair(arguments), load_options(arguments) | {"cache_gb": 0}
    with DrawnLine(sys.stderr) as line:
        return api.load(pair, speculate=not arguments.no_draft, is_use=False, on_stage=line.draw, **options)


def open_engine_session(arguments: argparse.Namespace) -> "EngineSession":
    from localspec.engine.client import EngineProcess, EngineSession
    from localspec.engine.spawn import take_early

    request = replace(load_request(arguments), spare_cores=0)
    session = EngineSession(EngineProcess(started=take_early()))
    try:
        with DrawnLine(sys.stderr) as line:
            session.load(request, line.draw)
    except BaseException:
        session.close()
        raise
    return session


def names_of(session: "Session | EngineSession") -> dict[str, str]:
    return {"pair": session.name, "target": session.target_name, "draft": session.draft_name}


@contextmanager
def stop_on_interrupt(session: "Session | EngineSession | None" = None) -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C sets; Ctrl-C also cancels the running reply of `session`."""
    stopped = threading.Event()

    def stop(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        stopped.set()
        if session:
            session.cancel()

    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:  # a background job, which ignores Ctrl-C
        yield stopped
        return
    signal.signal(signal.SIGINT, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)
