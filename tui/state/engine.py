"""The state of the engine, of the running reply and of downloads."""

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median_low
from typing import TYPE_CHECKING

from localspec.control.timing import Tally
from localspec.conversations.conversations import StoredMessage
from localspec.engine import messages
from localspec.engine.client import CLOSE_SECONDS, EngineProcess
from localspec.engine.messages import ProposalText
from localspec.engine.server import failure_of
from localspec.events import (
    DEMO_PASS,
    Cycle,
    Event,
    Finished,
    FinishReason,
    Kind,
    Mode,
    Origin,
    Piece,
    Prefill,
    Reply,
    Source,
    Started,
    Stats,
)
from localspec.models.registry import DEMO, Pair, named
from localspec.prompt.messages import Message, Messages

if TYPE_CHECKING:
    from localspec.loading.pair_info import PairRow
    from localspec.measure.race import RaceSide

RACE_TOKENS = 256  # limit of tokens for each side of a race, because a model may repeat itself without end


@dataclass(slots=True)
class ReplyState:
    serial: int
    beginning: str = ""  # text that the reply continues
    started: Started | None = None
    prefill: Prefill | None = None
    pieces: list[Piece] = field(default_factory=list)
    shown: int = 0  # number of pieces that the screen already shows
    times: list[float] = field(default_factory=list)  # for each piece: the seconds of decoding before it
    tally: Tally = field(default_factory=Tally)
    timeline: deque[Cycle] = field(default_factory=lambda: deque(maxlen=256))  # the newest cycles
    lengths: Counter[int] = field(default_factory=Counter)  # number of cycles that emitted 1, 2, … tokens
    proposal: tuple[str, ...] = ()  # the text of each draft token of the last cycle
    final: Stats | None = None  # the engine's statistics, after the reply has ended
    is_stopped: bool = False  # whether the user ended the reply of a race
    is_demo: bool = False  # whether the demo pair replies; a race counts the same time for each of its passes

    def __post_init__(self) -> None:
        if self.beginning:
            self.absorb(Piece(self.beginning, Kind.ANSWER, Origin.PLAIN, Source.PLAIN))

    def absorb(self, event: Event | ProposalText) -> None:
        match event:
            case Piece():
                self.pieces.append(event)
                self.times.append(self.clock_seconds)
            case Cycle():
                self.tally.add(event)
                self.timeline.append(event)
                self.lengths[len(event.tokens)] += 1
                self.proposal = ()
            case ProposalText():
                self.proposal = event.texts
            case Prefill():
                self.prefill = event
            case Started():
                self.started = event

    @property
    def clock_seconds(self) -> float:
        if self.is_demo:
            return DEMO_PASS * self.tally.sums.cycles
        return self.tally.sums.decode_seconds

    @property
    def race_side(self) -> "RaceSide":
        from localspec.measure.race import RaceSide  # imported here because the module loads slowly

        return RaceSide(
            tuple((piece.text, piece.origin) for piece in self.pieces),
            tuple(self.times),
            self.clock_seconds,
            tokens=self.tally.sums.emitted,
            cycles=self.tally.sums.cycles,
            drafted=self.tally.sums.drafted,
            is_done=self.final is not None and not self.is_stopped,
            is_demo=self.is_demo,
            is_sampled=self.started is not None and self.started.rule == "block",
        )

    def take_fresh(self) -> list[Piece]:
        fresh, self.shown = self.pieces[self.shown :], len(self.pieces)
        return fresh

    @property
    def stats(self) -> Stats:
        return self.final or self.tally.stats()

    @property
    def is_off(self) -> bool:
        """Whether drafting is off at the moment, because drafting saves no time."""
        return bool(self.timeline) and self.timeline[-1].mode in (Mode.OFF, Mode.PROBE)

    @property
    def depth(self) -> int:
        """The median depth of the newest cycles."""
        return median_low([cycle.drafted for cycle in list(self.timeline)[-32:] if cycle.drafted] or [0])

    @property
    def rejected(self) -> tuple[str, ...]:
        return self.proposal[self.timeline[-1].accepted :] if self.timeline else ()

    @property
    def context_tokens(self) -> int:
        return (self.started.prompt_tokens if self.started else 0) + self.tally.sums.emitted

    def message(self, outcome: str, reply: Reply | None = None) -> StoredMessage:
        """Return the message to store, made from `reply`, or from the pieces so far if `reply` is None."""
        stats = reply.stats if reply else self.stats
        answer, thoughts = (
            [piece.text for piece in self.pieces if piece.kind is kind]
            for kind in (Kind.ANSWER, Kind.REASONING)
        )
        return StoredMessage(
            role="assistant",
            content=self.beginning + reply.text if reply else "".join(answer),
            reasoning=reply.reasoning if reply else "".join(thoughts),
            reasoning_tokens=len(thoughts),
            outcome=outcome,
            stats=stats if stats.emitted else None,
        )


