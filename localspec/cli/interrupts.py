"""Ctrl-C: the first one ends what runs and keeps what there is, the second one interrupts as usual."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from localspec.cli import CANCELLED as CANCELLED

if TYPE_CHECKING:
    from localspec.api import Session
    from localspec.engine.session import EngineSession


@contextmanager
def stop_on_interrupt(session: "Session | EngineSession | None" = None) -> Iterator[threading.Event]:
    """Cancel the reply that runs, if there is one, and set the event."""
    stopped = threading.Event()

    def stop(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        stopped.set()
        if session:
            session.cancel()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)
