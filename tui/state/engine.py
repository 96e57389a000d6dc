"""The engine as the chat sees it: which pair is loaded, which reply runs, how it is sampled."""

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median_low
from typing import TYPE_CHECKING, Final

from localspec.chat.conversations import Numbers, StoredMessage, files_of
from localspec.chat.tally import Tally
from localspec.engine import messages
from localspec.engine.client import CLOSE_SECONDS, EngineProcess
from localspec.engine.messages import ProposalText
from localspec.engine.server import failure_of
from localspec.events import (
    Cycle,
    Event,
    Finished,
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
from localspec.measure.race import TOY_PASS, Lane
from localspec.models.registry import DEMO

if TYPE_CHECKING:
    from localspec.models.picker import PairRow

RECENT: Final = 32  # cycles, whose depth the meter shows
TIMELINE: Final = 256  # cycles in the inspector
WINDOW_SECONDS: Final = 1.0  # of engine time: what "now" means


@dataclass(slots=True)
class ReplyState:
    serial: int
    beginning: str = ""  # the given beginning of the reply
    started: Started | None = None
    prefill: Prefill | None = None
    pieces: list[Piece] = field(default_factory=list)
    shown: int = 0  # of them, on the screen
    times: list[float] = field(default_factory=list)  # seconds of decoding until each of them
    tally: Tally = field(default_factory=Tally)
    timeline: deque[Cycle] = field(default_factory=lambda: deque(maxlen=TIMELINE))
    lengths: Counter[int] = field(default_factory=Counter)  # emitted tokens -> cycles
    proposal: tuple[str, ...] = ()  # the last cycle's drafted tokens as text
    final: Stats | None = None  # the engine's own numbers, once the reply is over
    is_toy: bool = False  # in a race each pass then counts for the same

    def __post_init__(self) -> None:
        if self.beginning:
            self.absorb(Piece(self.beginning, Kind.ANSWER, Origin.PLAIN, Source.PLAIN))

    def absorb(self, event: Event | ProposalText) -> None:
        match event:
            case Piece():
                self.pieces.append(event)
                self.times.append(self.lane_seconds)
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
    def lane_seconds(self) -> float:
        if self.is_toy:
            return TOY_PASS * self.tally.cycles
        return self.tally.draft_seconds + self.tally.verify_seconds + self.tally.other_seconds

    @property
    def lane(self) -> Lane:
        """The reply as a side of a race."""
        written = tuple((piece.text, piece.origin) for piece in self.pieces)
        return Lane(
            written,
            tuple(self.times),
            self.lane_seconds,
            tokens=self.tally.emitted,
            cycles=self.tally.cycles,
            drafted=self.tally.drafted,
            is_done=self.final is not None,
            is_toy=self.is_toy,
        )

    @property
    def fresh(self) -> list[Piece]:
        """What is not shown yet."""
        return self.pieces[self.shown :]

    def take_fresh(self) -> list[Piece]:
        fresh, self.shown = self.fresh, len(self.pieces)
        return fresh

    @property
    def stats(self) -> Stats:
        return self.final or self.tally.stats()

    @property
    def is_off(self) -> bool:
        """Whether drafting is switched off right now because it does not pay."""
        return bool(self.timeline) and self.timeline[-1].mode in (Mode.OFF, Mode.PROBE)

    @property
    def speed_now(self) -> float:
        """Tokens per second over the last second of engine time."""
        tokens, seconds = 0, 0.0
        for cycle in reversed(self.timeline):
            tokens += len(cycle.tokens)
            seconds += cycle.seconds
            if seconds >= WINDOW_SECONDS:
                break
        return tokens / seconds if seconds else 0.0

    @property
    def depth(self) -> int:
        """How many tokens the last cycles that drafted have drafted: the middle one of them."""
        return median_low([cycle.drafted for cycle in list(self.timeline)[-RECENT:] if cycle.drafted] or [0])

    @property
    def rejected(self) -> tuple[str, ...]:
        """The tokens of the last proposal that the target did not keep, as text."""
        return self.proposal[self.timeline[-1].accepted :] if self.timeline else ()

    @property
    def context_tokens(self) -> int:
        return (self.started.prompt_tokens if self.started else 0) + self.tally.emitted

    def is_in(self, message: StoredMessage) -> bool:
        """Whether it became that message of a conversation."""
        told = message.numbers
        return told is not None and (told.tokens, told.seconds) == (
            self.stats.emitted,
            self.stats.decode_seconds,
        )

    def message(self, outcome: str, reply: Reply | None = None) -> StoredMessage:
        """The reply as the conversation keeps it; without a Reply (the engine died) as far as it got."""
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
            numbers=Numbers.of(stats) if stats.emitted else None,
        )