@dataclass(slots=True)
class EngineState:
    client: EngineProcess
    load_request: messages.LoadPair  # the last request that has loaded a pair; before that, the first request
    settings: messages.Options = field(default_factory=dict)  # the options that apply to every reply
    stops_loops: bool = True  # whether a reply that repeats itself ends
    ready: messages.Ready | None = None
    loading: bool = False
    stage: str = ""  # a text that names the running step of a load
    comparing: bool = False
    sides: list[ReplyState] = field(default_factory=list)  # replies of the last race: plain, then drafting
    compared: messages.Compared | None = None
    reply: ReplyState | None = None  # the running reply
    last_reply: ReplyState | None = None  # the reply whose statistics are shown
    recent: deque[ReplyState] = field(default_factory=lambda: deque(maxlen=9))  # the newest replies
    pair_name: str = ""  # name of the pair that is loading or was loaded last
    wanted: str = ""  # name of a requested pair that is not on disk
    _loading_request: messages.LoadPair | None = None
    _loaded_name: str = ""
    _serial: int = 0
    _typed: str = ""  # text that was sent to be read ahead

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of the pair's files, if the user gave paths instead of a name."""
        return self.load_request.pair.paths

    @property
    def busy(self) -> bool:
        return self.reply is not None

    def load(self, request: messages.LoadPair, *, started: bool = False) -> None:
        """Load a pair in a new process, so that the old process frees its memory. Raises EngineDied."""
        if not started:  # a process that is running already has received `request`
            try:
                self.client.start()
            finally:
                if not self.client.alive:
                    self.ready = None
            self.client.send(request)
        if request != self.load_request:
            self.last_reply = None  # the last reply came from another pair
        self._loading_request = request
        self.pair_name = request.pair.name
        self.ready, self.loading, self.stage = None, True, ""

    def reload(self) -> None:
        """Load the same pair in a new process, without RPC servers that do not answer. Raises EngineDied."""
        if self.load_request.options.get("rpc"):
            self.load_request = replace(self.load_request, rpc_required=False)
        self.load(self.load_request)

    def ask(self, turns: Messages, beginning: str = "", conversation: str = "") -> None:
        """Request a reply to `turns`; the reply continues the text `beginning`. Raises EngineDied.

        `conversation`: the conversation's name on disk; "" if it is not stored.
        """
        if beginning:
            turns = (*turns, Message("assistant", beginning))
        self.last_reply = self._begin(beginning)
        self.recent.append(self.last_reply)
        options = self.options_for(turns)
        serial = self.last_reply.serial
        stops = self.stops_loops
        asked = messages.Generate(serial, turns, options, True, conversation=conversation, stops_loops=stops)
        self.client.send(asked)

    def read_ahead(self, typed: str, turns: Messages, conversation: str = "") -> None:
        """Let the engine read `turns` ahead. Their last message is the text `typed`; "": the user has typed nothing."""
        if typed != self._typed and self.ready and not self.busy:
            self._typed, turns = typed, turns if typed else ()
            self.client.send(messages.Typed(turns, self.options_for(turns), conversation))

    def compare(self, turns: Messages, temperature: float = 0.0, conversation: str = "") -> None:
        """Request the same reply twice, without and with drafting. Raises EngineDied."""
        serial = self._begin().serial
        self.comparing, self.sides, self.compared = True, [], None
        options = {"max_tokens": RACE_TOKENS, **self.options_for(turns), "temperature": temperature}
        asked = messages.Generate(serial, turns, options, conversation=conversation, compares=True)
        self.client.send(asked)

    def options_for(self, turns: Messages) -> messages.Options:
        """Return the options of a reply. Without a system message in `turns`, no other system prompt is used."""
        return self.settings if turns and turns[0].role == "system" else {**self.settings, "system": ""}

    def stop(self) -> None:
        if self.reply is not None:
            self.client.send(messages.Cancel(self.reply.serial))

    def took(self, report: messages.Ready | messages.Failure | messages.Died) -> None:
        self.loading = False
        if isinstance(report, messages.Ready):
            self.ready, self.wanted = report, ""
            self.load_request = self._loading_request or self.load_request
            self.pair_name = self._loaded_name = report.pair
        else:
            self.ready = None
            self.pair_name = self._loaded_name or self.pair_name

    @property
    def can_go_back(self) -> bool:
        return bool(self._loaded_name) and self._loading_request != self.load_request

    def absorb(self, event: Event | ProposalText) -> None:
        if self.reply is None:
            return
        if self.comparing and isinstance(event, Started):
            self.reply = ReplyState(self.reply.serial, is_demo=self.reply.is_demo)
            self.sides.append(self.reply)
        if isinstance(event, Finished):
            self.reply.final = event.reply.stats
            self.reply.is_stopped = event.reply.finish_reason is FinishReason.CANCELLED
        self.reply.absorb(event)

    def end_reply(self, final: Reply | None = None) -> None:
        """End the reply. `final` is None if the engine failed."""
        reply, self.reply = self.reply, None
        self.comparing = False
        if reply is not None and final is not None:
            reply.final = final.stats

    def show(self, message: StoredMessage | None) -> None:
        stats = message.stats if message else None
        key = stats and (stats.emitted, stats.decode_seconds)
        shown = (r for r in self.recent if (r.stats.emitted, r.stats.decode_seconds) == key)
        self.last_reply = next(shown, None)

    def _begin(self, beginning: str = "") -> ReplyState:
        if not self.client.alive:
            self.reload()
        self._serial, self._typed = self._serial + 1, ""
        self.reply = ReplyState(self._serial, beginning, is_demo=self.pair_name == DEMO)
        return self.reply


