"""The learning curve as a drawing: overlap on held-out answers, and the loss."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from localspec.measure.plot import Bar, Chart

if TYPE_CHECKING:
    from localspec.fit.learning import Progress

MOST = 24  # bars


def curves(seen: "Sequence[Progress]") -> tuple[Chart, Chart]:
    """One point for each judgement of the draft; of many, some at equal distances and the latest."""
    some = [(f"{now.visits:,} tokens", now) for now in seen[:: -len(seen) // MOST][::-1]]
    overlaps = [Bar(label, now.overlap, f"{now.overlap:.1%}") for label, now in some]
    losses = [Bar(label, now.loss, f"{now.loss:.2f}") for label, now in some if now.loss]
    return Chart("Overlap on held-out answers", tuple(overlaps)), Chart("Loss", tuple(losses))