VERSIONS: Final = 9  # of a reply whose figures can be shown again
ENOUGH_TOKENS: Final = 16  # fewer say little about speed


@dataclass(slots=True)
class EngineState:
    """Follows the reports of the engine, and sends requests."""

    client: EngineProcess
    load_request: messages.LoadPair  # of the pair that was loaded last; before that, of the first
    settings: messages.Options = field(default_factory=dict)  # of replies
    ready: messages.Ready | None = None
    loading: bool = False
    stage: str = ""  # of loading
    comparing: bool = False
    sides: list[ReplyState] = field(
        default_factory=list
    )  # of the comparison that runs or was last: plain, drafting
    compared: messages.Compared | None = None  # the outcome of it
    reply: ReplyState | None = None  # the reply that runs
    last_reply: ReplyState | None = None  # of the conversation: it, or the one before
    recent: deque[ReplyState] = field(default_factory=lambda: deque(maxlen=VERSIONS))
    pair_name: str = ""  # of the pair that is loaded, is being loaded, or was last
    wanted: str = ""  # a pair that was asked for and is not here
    best_speed: float = 0.0
    plain_speed: float | None = None
    _loading_request: messages.LoadPair | None = None
    _loaded_name: str = ""
    _serial: int = 0

    @property
    def files(self) -> tuple[str, ...]:
        """The files of the pair that was loaded last, where it was asked for by them."""
        load = self.load_request
        return files_of(load.target or load.pair, load.draft)

    @property
    def busy(self) -> bool:
        return self.reply is not None

    def load(self, request: messages.LoadPair, *, started: bool = False) -> None:
        """Load a pair in a new process: only the end of the old one certainly frees its memory. Raises EngineDied."""
        if not started:  # else the process runs and has the request
            try:
                self.client.start()
            finally:
                if not self.client.alive:
                    self.ready = None
            self.client.send(request)
        if request != self.load_request:
            self.last_reply = None  # its figures are of another pair
        self._loading_request = request
        self.pair_name = request.pair or self._loaded_name
        self.ready, self.loading, self.stage = None, True, ""
        self.best_speed, self.plain_speed = 0.0, None

    def reload(self) -> None:
        """Load the pair again after its process ended, without the servers that are gone. Raises EngineDied."""
        if self.load_request.options.get("rpc"):
            self.load_request = replace(self.load_request, rpc_required=False)
        self.load(self.load_request)

    def ask(self, turns: messages.Messages, beginning: str = "") -> None:
        """Begin a reply, or continue its beginning; a pair that still loads answers afterwards. Raises EngineDied."""
        if beginning:
            turns = (*turns, {"role": "assistant", "content": beginning})
        self.last_reply = self._begin(beginning)
        self.recent.append(self.last_reply)
        options = self.options_for(turns)
        self.client.send(messages.Answer(self.last_reply.serial, turns, options, cycles=True))

    def compare(self, turns: messages.Messages, temperature: float = 0.0) -> None:
        """Begin the same reply twice. Raises EngineDied."""
        serial = self._begin().serial
        self.comparing = True
        options = {**self.options_for(turns), "temperature": temperature}
        self.client.send(messages.CompareReplies(serial, turns, options))

    def options_for(self, turns: messages.Messages) -> messages.Options:
        """The settings; a conversation without a system message does not get the configured one."""
        return self.settings if turns and turns[0]["role"] == "system" else {**self.settings, "system": ""}

    def stop(self) -> None:
        """Ask the engine to stop; the reply ends with its Finished."""
        if self.reply is not None:
            self.client.send(messages.Cancel(self.reply.serial))

    def took(self, report: messages.Ready | messages.Failure | messages.Died) -> None:
        """The engine has a pair, or failed to get one, or is gone."""
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
        """Whether the load that failed was of another pair than the one that was loaded last."""
        return bool(self._loaded_name) and self._loading_request != self.load_request

    def absorb(self, event: Event | ProposalText) -> None:
        """Handle a report of the running reply; the second run of a comparison counts from zero."""
        if self.reply is None:
            return
        if self.comparing and isinstance(event, Started):
            self.reply = ReplyState(self.reply.serial, is_toy=self.reply.is_toy)
            self.sides.append(self.reply)
        if isinstance(event, Finished):
            self.reply.final = event.reply.stats
        self.reply.absorb(event)

    def end_reply(self, final: Reply | None = None) -> None:
        """The reply is over, with a Reply unless the engine failed: learn from it how fast the pair is here."""
        reply, self.reply = self.reply, None
        self.comparing = False
        if reply is not None and final is not None:
            reply.final = final.stats
        if reply is None or reply.tally.emitted < ENOUGH_TOKENS:
            return
        speed = reply.stats.tokens_per_second
        self.best_speed = max(self.best_speed, speed)
        if not reply.tally.drafted:
            self.plain_speed = speed

    def show(self, message: StoredMessage | None) -> None:
        """The last reply of the conversation is this message from now on."""
        self.last_reply = next((reply for reply in self.recent if message and reply.is_in(message)), None)

    def _begin(self, beginning: str = "") -> ReplyState:
        """Expect a reply."""
        if not self.client.alive:
            self.reload()
        self._serial += 1
        self.sides, self.compared = [], None
        self.reply = ReplyState(self._serial, beginning, is_toy=self.pair_name == DEMO)
        return self.reply


