"""Runs a depth controller through a world; time is simulated, so nothing here depends on the machine."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from localspec.algorithm.protocols import Backlog, Proposal, Rule, Stopping
from localspec.algorithm.verification import make_rule
from localspec.control.company import Company
from localspec.control.costs import CostsByContext
from localspec.control.depth import DepthControl
from localspec.drafters.arbiter import Arbiter
from localspec.drafters.model import AT_ONCE
from localspec.events import Cycle, Origin, Source
from localspec.sampler.passes import Pass
from localspec.sampler.sampling import Sampling

from .worlds import Curve, Text

ANY_RULE = make_rule("greedy", Sampling(temperature=0.0), 0)


class OneRunAToken:
    """What a depth control asks of a draft model."""

    source = Source.MODEL

    def model_runs(self, depth: int) -> int:
        return depth


@dataclass(frozen=True, slots=True)
class Noise:
    """What a clock adds to true costs."""

    spread: float = 0.06  # standard deviation, relative
    outliers: float = 0.01  # share of cycles
    outlier_factor: float = 4.0


def run_fixed(curve: Curve, text: Text, depth: int) -> float:
    """True time of a text at one fixed depth."""
    seconds, at, n = 0.0, 0, len(text.agrees)
    while at < n:
        depth_now = min(depth, n - at - 1)
        kept = accepted(text.agrees[at : at + depth_now])
        if depth_now:
            seconds += curve.overhead + curve.draft(depth_now)
        seconds += curve.verify(depth_now + 1)
        at += kept + 1
    return seconds


def accepted(agrees: Sequence[bool]) -> int:
    """How many draft tokens are kept, by whether each is what the target says."""
    return next((i for i, agreed in enumerate(agrees) if not agreed), len(agrees))


class SimulatedDrafter:
    """A draft model whose guesses are a text's and whose time is a curve's; reading costs `reading` a token."""

    source = Source.MODEL
    hidden_rows_needed = failure = None

    def __init__(self, curve: Curve, text: Text, unread: int, reading: float) -> None:
        """`unread`: tokens of the prompt before the text."""
        self._curve = curve
        self._text = text
        self._reading = reading
        self._first = self._next = 0 if reading else unread  # what it has read of prompt and text
        self._prompt = unread
        self.busy_seconds = 0.0

    def model_runs(self, depth: int) -> int:
        return depth

    def begin(self) -> None:
        """Nothing fails here."""

    def observe(self, batch: Pass, kept: int) -> None:
        """Of its own proposal it has read all but the last token."""
        if batch.tokens:
            self._next = min(self._next, batch.start + kept)

    def backlog(self, tokens: Sequence[int]) -> Backlog:
        unread = len(tokens) - 1 - self._next
        return Backlog(unread if unread > AT_ONCE else 0, self._next - self._first, self._first)

    def read(self, tokens: Sequence[int], most: int) -> int:
        count = min(most, len(tokens) - 1 - self._next)
        self._next += count
        self.busy_seconds += count * self._reading
        return count

    def restart(self, tokens: Sequence[int], window: int) -> None:
        self._first = self._next = len(tokens) - 1 - window

    def propose(
        self, tokens: Sequence[int], limit: int, rule: Rule, stopping: Stopping | None = None
    ) -> Proposal:
        sure = self._text.confidence[len(tokens) - 1 - self._prompt :]
        drafted = drawn = 0
        while drafted < limit:
            drawn = drafted + 1
            if stopping and not stopping.keeps(sure[drafted], drafted):
                break
            drafted += 1
            if stopping and not stopping.goes_on(drafted):
                break
        self.busy_seconds += self._curve.draft(drawn) if drawn else 0.0
        self._next = len(tokens) - 1 + max(drawn, 1)
        return Proposal(
            (1,) * drafted, (None,) * drafted, sure[:drafted], Source.MODEL, depth=limit, runs=drawn
        )


def run_auto(
    curve: Curve,
    text: Text,
    places: CostsByContext,
    control: DepthControl,
    rng: random.Random,
    noise: Noise = Noise(),
    *,
    unread: int = 0,
    reading: float = 0.0,
) -> float:
    """True time of a text with automatic depth, which sees noisy times.

    The draft has a prompt of `unread` tokens to read.
    """
    control.drafter = drafter = SimulatedDrafter(curve, text, unread, reading)
    arbiter = Arbiter(Company(places), [control], ANY_RULE)
    seconds, at, n = 0.0, 0, len(text.agrees)
    while at < n:
        busy = drafter.busy_seconds
        proposal = arbiter.propose(range(unread + at + 1), n - at - 1)
        draft_seconds = drafter.busy_seconds - busy
        kept = accepted(text.agrees[at : at + len(proposal.tokens)])
        arbiter.observe(Pass(unread + at, (0, *proposal.tokens)), kept + 1)
        verify_seconds = curve.verify(len(proposal.tokens) + 1 + proposal.padding)
        cycle = cycle_of(
            proposal,
            (1,) * (kept + 1),
            draft_seconds=draft_seconds,
            verify_seconds=verify_seconds,
            other_seconds=curve.overhead if draft_seconds else 0.0,
        )
        seconds += cycle.seconds
        arbiter.learn(noisy(cycle, rng, noise))
        at += kept + 1
    return seconds


def cycle_of(
    proposal: Proposal,
    tokens: tuple[int, ...],
    *,
    verify_seconds: float,
    draft_seconds: float = 0.0,
    other_seconds: float = 0.0,
) -> Cycle:
    """A cycle that brought these tokens."""
    drafted, kept = len(proposal.tokens), len(tokens) - 1
    last = Origin.PLAIN if not drafted else Origin.BONUS if kept == drafted else Origin.FIX
    return Cycle(
        tokens=tokens,
        origins=(Origin.ACCEPTED,) * kept + (last,),
        proposal=proposal.tokens,
        accepted=kept,
        depth=proposal.depth,
        source=proposal.source if drafted else Source.PLAIN,
        width=drafted + 1,
        draft_seconds=draft_seconds,
        verify_seconds=verify_seconds,
        other_seconds=other_seconds,
        mode=proposal.mode,
        reading_seconds=proposal.reading_seconds,
    )


def noisy(cycle: Cycle, rng: random.Random, noise: Noise) -> Cycle:
    """The cycle as a clock shows it."""
    factor = max(1 + rng.gauss(0, noise.spread), 0.5)
    if rng.random() < noise.outliers:
        factor *= noise.outlier_factor
    return replace(
        cycle,
        draft_seconds=factor * cycle.draft_seconds,
        verify_seconds=factor * cycle.verify_seconds,
        other_seconds=factor * cycle.other_seconds,
    )
