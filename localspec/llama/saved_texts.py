"""Texts that a cache held before, kept in the computer's memory with their states."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from localspec.llama.checkpoints import Checkpoints, restore_state, state_of
from localspec.llama.library import lib
from localspec.passes import standing

LEAST = 256  # tokens: fewer are read again about as fast as a state is copied


@dataclass(frozen=True, slots=True)
class SavedText:
    """What a cache held: its tokens, its whole state, and the checkpoints on the way."""

    tokens: list[int]
    state: bytearray
    checkpoints: Checkpoints

    @property
    def bytes(self) -> int:
        return len(self.state) + self.checkpoints.bytes

    def restore(self, context: Any) -> list[int]:  # noqa: ANN401  a C pointer
        """Bring the state back into an empty cache; the tokens that it then holds, none where that fails."""
        if restore_state(context, self.state):
            return self.tokens
        lib.llama_memory_clear(lib.llama_get_memory(context), True)
        return []


class SavedTexts:
    """At most `budget` bytes of texts; those that were saved first are dropped first."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._saved: list[SavedText] = []

    def exchange(
        self,
        context: Any,  # noqa: ANN401  a C pointer
        held: Sequence[int],
        checkpoints: Checkpoints,
        wanted: Sequence[int],
    ) -> SavedText | None:
        """Save what the cache holds, if much of it would be lost; the text that saves reading much of the wanted one.

        That text is no longer kept here.
        """
        shared = standing(held, 0, wanted)
        found = self._take(wanted, shared + LEAST)
        if len(held) - shared >= LEAST:
            self._save(context, held, checkpoints)
        return found

    def _take(self, tokens: Sequence[int], at_least: int) -> SavedText | None:
        shared = [standing(saved.tokens, 0, tokens) for saved in self._saved]
        most = max(shared, default=0)
        return self._saved.pop(shared.index(most)) if most >= at_least else None

    def _save(self, context: Any, tokens: Sequence[int], checkpoints: Checkpoints) -> None:  # noqa: ANN401
        state = state_of(context, most_bytes=self._budget - checkpoints.bytes)
        if state is None:
            return
        # A saved text that this one begins with is of no more use.
        self._saved = [
            saved for saved in self._saved if standing(saved.tokens, 0, tokens) < len(saved.tokens)
        ]
        self._saved.append(SavedText(list(tokens), state, checkpoints.copy()))
        while sum(saved.bytes for saved in self._saved) > self._budget:
            del self._saved[0]
