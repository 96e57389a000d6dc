"""Lists and fetches pairs in an engine process of its own, so that the chat goes on during a download."""

from collections.abc import Callable
from dataclasses import dataclass, field

from localspec.engine import messages
from localspec.engine.client import Engine
from localspec.errors import EngineDied


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
