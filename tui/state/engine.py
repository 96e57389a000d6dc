"""The engine as the chat sees it: which pair is loaded, which reply runs, how it is sampled."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from localspec.engine import messages
from localspec.engine.client import Engine
from localspec.errors import EngineDied
from localspec.events import Event, Reply, Started

from .reply import ReplyState

ENOUGH_TOKENS: Final = 16  # fewer say little about speed


@dataclass(slots=True)
class EngineState:
    """Follows the reports of the engine, and sends requests."""

    client: Engine
    load_request: messages.LoadPair  # of the pair that was loaded last; before that, of the first
    settings: messages.ReplySettings = field(default_factory=messages.ReplySettings)
    ready: messages.Ready | None = None
    loading: bool = False
    stage: str = ""  # of loading
    comparing: bool = False
    reply: ReplyState | None = None  # the reply that runs
    last_reply: ReplyState | None = None  # it, or the one before
    pair_name: str = ""  # of the pair that is loaded, is being loaded, or was last
    wanted: str = ""  # a pair that was asked for and is not here
    best_speed: float = 0.0
    plain_speed: float | None = None
    _loading_request: messages.LoadPair | None = None
    _loaded_name: str = ""
    _serial: int = 0

    @property
    def busy(self) -> bool:
        return self.reply is not None

    def load(self, request: messages.LoadPair, *, started: bool = False) -> None:
        """Load a pair in a new process, because only the end of the old one certainly frees its memory.

        `started` means that the process runs and has the request already. Raises EngineDied; the loaded pair stays.
        """
        if not started:
            try:
                self.client.start()
            finally:
                if not self.client.alive:
                    self.ready = None
            self.client.send(request)
        self._loading_request = request
        self.pair_name = request.pair or self._loaded_name
        self.ready, self.loading, self.stage = None, True, ""
        self.best_speed, self.plain_speed = 0.0, None

    def reload(self) -> None:
        """Load the pair again after its process ended, without the servers that are gone. Raises EngineDied."""
        if self.load_request.rpc:
            self.load_request = replace(self.load_request, rpc_required=False)
        self.load(self.load_request)

    def ask(self, turns: tuple[messages.Turn, ...], beginning: str = "") -> None:
        """Begin a reply, or continue its beginning; a pair that still loads answers afterwards. Raises EngineDied."""
        if beginning:
            turns = (*turns, messages.Turn("assistant", beginning))
        self.client.send(messages.Ask(self._begin(beginning), turns, self.settings))

    def compare(self, turns: tuple[messages.Turn, ...]) -> None:
        """Begin the same reply twice. Raises EngineDied."""
        serial = self._begin()
        self.comparing = True
        self.client.send(messages.CompareReplies(serial, turns, self.settings))

    def stop(self) -> None:
        """Ask the engine to end what runs; the reply ends with its Finished."""
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

    def absorb(self, event: Event | messages.ProposalText) -> None:
        """Take in what the running reply reports; the second run of a comparison starts counting anew."""
        if self.reply is None:
            return
        if self.comparing and isinstance(event, Started):
            self.reply = self.last_reply = ReplyState(self.reply.serial)
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

    def end_comparison(self, compared: messages.Compared) -> None:
        """Both runs are over; `plain` is the yardstick from now on."""
        self.end_reply()
        self.plain_speed = compared.plain.stats.tokens_per_second or self.plain_speed

    def _begin(self, beginning: str = "") -> int:
        """Expect a reply; its serial."""
        if not self.client.alive:
            self.reload()
        self._serial += 1
        self.reply = self.last_reply = ReplyState(self._serial, beginning)
        return self._serial


@dataclass(slots=True)
class Downloads:
    """What is known about pairs, and the one pull that may be running."""

    make_engine: Callable[[], Engine]
    rows: tuple[messages.PairRow, ...] | None = None  # None: not listed yet
    progress: messages.PullProgress | None = None
    _engine: Engine | None = None
    _serial: int = 0
    _news: list[messages.Pulled | messages.Failure] = field(default_factory=list)

    def refresh(self) -> None:
        """Ask for the list; it arrives with a later `take_news`. Raises EngineDied."""
        self._started().send(messages.ListPairs())

    def pull(self, name: str) -> None:
        """Begin to fetch a pair. Raises EngineDied."""
        engine = self._started()
        self._serial += 1
        self.progress = messages.PullProgress(name, "", 0, 0)
        engine.send(messages.Pull(self._serial, name))

    def cancel(self) -> None:
        if self._engine is not None:
            self._engine.send(messages.Cancel(self._serial))

    def take_news(self) -> list[messages.Pulled | messages.Failure]:
        """Take in what the process reported; returns what the person should hear of."""
        for report in self._engine.drain() if self._engine is not None else ():
            self._take(report)
        news, self._news = self._news, []
        return news

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()

    def _take(self, report: messages.Report) -> None:
        match report:
            case messages.PairList():
                self.rows = report.rows
            case messages.PullProgress():
                self.progress = report
            case messages.Pulled():
                self.progress = None
                self._news.append(report)
                try:
                    self.refresh()
                except EngineDied as error:
                    self._fail(messages.Failure("EngineDied", str(error), error.hint))
            case messages.Failure():
                self._fail(report)
            case messages.Died():
                self._fail(messages.Failure("EngineDied", report.what, report.hint, self._serial))
            case _:
                pass  # the hello

    def _fail(self, failure: messages.Failure) -> None:
        if failure.serial:  # of the pull, not of a list
            self.progress = None
        self.rows = self.rows or ()
        self._news.append(failure)

    def _started(self) -> Engine:
        if self._engine is None:
            self._engine = self.make_engine()
        if not self._engine.alive:
            self._engine.start()
        return self._engine
