"""Runs a depth controller through a world; time is simulated, so nothing here depends on the machine."""

import random
from dataclasses import dataclass

from localspec.events import Cycle, Mode, Origin, Source
from localspec.speculation.depth import Auto, Plan
from localspec.speculation.protocols import Stopping

from .worlds import Curve, Text


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
        kept = accepted(text, at, depth_now)
        seconds += curve.cycle(depth_now)
        at += kept + 1
    return seconds


def accepted(text: Text, at: int, depth: int) -> int:
    kept = 0
    while kept < depth and text.agrees[at + kept]:
        kept += 1
    return kept


@dataclass(frozen=True, slots=True)
class Outcome:
    seconds: float
    depths: tuple[int, ...]
    modes: tuple[Mode, ...]


def run_auto(curve: Curve, text: Text, auto: Auto, rng: random.Random, noise: Noise = Noise()) -> Outcome:
    """True time of a text under a controller that sees noisy times."""
    seconds, at, n = 0.0, 0, len(text.agrees)
    depths, modes = [], []
    while at < n:
        plan = auto.plan(n - at - 1)
        drafted, drawn = draft(text, at, plan.depth, auto.stopping(plan))
        kept = accepted(text, at, drafted)
        spent = curve.verify(drafted + 1) + (curve.overhead + curve.draft(drawn) if drawn else 0.0)
        seconds += spent
        cycle = make_cycle(curve, plan, drafted, drawn, kept, rng, noise)
        auto.learn(cycle, text.confidence[at : at + drafted])
        depths.append(drafted)
        modes.append(plan.mode)
        at += kept + 1
    return Outcome(seconds, tuple(depths), tuple(modes))


def draft(text: Text, at: int, limit: int, stopping: Stopping | None) -> tuple[int, int]:
    """How many tokens a drafter proposes, and how many it draws for that."""
    drafted = 0
    while drafted < limit:
        if stopping and not stopping.keeps(text.confidence[at + drafted], drafted):
            return drafted, drafted + 1
        drafted += 1
        if stopping and not stopping.goes_on(drafted):
            break
    return drafted, drafted


def make_cycle(
    curve: Curve, plan: Plan, drafted: int, drawn: int, kept: int, rng: random.Random, noise: Noise
) -> Cycle:
    factor = max(1 + rng.gauss(0, noise.spread), 0.5)
    if rng.random() < noise.outliers:
        factor *= noise.outlier_factor
    last = Origin.PLAIN if not drafted else Origin.BONUS if kept == drafted else Origin.FIX
    return Cycle(
        tokens=(1,) * (kept + 1),
        origins=(Origin.ACCEPTED,) * kept + (last,),
        proposal=(1,) * drafted,
        accepted=kept,
        depth=plan.depth,
        source=Source.MODEL if drafted else Source.PLAIN,
        width=drafted + 1,
        draft_seconds=factor * curve.draft(drawn) if drawn else 0.0,
        verify_seconds=factor * curve.verify(drafted + 1),
        other_seconds=factor * curve.overhead if drawn else 0.0,
        mode=plan.mode,
    )
