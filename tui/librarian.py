"""Lists and fetches pairs in an engine process of its own, so that the chat goes on during a download."""

from collections.abc import Callable
from dataclasses import dataclass, field

from localspec.engine.client import Engine
from localspec.engine.messages import (
    Cancel,
    Died,
    Failure,
    ListPairs,
    PairList,
    PairRow,
    Pull,
    Pulled,
    PullProgress,
    Report,
)
from localspec.errors import EngineDied


@dataclass(slots=True)
class Librarian:
    """What is known about pairs, and the one pull that may be running."""

    make_engine: Callable[[], Engine]
    rows: tuple[PairRow, ...] | None = None  # None: not listed yet
    progress: PullProgress | None = None
    _engine: Engine | None = None
    _serial: int = 0
    _news: list[Pulled | Failure] = field(default_factory=list)

    def refresh(self) -> None:
        """Ask for the list; it arrives with a later `pump`. Raises EngineDied."""
        self._started().send(ListPairs())

    def pull(self, name: str) -> None:
        """Begin to fetch a pair. Raises EngineDied."""
        engine = self._started()
        self._serial += 1
        self.progress = PullProgress(name, "", 0, 0)
        engine.send(Pull(self._serial, name))

    def cancel(self) -> None:
        if self._engine is not None:
            self._engine.send(Cancel(self._serial))

    def pump(self) -> list[Pulled | Failure]:
        """Take in what the process reported; returns what the person should hear of."""
        for report in self._engine.drain() if self._engine is not None else ():
            self._take(report)
        news, self._news = self._news, []
        return news

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()

    def _take(self, report: Report) -> None:
        match report:
            case PairList():
                self.rows = report.rows
            case PullProgress():
                self.progress = report
            case Pulled():
                self.progress = None
                self._news.append(report)
                self._refresh_if_possible()
            case Failure(serial=0):  # of a list
                self._tell(report)
            case Failure():
                self._end_with(report)
            case Died():
                self._end_with(Failure("EngineDied", report.what, report.hint))
            case _:
                pass  # the hello

    def _refresh_if_possible(self) -> None:
        try:
            self.refresh()
        except EngineDied as error:
            self._end_with(Failure("EngineDied", str(error), error.hint))

    def _end_with(self, failure: Failure) -> None:
        self.progress = None
        self._tell(failure)

    def _tell(self, failure: Failure) -> None:
        self.rows = self.rows or ()
        self._news.append(failure)

    def _started(self) -> Engine:
        if self._engine is None:
            self._engine = self.make_engine()
        if not self._engine.alive:
            self._engine.start()
        return self._engine
