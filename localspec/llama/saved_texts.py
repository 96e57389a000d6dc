"""Texts that a cache held before, kept in the computer's memory with their states."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from localspec.llama.checkpoints import Checkpoints, restore_state, state_of
from localspec.llama.library import lib
from localspec.passes import standing

LEAST = 256  # tokens: fewer are read again about as fast as a state is copied


class SavedCompanion(Protocol):
    """What a companion keeps of a text."""

    @property
    def bytes(self) -> int:
        """What it takes."""


class Companion(Protocol):
    """What reads a text along with the cache, and has a state of its own: a prediction head."""

    def saved(self) -> SavedCompanion | None:
        """A copy of its state; None where it has none that is worth keeping."""

    def restore(self, saved: Any) -> None:  # noqa: ANN401  what `saved` returned
        """Bring a copy back."""


@dataclass(frozen=True, slots=True)
class SavedText:
    """What a cache held: its tokens, its whole state, the checkpoints on the way, and its companion's state."""

    tokens: list[int]
    state: np.ndarray  # uint8
    checkpoints: Checkpoints
    companion: SavedCompanion | None = None

    @property
    def bytes(self) -> int:
        beside = self.companion.bytes if self.companion else 0
        return len(self.state) + self.checkpoints.bytes + beside

    def restore(self, context: Any) -> list[int]:  # noqa: ANN401  a C pointer
        """Bring the state back into an empty cache; the tokens that it then holds, none where that fails."""
        if restore_state(context, self.state):
            return self.tokens
        lib.llama_memory_clear(lib.llama_get_memory(context), True)
        return []


class SavedTexts:
    """At most `budget` bytes of texts. Branches of other texts are dropped first, then the oldest text."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._saved: list[SavedText] = []

    def save(
        self,
        context: Any,  # noqa: ANN401  a C pointer
        tokens: Sequence[int],
        checkpoints: Checkpoints,
        companion: Companion | None,
    ) -> None:
        """Save the text that the cache holds, if the budget has room for it."""
        state = state_of(context, most_bytes=self._budget - checkpoints.bytes)
        if state is None:
            return
        # A saved text that this one begins with is of no more use.
        self._saved = [
            saved for saved in self._saved if standing(saved.tokens, 0, tokens) < len(saved.tokens)
        ]
        beside = companion.saved() if companion else None
        self._saved.append(SavedText(list(tokens), state, checkpoints.copy(), beside))
        while sum(saved.bytes for saved in self._saved) > self._budget:
            del self._saved[self._least_useful()]

    def take(self, tokens: Sequence[int], at_least: int) -> SavedText | None:
        """The text that begins most like these tokens, if at least so many of them; it is no longer kept here."""
        shared = [standing(saved.tokens, 0, tokens) for saved in self._saved]
        most = max(shared, default=0)
        return self._saved.pop(shared.index(most)) if most >= at_least else None

    def _least_useful(self) -> int:
        """The index of the oldest text that shares half of its tokens with a newer one, or of the oldest of all."""
        for index, saved in enumerate(self._saved):
            newer = self._saved[index + 1 :]
            if any(2 * standing(saved.tokens, 0, other.tokens) >= len(saved.tokens) for other in newer):
                return index
        return 0
