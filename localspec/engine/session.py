"""A pair in the engine process, for a command that waits for its reply and survives a crash of llama.cpp."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from localspec import errors
from localspec.engine.client import EngineProcess
from localspec.engine.messages import Answer, Cancel, Died, Failure, LoadPair, LoadStage, Ready, Report
from localspec.errors import EngineDied, LocalspecError
from localspec.events import Event, Finished, Notice
from localspec.health.stopping import Closing

_LOOK_SECONDS = 0.1  # Windows hears no Ctrl-C while it waits for an event


class EngineSession(Closing):
    """One pair in one engine process."""

    def __init__(self, engine: EngineProcess | None = None) -> None:
        """`engine`: another one, not started. Raises EngineDied."""
        self._engine = engine or EngineProcess()
        self._arrived = threading.Event()
        self._engine.on_report = self._arrived.set
        self._engine.start()
        self._serial = 0
        self._history: tuple[dict[str, Any], ...] = ()
        self._notices: list[Notice] = []
        self.name = self.target_name = self.draft_name = ""

    def load(self, on_stage: Callable[[str], object], **options: Any) -> None:  # noqa: ANN401
        """Load a pair by the options of `localspec.load`. Raises the same errors, and EngineDied."""
        self._engine.send(LoadPair.of(**options))
        for report in self._reports():
            match report:
                case LoadStage(text=text):
                    on_stage(text)
                case Notice():
                    self._notices.append(report)
                case Ready():
                    self.name, self.target_name, self.draft_name = report.pair, report.target, report.draft
                    return

    def resume(self, messages: Sequence[dict[str, Any]]) -> None:
        """Continue a conversation from elsewhere."""
        self._history = tuple(messages)

    def stream(self, prompt: str, **options: Any) -> Iterator[Event]:  # noqa: ANN401
        """Answer in the conversation, event by event but for cycles; the last one is Finished."""
        messages = (*self._history, {"role": "user", "content": prompt})
        return self._answer(Answer(self._next_serial(), messages=messages, options=options))

    def stream_complete(self, text: str, **options: Any) -> Iterator[Event]:  # noqa: ANN401
        """Continue a raw text, event by event."""
        return self._answer(Answer(self._next_serial(), text=text, options=options))

    def cancel(self) -> None:
        """Stop the reply and keep its text."""
        self._engine.send(Cancel(self._serial))

    def close(self) -> None:
        """End the process within a second."""
        self._engine.close()

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def _answer(self, request: Answer) -> Iterator[Event]:
        self._engine.send(request)
        yield from self._notices
        self._notices.clear()
        for report in self._reports():
            if isinstance(report, Event):
                yield report
            if isinstance(report, Finished):
                return

    def _reports(self) -> Iterator[Report]:
        """Reports as they come. Raises the error in a report."""
        while True:
            self._arrived.wait(_LOOK_SECONDS)
            self._arrived.clear()
            for report in self._engine.drain():
                if isinstance(report, Died):
                    raise EngineDied(report.what, hint=report.hint)
                if isinstance(report, Failure):
                    raise error_of(report)
                yield report


def error_of(failure: Failure) -> LocalspecError:
    """The error that ended a request in the engine process."""
    kind = getattr(errors, failure.error, LocalspecError)
    known = isinstance(kind, type) and issubclass(kind, LocalspecError)
    return (kind if known else LocalspecError)(failure.what, hint=failure.hint)
