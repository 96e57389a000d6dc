"""Earlier states of a sequence, for memories that cannot step back to them: recurrent ones and windows."""

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from localspec.llama.library import lib

_PARTIAL = lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY  # what lies in an attention cache for good is left there
_BYTES = ctypes.POINTER(ctypes.c_uint8)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a sequence after its first `length` tokens."""

    length: int
    state: np.ndarray  # uint8
    lasting: bool

    def restore(self, context: Any) -> bool:  # noqa: ANN401  a C pointer
        """Bring the state back; where that fails the sequence is of no use any more."""
        return restore_state(context, self.state, _PARTIAL)


class Checkpoints:
    """The checkpoints of one sequence: at most `budget` bytes, the oldest are dropped first."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._kept: list[Checkpoint] = []  # by length

    @property
    def bytes(self) -> int:
        """What they take now."""
        return sum(len(checkpoint.state) for checkpoint in self._kept)

    @property
    def newest(self) -> Checkpoint | None:
        return self._kept[-1] if self._kept else None

    def take(self, context: Any, length: int, *, lasting: bool) -> None:  # noqa: ANN401  a C pointer
        """Add the present state, of `length` tokens; it takes the place of one that was not to last."""
        replaced = next((kept.state for kept in self._kept if not kept.lasting), None)
        self._kept = [kept for kept in self._kept if kept.lasting and kept.length < length]
        state = state_of(context, most_bytes=self._budget, flags=_PARTIAL, into=replaced)
        if state is None:
            return
        while self.bytes + len(state) > self._budget:
            del self._kept[0]
        self._kept.append(Checkpoint(length, state, lasting))

    def copy(self) -> "Checkpoints":
        """The lasting checkpoints, of which either text drops its own."""
        copied = Checkpoints(self._budget)
        copied._kept = [kept for kept in self._kept if kept.lasting]
        return copied

    def forget_after(self, length: int) -> None:
        """Drop those of more tokens: the text goes on otherwise."""
        self._kept = [kept for kept in self._kept if kept.length <= length]


def state_of(
    context: Any,  # noqa: ANN401  a C pointer
    *,
    most_bytes: int | None = None,
    flags: int = 0,
    into: np.ndarray | None = None,
) -> np.ndarray | None:
    """Copy the sequence's state; None where it has more bytes than that, or llama.cpp cannot copy it.

    `into` is used again where it has the right size: fresh memory costs more than the copy.
    """
    size = lib.llama_state_seq_get_size_ext(context, 0, flags)
    if not size or (most_bytes is not None and size > most_bytes):
        return None
    state = into if into is not None and len(into) == size else np.empty(size, dtype=np.uint8)
    copied = lib.llama_state_seq_get_data_ext(context, _address(state), size, 0, flags)
    return state if copied == size else None


def restore_state(context: Any, state: np.ndarray, flags: int = 0) -> bool:  # noqa: ANN401  a C pointer
    return bool(lib.llama_state_seq_set_data_ext(context, _address(state), len(state), 0, flags))


def _address(state: np.ndarray) -> Any:  # noqa: ANN401  a C pointer
    return state.ctypes.data_as(_BYTES)
