"""As many pairs as the real list has, as wide and in its order: what is here first."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from localspec.tui.state.engine import Downloads

from localspec.errors import NotOnDisk, UnknownPair
from localspec.gguf.facts import DraftKind
from localspec.loading.pair_info import PairRow
from localspec.models.download import PullCancelled
from localspec.models.local_models import ModelFile
from localspec.models.registry import Pair

_HERE = (
    PairRow("demo", "try it at once", 5_200_000, 40_000_000, True, "cpu", 1.42),
    PairRow("qwen3-8b+0.6b", "chat, thinking", 5_700_000_000, 7_100_000_000, True, "gpu", None, "1.9x"),
)
_TO_FETCH = (
    ("llama-3-8b+1b", "chat", 6.1, 7.5),
    ("llama-3-70b+8b", "long and careful", 47.9, 51.0),
    ("llama-3.2-3b+1b", "laptop, small cards", 2.8, 4.3),
    ("qwen2.5-7b+0.5b", "general chat, 8 GB card", 5.1, 6.0),
    ("qwen2.5-14b+0.5b", "general chat, 12-16 GB", 9.4, 11.4),
    ("qwen2.5-32b+0.5b", "best plain-draft gain, 24 GB", 20.2, 22.8),
    ("qwen2.5-coder-7b+0.5b", "code, 8 GB card", 5.4, 6.2),
    ("qwen2.5-coder-14b+0.5b", "code, 12-16 GB", 9.7, 11.7),
    ("qwen2.5-coder-32b+0.5b", "code, 24 GB", 20.5, 23.1),
    ("qwen3-4b+0.6b", "laptop, 6-8 GB", 3.1, 5.6),
    ("qwen3-14b+0.6b", "general chat, 16 GB", 9.6, 12.2),
    ("qwen3-32b+0.6b", "24 GB", 20.4, 23.8),
    ("gemma-3-12b+1b", "general chat, 12 GB", 8.1, 11.8),
    ("r1-distill-qwen-14b+1.5b", "reasoning, 16 GB", 10.1, 12.3),
    ("r1-distill-qwen-32b+1.5b", "reasoning, 24 GB", 21.0, 23.7),
    ("smollm2-1.7b+135m", "CPU, smoke tests", 1.2, 3.2),
    ("gemma-4-e2b+mtp", "phone-class, laptop, 4-6 GB", 2.7, 2.9),
    ("gemma-4-e4b+mtp", "laptop, 6-8 GB", 4.3, 4.5),
    ("gemma-4-12b+mtp", "general chat, 10-12 GB", 7.0, 7.3),
    ("gemma-4-26b-a4b+mtp", "24 GB (16 GB with CPU experts)", 14.5, 14.8),
    ("qwen3.5-4b+mtp", "laptop, 6 GB", 2.8, 3.3),
    ("qwen3.5-9b+mtp", "8-12 GB", 5.9, 6.3),
    ("qwen3.6-27b+mtp", "24 GB", 20.8, 21.6),
    ("qwen3-8b-eagle3", "chat", 5.4, 6.9),
)
_PUBLISHED = (
    "llama.cpp #5877: 8B Q8_0 + 1B Q8_0, RTX 3060 12 GB, 32.5 -> 55.5 tok/s (1.71x), 72 % accepted, 5 drafted"
)


def _row(name: str, use: str, size: float, memory: float) -> PairRow:
    fits = "no" if memory > 48 else "cpu" if memory > 16 else "gpu"
    best = name == "llama-3-8b+1b"
    return PairRow(name, use, int(size * 1e9), int(memory * 1e9), False, fits, None, _PUBLISHED, best)


_ROWS = (*_HERE, *(_row(*row) for row in _TO_FETCH))


def called(name: str = "demo", *, listed: bool = True) -> Pair:
    """A pair of that name, which the scripted engine loads."""
    return Pair(name, DraftKind.MODEL, ModelFile.at(Path(name)), listed=listed)


@dataclass
class Gate:
    """Holds replies back: `hold_after` cycles pass, then the reply waits until it is opened."""

    hold_after: int | None = None
    opened: threading.Event = field(default_factory=threading.Event)

    def wait(self, cycles: int, cancelled: Callable[[], bool]) -> None:
        while self.hold_after is not None and cycles >= self.hold_after and not self.opened.is_set():
            if cancelled():
                return
            self.opened.wait(0.005)


class ScriptedPairs(Downloads):
    """The pairs above; all but one count as being here, and a pull takes ten steps."""

    def __init__(self, gate: Gate | None = None) -> None:
        super().__init__()
        self.gate = gate or Gate()
        self.pulled: set[str] = set()
        self.failure: Exception | None = None  # of the next pull, and of the next list

    def find(self, name: str) -> Pair:
        if name == "llama-3-8b+1b" and name not in self.pulled:
            raise NotOnDisk(f"{name} is not on this machine (6.1 GB to download)", hint="Download it.")
        if name.endswith(".gguf"):
            return super().find(name)
        if name not in [row.name for row in _ROWS]:
            raise UnknownPair(f"there is no pair called {name}", hint="did you mean demo?")
        return called(name)

    def listing(self) -> list[PairRow]:
        self._fail()
        rows = (replace(row, on_disk=row.on_disk or row.name in self.pulled) for row in _ROWS)
        return sorted(rows, key=lambda row: not row.on_disk)

    def size(self, name: str) -> int:
        return next(row.size_bytes for row in _ROWS if row.name == name)

    def fetch(self, name: str, on_bytes: Callable[[int, int], object], cancelled: Callable[[], bool]) -> None:
        for step in range(11):
            self.gate.wait(step, cancelled)
            if cancelled():
                raise PullCancelled("stopped", hint="")
            on_bytes(step * 610_000_000, 6_100_000_000)
        self._fail()
        self.pulled.add(name)

    def _fail(self) -> None:
        if self.failure:
            failure, self.failure = self.failure, None
            raise failure
