"""Small things that are saved while the chat goes on: one at a time, in a thread, and all of them before it ends."""

import asyncio
from collections import deque
from collections.abc import Callable


class Saver:
    """Runs saves one after the other; `tell` gets a sentence about those that fail, and what others return."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._waiting: deque[Callable[[], str | None]] = deque()
        # A task of its own: Textual cancels its workers when the app ends.
        self._running: asyncio.Task[None] | None = None

    def save(self, work: Callable[[], str | None]) -> None:
        """Run `work` soon."""
        self._waiting.append(work)
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())

    async def finish(self) -> None:
        """Wait until nothing is left to save."""
        if self._running is not None:
            await self._running

    async def _run(self) -> None:
        while self._waiting:
            try:
                told = await asyncio.to_thread(self._waiting.popleft())
            except OSError as error:
                told = f"Could not be remembered: {error}"
            if told:
                self._tell(f"{told}.")
