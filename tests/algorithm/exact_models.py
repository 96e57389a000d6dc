"""Exact models: logits are integer functions of the cache, so one wrong token in it changes the text."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from localspec.sampler.passes import ForwardPass

VOCABULARY = 23
END = 0


def following(state: int, token: int) -> int:
    """The state after one more token."""
    state = ((state ^ (token + 1)) * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return state ^ state >> 29


def logits_of(state: int, vocabulary: int = VOCABULARY) -> np.ndarray:
    """Exact float32 logits in 0..8, steps of 1/128."""
    mixed = (np.arange(1, vocabulary + 1, dtype=np.uint64) * np.uint64(state | 1)) >> np.uint64(20)
    return ((mixed & np.uint64(1023)).astype(np.float32)) / np.float32(128)


class ExactModel:
    """A `Decoder` with exact arithmetic, whose hidden rows are its states; `decoded` counts computed positions."""

    def __init__(
        self, seed: int, *, capacity: int = 4096, chunk: int = 8, vocabulary: int = VOCABULARY
    ) -> None:
        self.seed = seed
        self.capacity = capacity
        self.chunk = chunk
        self.vocabulary = vocabulary
        self.cache: list[int] = []
        self._states: dict[int, list[int]] = {}  # by seed, after each token of the cache
        self.decoded = 0
        self.busy_seconds = 0.0

    @property
    def length(self) -> int:
        return len(self.cache)

    needs_checkpoints = False

    @property
    def tokens(self) -> list[int]:
        return self.cache

    def state(self, seed: int) -> int:
        """What a model of that seed knows: a hash of all tokens of the cache in their order, 64 bits."""
        states = self._states.setdefault(seed, [seed * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF])
        for token in self.cache[len(states) - 1 :]:
            states.append(following(states[-1], token))
        return states[-1]

    def row(self) -> np.ndarray:
        return logits_of(self.state(self.seed), self.vocabulary)

    def decode(self, tokens: Sequence[int], rows: int) -> ForwardPass:
        assert 0 <= rows <= len(tokens)
        assert self.length + len(tokens) <= self.capacity, "decoded past the context"
        start, found, states = self.length, [], []
        for i, token in enumerate(tokens):
            self.cache.append(token)
            self.decoded += 1
            states.append(self.state(self.seed))
            if i >= len(tokens) - rows:
                found.append(self.row())
        return ForwardPass(start, tokens, found, np.array(states, dtype=np.uint64).reshape(-1, 1))

    def prefill(
        self, tokens: Sequence[int], cancelled: Callable[[], bool] = lambda: False
    ) -> Iterator[ForwardPass]:
        for start in range(0, len(tokens), self.chunk):
            yield self.decode(tokens[start : start + self.chunk], rows=0)

    def top_k_rows(self, logits: int | None) -> None:
        pass

    def rollback(self, keep: int) -> None:
        assert keep <= self.length, "rolled back to tokens that were never decoded"
        del self.cache[keep:]
        for states in self._states.values():
            del states[keep + 1 :]

    def rewind(self, keep: int) -> int:
        self.rollback(keep)
        return keep

    def recall(self, tokens: Sequence[int], *, save: bool = True) -> float:
        return 0.0

    def checkpoint(self, *, lasting: bool) -> None:
        pass


class Blend(ExactModel):
    """A draft that sees the target's logits in `agreement` of all states and its own in the others."""

    def __init__(self, seed: int, agreement: float, **kwargs: int) -> None:
        super().__init__(seed + 1, **kwargs)
        self.target_seed = seed
        self.agreement = agreement

    def row(self) -> np.ndarray:
        own = super().row()
        agrees = (int(own[1] * 128) * 7919 % 1000) / 1000 < self.agreement
        return logits_of(self.state(self.target_seed), self.vocabulary) if agrees else own


def never(token):
    return False
