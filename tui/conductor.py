"""Drives the engine: which pair is loaded, which reply runs, how it is sampled. Knows no widget."""

from dataclasses import dataclass, field, replace
from typing import Final

from localspec.engine.client import Engine
from localspec.engine.messages import (
    Ask,
    Cancel,
    Compare,
    Compared,
    Died,
    Failure,
    Load,
    ProposalText,
    Ready,
    ReplySettings,
    Turn,
)
from localspec.events import Event, Started

from .live_turn import LiveTurn

ENOUGH_TOKENS: Final = 16  # fewer say little about speed


@dataclass(slots=True)
class Conductor:
    """The state of the engine as the terminal sees it."""

    engine: Engine
    load_request: Load  # of the pair that is loaded or was last, and until there is one, of the first
    settings: ReplySettings = field(default_factory=ReplySettings)
    ready: Ready | None = None
    loading: bool = False
    stage: str = ""  # of loading
    comparing: bool = False
    turn: LiveTurn | None = None  # the reply that runs
    last_turn: LiveTurn | None = None  # it, or the one before
    pair_name: str = ""  # of the pair that is loaded, is being loaded, or was last
    wanted: str = ""  # a pair that was asked for and is not here
    best_speed: float = 0.0
    plain_speed: float | None = None
    _loading_request: Load | None = None
    _loaded_name: str = ""
    _serial: int = 0

    @property
    def busy(self) -> bool:
        return self.turn is not None

    def load(self, request: Load, *, started: bool = False) -> None:
        """Bring a pair into memory in a fresh process, so that the old one's memory is free for certain.

        `started` means that the process runs and has the request already. Raises EngineDied; what was loaded stays.
        """
        if not started:
            self._start(request)
        self._loading_request = request
        self.pair_name = request.pair or self._loaded_name
        self.ready, self.loading, self.stage = None, True, ""
        self.best_speed, self.plain_speed = 0.0, None

    def reload(self) -> None:
        """Bring the pair back after its process ended, without the servers that are gone. Raises EngineDied."""
        if self.load_request.rpc:
            self.load_request = replace(self.load_request, rpc_required=False)
        self.load(self.load_request)

    def ask(self, turns: tuple[Turn, ...]) -> LiveTurn:
        """Begin a reply; while a pair loads it waits its turn. Raises EngineDied."""
        turn = self._begin()
        self.engine.send(Ask(turn.serial, turns, self.settings))
        return turn

    def compare(self, turns: tuple[Turn, ...]) -> LiveTurn:
        """Begin the same reply twice. Raises EngineDied."""
        turn = self._begin()
        self.comparing = True
        self.engine.send(Compare(turn.serial, turns, self.settings))
        return turn

    def stop(self) -> None:
        """Ask the engine to end what runs; the reply ends with its Finished."""
        if self.turn is not None:
            self.engine.send(Cancel(self.turn.serial))

    def took(self, report: Ready | Failure | Died) -> None:
        """The engine has a pair, or failed to get one, or is gone."""
        self.loading = False
        if isinstance(report, Ready):
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
        """Take in what the running reply reports; the second run of a comparison starts counting anew."""
        if self.turn is None:
            return
        if self.comparing and isinstance(event, Started):
            self.turn = self.last_turn = LiveTurn(self.turn.serial)
        self.turn.absorb(event)

    def end_turn(self) -> None:
        """The reply is over: learn from it how fast the pair is here."""
        turn, self.turn = self.turn, None
        self.comparing = False
        if turn is None or turn.tally.emitted < ENOUGH_TOKENS:
            return
        speed = turn.stats.tokens_per_second
        self.best_speed = max(self.best_speed, speed)
        if not turn.tally.drafted:
            self.plain_speed = speed

    def end_comparison(self, compared: Compared) -> None:
        """Both runs are over; `plain` is the yardstick from now on."""
        self.end_turn()
        self.plain_speed = compared.plain.stats.tokens_per_second or self.plain_speed

    def _start(self, request: Load) -> None:
        try:
            self.engine.start()
        finally:
            if not self.engine.alive:
                self.ready = None
        self.engine.send(request)

    def _begin(self) -> LiveTurn:
        if not self.engine.alive:
            self.reload()
        self._serial += 1
        self.turn = self.last_turn = LiveTurn(self._serial)
        return self.turn
