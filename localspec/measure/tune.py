"""The cost of passes here: the target by batch width, the draft by depth, and the break-even of drafting."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

from localspec.algorithm.protocols import Decoder, Drafter
from localspec.control.calibration import NARROW, WIDE, calibrate
from localspec.control.cost_table import CostTable
from localspec.display import aligned
from localspec.measure.compare import forget

CONTEXT_TOKENS = 256  # in the caches while measuring: an ordinary prompt
DEPTHS = (1, 2, 3, 4, 5, 7)


class _Stopped(Exception):
    """The user ended the measurement."""


@dataclass(frozen=True, slots=True)
class Curve:
    """The cost of passes here, with these files."""

    table: CostTable  # in the form that the depth control uses
    draft_seconds: tuple[float, ...]  # of a draft, by depth from 0; empty without a draft model

    def break_even(self, depth: int) -> float:
        """Mean accepted length from which drafting `depth` tokens beats plain decoding."""
        drafting = self.draft_seconds[depth] if self.draft_seconds else 0.0
        return (self.table.verify(depth + 1) + drafting) / self.table.verify(1)


def tune(
    target: Decoder,
    drafters: Sequence[Drafter],
    text: Sequence[int],
    *,
    seconds: float,
    steps_back: bool = True,
    stopped: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = perf_counter,
) -> Curve | None:
    """Measure for at most about `seconds`; both caches are empty afterwards.

    `text`: ordinary tokens, because the experts that a mixture uses depend on them. `steps_back`: whether the target
    can drop its newest tokens; a recurrent one can only start again, so it is measured with an empty context. None
    if it was stopped, or if the time was too short.
    """

    def watched() -> float:
        if stopped():
            raise _Stopped
        return clock()

    try:
        forget(target, drafters)
        if steps_back:
            length = min(CONTEXT_TOKENS, max(target.capacity - max(NARROW + WIDE), 1))
            fill(target, drafters, (list(text) * (length // len(text) + 1))[:length])
        table = calibrate(target, drafters, text, budget_seconds=seconds, clock=watched)
    except _Stopped:
        return None
    finally:
        forget(target, drafters)
    if table is None:
        return None
    if not drafters:
        return Curve(table, ())
    run_seconds = table.run_seconds[drafters[0].source]
    return Curve(table, tuple(drafters[0].model_runs(depth) * run_seconds for depth in range(max(NARROW))))


def fill(target: Decoder, drafters: Sequence[Drafter], tokens: Sequence[int]) -> None:
    """Target and drafters read these tokens."""
    for batch in target.prefill(tokens):
        for drafter in drafters:
            drafter.observe(batch, len(batch.tokens))
            drafter.read(tokens[: target.length + 1], len(batch.tokens))


def report(curve: Curve) -> str:
    """Table and sentences for a terminal."""
    table, draft = curve.table, curve.draft_seconds
    plain = table.verify(1)
    lines, rows = list[str](), list[tuple[str, ...]]()
    rows.append(("tokens in a pass", "ms", "x one token", "ms per token", "guesses", "gain above"))
    for width, seconds in zip(table.widths, table.verify_seconds, strict=True):
        ms = seconds * 1000
        paying = ("", "")
        if 1 < width <= len(draft):
            needed = curve.break_even(width - 1)  # a pass writes one token more than guesses, at most
            paying = (str(width - 1), f"{needed:.2f}" if needed < width else "never")
        rows.append((str(width), f"{ms:.1f}", f"{seconds / plain:.2f}", f"{ms / width:.1f}", *paying))
    if draft:
        each = "A guess takes" if draft[2] > draft[1] else "Guesses of any number take"
        lines.append(f"{each} {draft[1] * 1000:.1f} ms, {draft[1] / plain:.0%} of the time of a plain token.")
        lines.append("gain above: these guesses gain if a pass writes more tokens than this, on average.")
    else:
        rows = [row[:4] for row in rows]
    lines.append(f"Measured with {table.context_tokens} tokens in the context.")
    return "\n\n".join((aligned(rows, left=0), "\n".join(lines)))


def as_json(curve: Curve) -> dict[str, Any]:
    """Plain values for json.dumps."""
    table, plain = curve.table, curve.table.verify(1)
    costs = {width: table.verify(width) for width in table.widths}
    return {
        "widths": [{"width": w, "seconds": s, "relative": s / plain} for w, s in costs.items()],
        "table": asdict(table),
        "break_even": {depth: curve.break_even(depth) for depth in DEPTHS},
        "context_tokens": table.context_tokens,
    }
