"""Does in the engine process what requests ask for, with a session of `localspec.api`."""

import time
from dataclasses import asdict
from typing import Any

from localspec import api
from localspec.engine import pairs
from localspec.engine.comparing import first_difference
from localspec.engine.messages import (
    Ask,
    Compare,
    Compared,
    ListPairs,
    Load,
    ProposalText,
    Pull,
    Ready,
    ReplySettings,
    Request,
    Stage,
    Turn,
)
from localspec.engine.server import Cancelled, Send
from localspec.errors import BadSetting
from localspec.events import Cycle, Finished, Reply

MANY_CORES = 4  # from here on one core is left to the terminal; with fewer, the models need them all


class PairWorkshop:
    """Holds one loaded pair."""

    def __init__(self) -> None:
        self._session: api.Session | None = None

    def perform(self, request: Request, send: Send, cancelled: Cancelled) -> None:
        match request:
            case Load():
                self._load(request, send)
            case Ask():
                self._reply(request.turns, request.settings, send, cancelled)
            case Compare():
                self._compare(request, send, cancelled)
            case ListPairs():
                send(pairs.listing())
            case Pull():
                pairs.pull(request.name, send, cancelled)

    def cancel(self) -> None:
        if self._session is not None:
            self._session.cancel()

    def close(self) -> None:
        if self._session is not None:
            self._session.close()

    def _load(self, request: Load, send: Send) -> None:
        began = time.monotonic()
        options = {name: value for name, value in asdict(request).items() if value is not None}
        cores = api.default_threads()
        if cores >= MANY_CORES:
            options.setdefault("threads", cores - 1)
        self._session = session = api.load(**options, on_stage=lambda stage: send(Stage(stage)))
        seconds = time.monotonic() - began
        send(Ready(session.name, session.target_name, session.draft_name, session.context_length, seconds))

    def _reply(
        self, turns: tuple[Turn, ...], settings: ReplySettings, send: Send, cancelled: Cancelled
    ) -> Reply:
        if self._session is None:
            raise BadSetting("No pair is loaded.", hint="Choose one with Ctrl+O.")
        messages, options = call_of(turns, settings)
        for event in self._session.stream(messages, **options):
            send(event)
            if isinstance(event, Cycle) and event.proposal:
                send(ProposalText(tuple(map(self._session.text_of, event.proposal))))
            if cancelled():
                # The session forgets a cancel that came before the reply began.
                self._session.cancel()
        assert isinstance(event, Finished), "a reply ends with Finished"
        return event.reply

    def _compare(self, request: Compare, send: Send, cancelled: Cancelled) -> None:
        """Drafting first: its seed serves the plain run as well."""
        settings = asdict(request.settings) | {"speculate": True}
        drafted = self._reply(request.turns, ReplySettings(**settings), send, cancelled)
        settings |= {"speculate": False, "seed": drafted.seed}
        plain = self._reply(request.turns, ReplySettings(**settings), send, cancelled)
        assert self._session is not None
        if not cancelled() and plain.stats.tokens_per_second:
            speedup = drafted.stats.tokens_per_second / plain.stats.tokens_per_second
            pairs.remember_speedup(self._session.name, speedup)
        send(Compared(drafted, plain, first_difference(drafted.tokens, plain.tokens, self._session.text_of)))


def call_of(turns: tuple[Turn, ...], settings: ReplySettings) -> tuple[list[dict[str, str]], Any]:
    """Messages and keyword arguments of `Session.stream`."""
    options = {name: value for name, value in asdict(settings).items() if value not in (None, ())}
    if turns and turns[0].role == "system":
        # As an option, so that it also replaces the configured one.
        options["system"] = turns[0].content
        turns = turns[1:]
    return [{"role": turn.role, "content": turn.content} for turn in turns], options
