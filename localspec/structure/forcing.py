"""A drafting strategy that first proposes tokens that a grammar forces, then another strategy's draft tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Protocol

from localspec.algorithm.protocols import PlainStep, Proposal, Strategy
from localspec.errors import LocalspecError
from localspec.events import Cycle, Mode, Origin, Source
from localspec.sampler.passes import Continued, ForwardPass


class Forcer(Protocol):
    """A constraint that may leave only one token; its methods are those of `constraint.Constrained`."""

    def settle(self, tokens: Sequence[int]) -> None: ...
    def forced(self, history: Sequence[int]) -> list[int]: ...
    def valid(self, history: Sequence[int], tokens: Sequence[int]) -> int: ...
    def mask(self, history: Sequence[int]) -> object: ...


class Forcing(Strategy):
    def __init__(self, inner: Strategy, forcer: Forcer, widest: int) -> None:
        """`widest`: the largest number of tokens in a verify batch. With 0, the strategy forces no tokens."""
        self._inner = inner
        self._forcer = forcer
        self._widest = widest
        self._proposed = False  # whether the inner strategy proposed draft tokens in this cycle

    @property
    def busy_seconds(self) -> float:
        return self._inner.busy_seconds

    @property
    def why_off(self) -> str | None:
        return self._inner.why_off

    @property
    def failure(self) -> LocalspecError | None:
        return self._inner.failure

    @property
    def plain_step(self) -> PlainStep:
        return self._inner.plain_step

    def sync(self, tokens: Sequence[int]) -> Iterator[None]:
        return self._inner.sync(tokens)

    def propose(self, tokens: Sequence[int], room: int) -> Proposal:
        self._forcer.settle(tokens)
        room = min(room, self._widest - 1) if self._widest else room
        began = perf_counter()
        forced = tuple(self._forcer.forced(tokens)[:room]) if self._widest else ()
        looking = perf_counter() - began if self._widest and not forced else 0.0
        text = [*tokens, *forced] if forced else tokens
        self._proposed = len(forced) < room or not forced
        drafted = self._inner.propose(text, room - len(forced)) if self._proposed else Proposal()
        # Drop the first token that the grammar forbids, and all after it: lookup ignores the grammar.
        drafted = drafted.first(self._forcer.valid(text, drafted.tokens)) if drafted.tokens else drafted
        return drafted._replace(
            tokens=forced + drafted.tokens,
            q=(None,) * len(forced) + drafted.q,
            confidences=(1.0,) * len(forced) + drafted.confidences,
            source=drafted.source if drafted.tokens else Source.FORCED,
            certain=len(forced),
            deciding_seconds=drafted.deciding_seconds + looking,
            mode=Mode.DRAFTING if forced and drafted.mode is Mode.BASELINE else drafted.mode,
        )

    def prepare(self, proposal: Proposal, tokens: Sequence[int]) -> None:
        for drafted in range(proposal.certain, len(proposal.tokens) + 1):
            self._forcer.mask(Continued(tokens, proposal.tokens[:drafted]))

    def observe(self, batch: ForwardPass, kept: int) -> None:
        self._inner.observe(batch, kept)

    def learn_prefill(self, batch: ForwardPass, seconds: float) -> None:
        self._inner.learn_prefill(batch, seconds)

    def learn(self, cycle: Cycle) -> None:
        """Let the inner strategy learn from the cycle without the forced tokens, which would distort its costs."""
        if not self._proposed:
            return
        if forced := cycle.origins.count(Origin.FORCED):
            plain, width = self.plain_step.seconds, cycle.width - forced
            if plain is None or (width == 1 and not cycle.draft_seconds):
                return
            # Estimate the time without forced tokens, as if each token added the same time to a plain step.
            added = (cycle.verify_seconds - plain) * (width - 1) / (cycle.width - 1)
            seconds = min(plain + added, cycle.verify_seconds)
            tokens, origins = cycle.tokens[forced:], cycle.origins[forced:]
            cycle = replace(cycle, tokens=tokens, origins=origins, width=width, verify_seconds=seconds)
        self._inner.learn(cycle)