@dataclass(frozen=True, slots=True)
class PullProgress:
    name: str
    done_bytes: int = 0
    total_bytes: int = 0  # 0 until the size is known


@dataclass(slots=True)
class Downloads:
    """The list of known pairs, and at most one running download. Threads of this process do both."""

    rows: Sequence["PairRow"] | None = None  # None until the pairs are listed
    progress: PullProgress | None = None
    asked: str = ""  # name of the pair whose download needs the user's yes
    _ended: deque[tuple[str, messages.Failure | None]] = field(default_factory=deque)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    # These methods import their modules when called, because the modules load slowly.
    def find(self, name: str) -> Pair:
        """Return the pair with this name. Raises UnknownPair, NotOnDisk, IncompatiblePair."""
        from localspec.models.names import find

        return find(name)

    def listing(self) -> Sequence["PairRow"]:
        from localspec.loading.pair_info import listing

        return listing()

    def size(self, name: str) -> int:
        from localspec.models.download import bytes_to_fetch

        return bytes_to_fetch(named(name))

    def fetch(self, name: str, on_bytes: Callable[[int, int], object], cancelled: Callable[[], bool]) -> None:
        """Fetch a pair; `on_bytes` is called with the fetched and the total bytes. Raises LocalspecError."""
        from localspec.models.download import Fetching, fetch

        def report(event: Fetching | str) -> None:
            if isinstance(event, Fetching):
                on_bytes(event.done, event.total)

        fetch(named(name), report, cancelled=cancelled)

    def refresh(self) -> None:
        threading.Thread(target=self._list, daemon=True).start()

    def pull(self, name: str) -> None:
        self._stop.clear()
        self.progress = PullProgress(name)
        # A daemon thread, so that the program can end while a server sends nothing.
        self._thread = threading.Thread(target=self._pull, args=(name,), daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        self._stop.set()

    def take_ended(self) -> list[tuple[str, messages.Failure | None]]:
        """Return name and failure of each download that ended since the last call; name "": a failed listing."""
        return [self._ended.popleft() for _ in range(len(self._ended))]

    def close(self) -> None:
        self.cancel()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _list(self) -> None:
        try:
            self.rows = self.listing()
        except Exception as error:  # noqa: BLE001 - reported by `take_ended`
            self.rows = self.rows or ()
            self._ended.append(("", failure_of(error)))

    def _pull(self, name: str) -> None:
        def on_bytes(done: int, total: int) -> None:
            self.progress = PullProgress(name, done, total)

        failure = None
        try:
            self.fetch(name, on_bytes, self._stop.is_set)
        except Exception as error:  # noqa: BLE001 - reported by `take_ended`
            failure = failure_of(error)
        self.progress = None
        self._ended.append((name, failure))
        self._list()
