"""A strategy in front of another one: what a grammar forces goes first, and costs no draft."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import perf_counter

from localspec.algorithm.protocols import PlainStep, Proposal, Strategy
from localspec.errors import LocalspecError
from localspec.events import Cycle, Mode, Origin, Source
from localspec.sampler.passes import Pass
from localspec.structure.constraint import Constrained


class Forcing(Strategy):
    """Puts forced tokens in front of what another strategy proposes to follow them.

    `widest`: tokens that a verify batch may have; 0 forces nothing and only follows the text.
    """

    def __init__(self, inner: Strategy, forcer: Constrained, widest: int) -> None:
        self._inner = inner
        self._forcer = forcer
        self._widest = widest
        self._asked = False  # whether the inner strategy had a say in this cycle
        self._costs = WidthCosts()

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

    def catch_up(self, tokens: Sequence[int]) -> Iterator[None]:
        return self._inner.catch_up(tokens)

    def propose(self, tokens: Sequence[int], room: int) -> Proposal:
        self._forcer.settle(tokens)
        room = min(room, self._widest - 1) if self._widest else room
        began = perf_counter()
        forced = tuple(self._forcer.forced(tokens)[:room]) if self._widest else ()
        looking = perf_counter() - began if self._widest and not forced else 0.0
        text = [*tokens, *forced] if forced else tokens
        self._asked = len(forced) < room or not forced
        drafted = self._inner.propose(text, room - len(forced)) if self._asked else Proposal()
        drafted = self._accepted_by_grammar(text, drafted)
        return replace(
            drafted,
            tokens=forced + drafted.tokens,
            q=(None,) * len(forced) + drafted.q,
            confidences=(1.0,) * len(forced) + drafted.confidences,
            source=drafted.source if drafted.tokens else Source.FORCED,
            certain=len(forced),
            padding=max(drafted.padding - len(forced), 0),
            deciding_seconds=drafted.deciding_seconds + looking,
            mode=Mode.DRAFTING if forced and drafted.mode is Mode.ANCHOR else drafted.mode,
        )

    def observe(self, batch: Pass, kept: int) -> None:
        self._inner.observe(batch, kept)

    def end(self) -> None:
        self._inner.end()

    def learn(self, cycle: Cycle) -> None:
        """The inner strategy learns of the cycle as it would have been without the forced tokens.

        Their share of the batch's time would look like a loss by drafting, and their number like a gain. A
        batch of forced tokens alone teaches it nothing: a plain step is only what was measured as one.
        """
        self._costs.learn(cycle.width, cycle.verify_seconds)
        forced = cycle.origins.count(Origin.FORCED)
        drafted = cycle.width > forced + 1 or cycle.draft_seconds > 0
        if self._asked and (not forced or (self._costs.known and drafted)):
            self._inner.learn(
                replace(
                    cycle,
                    tokens=cycle.tokens[forced:],
                    origins=cycle.origins[forced:],
                    width=cycle.width - forced,
                    verify_seconds=self._costs.narrower(cycle.width, cycle.verify_seconds, forced),
                )
            )

    def _accepted_by_grammar(self, text: Sequence[int], drafted: Proposal) -> Proposal:
        """A proposal cut before the first token that the grammar forbids: lookup knows no grammar.

        Drawn tokens come from masked distributions, so this cuts chosen ones only and biases nothing.
        """
        kept = self._forcer.valid(text, drafted.tokens) if drafted.tokens else 0
        return drafted if kept == len(drafted.tokens) else drafted.first(kept)


class WidthCosts:
    """What another token in a verify batch costs: the slope of seconds over width, by least squares."""

    def __init__(self) -> None:
        self._count = 0
        self._widths = self._seconds = self._squares = self._products = 0.0

    def learn(self, width: int, seconds: float) -> None:
        self._count += 1
        self._widths += width
        self._seconds += seconds
        self._squares += width * width
        self._products += width * seconds

    @property
    def known(self) -> bool:
        """Whether batches of different widths were seen."""
        return self._spread > 0.0

    def narrower(self, width: int, seconds: float, fewer: int) -> float:
        """About how long a batch would have taken with fewer tokens: at least its share, at most as long."""
        if not fewer or not self.known:
            return seconds
        slope = (self._count * self._products - self._widths * self._seconds) / self._spread
        return min(max(seconds - fewer * slope, seconds * (width - fewer) / width), seconds)

    @property
    def _spread(self) -> float:
        return self._count * self._squares - self._widths * self._widths
