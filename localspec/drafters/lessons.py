"""What a pair has taught about itself, in a form that can be stored; and what is guessed before it taught anything."""

from dataclasses import dataclass, field

from localspec.drafters.lookup_trust import TrustCounts
from localspec.speculation.chances import ChanceWeights
from localspec.speculation.costs import CostTable

CPU_DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)
# CUDA rebuilds its graph whenever the batch width changes, and its matrix-vector kernels end at width 8.
CUDA_DEPTHS = (1, 2, 3, 5, 7)
LOOKUP_DEPTHS = (1, 2, 3, 4, 5, 6, 7, 11, 15, 23, 31)
SWITCHING_IS_DEAR = 1.10  # cost of a changed width from which on proposals keep to few depths


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What was learned about acceptance in one kind of sampling."""

    chances: ChanceWeights | None = None
    trust: TrustCounts | None = None


@dataclass(frozen=True, slots=True)
class Lessons:
    """Everything that a later run with the same files on the same machine can start from."""

    costs: CostTable | None = None
    greedy: Acceptance = field(default_factory=Acceptance)
    sampled: Acceptance = field(default_factory=Acceptance)


def guess_for(device: str) -> CostTable:
    """What batches probably cost on a kind of device (`cuda`, `cpu`, ...) before they are measured."""
    if device == "cuda":
        return CostTable((1, 2, 8, 9, 16, 32), (1, 1.05, 1.2, 2.0, 2.3, 3.0), 0.12, measured=False)
    if device == "cpu":
        return CostTable((1, 2, 3, 5, 8, 16, 32), (1, 1.3, 1.45, 1.9, 2.6, 4.6, 8.6), 0.12, measured=False)
    return CostTable((1, 2, 8, 9, 16, 32), (1, 1.15, 1.8, 2.2, 3.0, 5.0), 0.12, measured=False)


def depths_for(device: str, table: CostTable) -> tuple[int, ...]:
    """The depths that a draft model may use."""
    return CUDA_DEPTHS if device == "cuda" or table.switch_ratio > SWITCHING_IS_DEAR else CPU_DEPTHS
