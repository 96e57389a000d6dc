"""What a pair has taught about itself, in a form that can be stored; and what is guessed before it taught anything."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from localspec.control.acceptance import ChanceWeights
from localspec.control.costs import CostTable
from localspec.drafters.lookup import LookupCounts

DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)
LOOKUP_DEPTHS = (1, 2, 3, 4, 5, 6, 7, 11, 15, 23, 31)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What was learned about acceptance in one kind of sampling."""

    chances: ChanceWeights | None = None
    trust: LookupCounts | None = None


@dataclass(frozen=True, slots=True)
class TunedState:
    """Everything that a later run with the same files on the same machine can start from."""

    costs: tuple[CostTable, ...] = ()  # one for each length of the context
    greedy: Acceptance = field(default_factory=Acceptance)
    sampled: Acceptance = field(default_factory=Acceptance)
    seeded_depth: int | None = None  # of replies with a seed; once known it stays, so that a seed repeats


def guess_for(device: str, run_shares: Mapping[str, float]) -> CostTable:
    """What batches probably cost on a kind of device (`cuda`, `cpu`, ...) before they are measured.

    `run_shares`: what a run of a drafter's model takes of a plain step, by `Drafter.source`, where that is known.
    """
    runs = dict(run_shares)
    if device == "cuda":
        widths, seconds = (1, 2, 8, 9, 16, 32), (1, 1.05, 1.2, 2.0, 2.3, 3.0)
        return CostTable(
            widths, seconds, runs, measured=False, direct_extra_seconds=0.1, capture_extra_seconds=0.5
        )
    if device == "cpu":
        return CostTable((1, 2, 3, 5, 8, 16, 32), (1, 1.3, 1.45, 1.9, 2.6, 4.6, 8.6), runs, measured=False)
    return CostTable((1, 2, 8, 9, 16, 32), (1, 1.15, 1.8, 2.2, 3.0, 5.0), runs, measured=False)
