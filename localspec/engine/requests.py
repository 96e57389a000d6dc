"""Does in the engine process what requests ask for, with a session of `localspec.api`."""

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from localspec import api
from localspec.engine import answering
from localspec.engine.messages import (
    Answer,
    Compared,
    CompareReplies,
    Describe,
    Detokenize,
    Difference,
    LoadPair,
    LoadStage,
    Ready,
    Render,
    Report,
    Request,
    Stopped,
    Tokenize,
)
from localspec.errors import BadSetting
from localspec.events import Finished, Notice
from localspec.health.check import remember_trial, try_without_extra_buffers
from localspec.health.servers import addresses_of, answering_servers

if TYPE_CHECKING:
    from localspec.measure.compare import Comparison

Send = Callable[[Report], None]
Cancelled = Callable[[], bool]
MANY_CORES = 4  # from here on one core is left to the terminal; with fewer, the models need them all


class Warnings(logging.Handler):
    """Warnings of the program and its libraries, for notices: nobody sees this process's stderr."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._texts: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self._texts[record.getMessage()] = None

    def told_before_the_end(self, send: Send) -> Send:
        def sent(report: Report) -> None:
            if isinstance(report, Finished):
                for text in list(self._texts):
                    send(Notice(text))
                self._texts.clear()
            send(report)

        return sent


class PairRequests:
    """Holds one loaded pair. One thread calls everything but `perform` of requests that run beside others."""

    def __init__(self) -> None:
        self._session: api.Session | None = None
        self._warnings = Warnings()
        logging.getLogger().addHandler(self._warnings)
        self._asking = threading.Lock()  # held while a question is answered beside what runs

    def perform(self, request: Request, send: Send, cancelled: Cancelled) -> None:
        """Carry out a request, sending reports; return soon after `cancelled` turns true."""
        match request:
            case LoadPair():
                self._load(request, send)
            case Answer():
                answering.answer(self._loaded(), request, self._warnings.told_before_the_end(send), cancelled)
                remember_trial()
            case Render() | Tokenize() | Detokenize() | Describe():
                with self._asking:
                    found = answering.told(self._loaded(), request)
                send(found)
            case CompareReplies():
                self._compare(request, send, cancelled)

    def runs_beside(self, request: Request) -> bool:
        """Questions to the loaded pair, whose vocabulary is only read."""
        return isinstance(request, Render | Tokenize | Detokenize) and self._session is not None

    def rest(self, awaited: Callable[[], bool]) -> None:
        """Measure what batches cost, once for a pair, while its first reply is being read."""
        if self._session is not None:
            self._session.calibrate(stop=awaited)

    def close(self) -> None:
        with self._asking:
            if self._session is not None:
                self._session.close()

    def _load(self, request: LoadPair, send: Send) -> None:
        began = time.monotonic()
        if request.died_of:
            try_without_extra_buffers(request.died_of)
        options = dict(request.options)
        if not request.rpc_required:
            options = without_lost_servers(options, send)
        self._session = session = api.load(
            request.pair,
            target=request.target,
            draft=request.draft,
            speculate=request.speculate,
            spare_cores=request.spare_cores if api.default_threads() >= MANY_CORES else 0,
            on_stage=lambda stage: send(LoadStage(stage)),
            **options,
        )
        seconds = time.monotonic() - began
        send(Ready(session.name, session.target_name, session.draft_name, session.context_length, seconds))

    def _compare(self, request: CompareReplies, send: Send, cancelled: Cancelled) -> None:
        # Here, because every start of the process would wait for it.
        from localspec.measure.compare import SideEvent, compare_events

        session = self._loaded()
        options = {name: value for name, value in request.options.items() if name != "speculate"}
        for event in compare_events(session, request.messages, cancelled=cancelled, **options):
            if isinstance(event, SideEvent):
                send(event.event)
            elif not event.cancelled:
                report_comparison(session, event, send)
        if cancelled():
            send(Stopped())

    def _loaded(self) -> api.Session:
        if self._session is None:
            raise BadSetting("no pair is loaded", hint="choose one with Ctrl+O")
        return self._session


def without_lost_servers(options: dict[str, Any], send: Send) -> dict[str, Any]:
    """The options with the servers that answer; devices are numbered by them, so their names no longer count."""
    rpc = options.get("rpc") or ""
    there = answering_servers(rpc) if rpc else []
    lost = [address for address in addresses_of(rpc) if address not in there] if rpc else []
    if not lost:
        return options
    send(Notice(f"No RPC server answers at {', '.join(lost)}: the models are placed without it."))
    return options | {"rpc": ",".join(there), "device": "", "split": "", "draft_device": ""}


def report_comparison(session: api.Session, found: "Comparison", send: Send) -> None:
    """Say how a comparison ended, and keep its speed-up for the picker."""
    from localspec.measure.compare import verdict_on
    from localspec.models.picker import remember_speedup

    difference = None
    if found.divergence is not None:
        tokens = (found.divergence.speculative, found.divergence.plain)
        drafted, plain = ("" if token is None else session.text_of(token) for token in tokens)
        difference = Difference(found.divergence.index, drafted, plain, found.divergence.top_two_gap)
    if found.speedup:
        remember_speedup(session.name, found.speedup)
    send(Compared(found.speculative.reply, found.plain.reply, difference, verdict_on(found)))
