"""A cost curve as text: the table, the bars, and from where on drafting pays."""

from dataclasses import asdict
from typing import Any

from localspec.measure.plot import Bar, Chart, drawn
from localspec.measure.tune.tune import Curve

DEPTHS = (1, 2, 3, 4, 5, 7)
EXTRA_TO_MENTION = 0.05  # of a plain step: what a pass after one of another width takes longer


def report(curve: Curve, columns: int) -> str:
    """Everything for a terminal of that many columns."""
    return "\n\n".join((table(curve), drawn(chart(curve), columns), words(curve)))


def table(curve: Curve) -> str:
    lines = ["tokens in a pass        ms    95 % interval   x one token   ms per token"]
    for cost in curve.widths:
        low, high = cost.seconds.low * 1000, cost.seconds.high * 1000
        interval = f"{low:.1f} to {high:.1f}" if cost.seconds.known else "too few"
        seconds = cost.seconds.middle
        lines.append(
            f"{cost.width:>16}  {seconds * 1000:>8.1f}  {interval:>15}  {cost.relative:>12.2f}  "
            f"{seconds * 1000 / cost.width:>13.1f}"
        )
    return "\n".join(lines)


def chart(curve: Curve) -> Chart:
    """The curve as bars, in units of one plain step."""
    plain = curve.plain_seconds
    return Chart(
        title="Cost of a target pass, in passes over one token",
        bars=tuple(
            Bar(
                label=f"{cost.width} token{'s' if cost.width > 1 else ''}",
                value=cost.relative,
                low=cost.seconds.low / plain if cost.seconds.known else None,
                high=cost.seconds.high / plain if cost.seconds.known else None,
                text=f"{cost.relative:.2f}x",
            )
            for cost in curve.widths
        ),
        reference=1.0,
        more_is_better=False,
    )


def words(curve: Curve) -> str:
    """What the curve means for drafting."""
    table = curve.table
    lines = []
    if curve.run_seconds:
        share = curve.run_seconds / curve.plain_seconds
        each = "A draft token" if curve.runs[2] == 2 else "A draft of any depth"
        lines.append(f"{each} costs {curve.run_seconds * 1000:.1f} ms, {share:.0%} of a plain token.")
        needed = ", ".join(f"{curve.break_even(depth):.2f} at {depth}" for depth in DEPTHS)
        lines.append(f"Drafting pays from this many tokens per target pass, by depth: {needed}.")
    plain, direct, capture = curve.plain_seconds, table.direct_extra_seconds, table.capture_extra_seconds
    if max(direct, capture) > EXTRA_TO_MENTION * plain:
        lines.append(
            f"The first pass after one of another width takes {direct * 1000:.1f} ms longer, "
            f"the second {capture * 1000:.1f} ms; the table shows those after them."
        )
    lines.append(f"Measured with {curve.context_tokens} tokens in the context.")
    return "\n".join(lines)


def as_json(curve: Curve) -> dict[str, Any]:
    """Plain values for json.dumps; an interval that is not known has no bounds."""
    widths = []
    for cost in curve.widths:
        known = cost.seconds.known
        widths.append(
            {
                "width": cost.width,
                "seconds": cost.seconds.middle,
                "low": cost.seconds.low if known else None,
                "high": cost.seconds.high if known else None,
                "relative": cost.relative,
                "samples": cost.samples,
            }
        )
    return {
        "widths": widths,
        "table": asdict(curve.table),
        "break_even": {depth: curve.break_even(depth) for depth in DEPTHS},
        "context_tokens": curve.context_tokens,
    }