@dataclass(frozen=True, slots=True)
class PullProgress:
    name: str  # of the pair
    done_bytes: int = 0
    total_bytes: int = 0  # 0 when it is not known yet


@dataclass(slots=True)
class Downloads:
    """The pairs that are known, and the one pull that may run; threads of this process do the work."""

    rows: Sequence["PairRow"] | None = None  # None: not listed yet
    progress: PullProgress | None = None
    asked: str = ""  # the pair whose size the user has just seen, with the question whether to fetch it
    _ended: deque[tuple[str, messages.Failure | None]] = field(default_factory=deque)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None  # of the last pull

    # The modules behind load slowly: the first call imports them.
    def find(self, name: str) -> None:
        """Raises UnknownPair, NotOnDisk or IncompatiblePair unless the pair can be loaded."""
        from localspec.models.names import find

        find(name)

    def listing(self) -> Sequence["PairRow"]:
        from localspec.models.picker import listing

        return listing()

    def size(self, name: str) -> int:
        """Bytes to fetch for a pair. Raises UnknownPair."""
        from localspec.models.picker import size

        return size(name)

    def fetch(self, name: str, on_bytes: Callable[[int, int], object], cancelled: Callable[[], bool]) -> None:
        """Fetch a pair; `on_bytes` gets how many bytes are here, and of how many. Raises LocalspecError."""
        from localspec.models.picker import pull

        pull(name, on_bytes, cancelled)

    def refresh(self) -> None:
        """List the pairs anew; the rows change later."""
        threading.Thread(target=self._list, daemon=True).start()

    def pull(self, name: str) -> None:
        self._stop.clear()
        self.progress = PullProgress(name)
        # A daemon: a program that leaves does not wait for a server that sends nothing.
        self._thread = threading.Thread(target=self._pull, args=(name,), daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        self._stop.set()

    def take_ended(self) -> list[tuple[str, messages.Failure | None]]:
        """The pulls that have ended since the last call, and the lists that failed (without a name)."""
        return [self._ended.popleft() for _ in range(len(self._ended))]

    def close(self) -> None:
        """Stop the pull; every byte that came is on disk by now."""
        self.cancel()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _list(self) -> None:
        try:
            self.rows = self.listing()
        except Exception as error:  # noqa: BLE001 - nobody waits for the thread
            self.rows = self.rows or ()
            self._ended.append(("", failure_of(error)))

    def _pull(self, name: str) -> None:
        def on_bytes(done: int, total: int) -> None:
            self.progress = PullProgress(name, done, total)

        failure = None
        try:
            self.fetch(name, on_bytes, self._stop.is_set)
        except Exception as error:  # noqa: BLE001 - nobody waits for the thread
            failure = failure_of(error)
        self.progress = None
        self._ended.append((name, failure))
        self._list()
