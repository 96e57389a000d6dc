"""A bench as text (table, bars, verdict) and as JSON; the latest record of each pair is kept."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from localspec.files import write_text_atomically
from localspec.measure.bench import AUTO, BenchOutcome
from localspec.measure.machine import Machine
from localspec.measure.plot import Bar, Chart, aligned, drawn
from localspec.measure.prompts import Category
from localspec.measure.statistics import Interval
from localspec.measure.summary import Row, Summary, finding, in_words, verdicts
from localspec.settings import data_dir

MIX = "all"
COLUMNS = ("", "depth", "plain t/s", "t/s", "speed-up", "95 % interval", "accepted", "tokens/pass", "prompts")


def report(summary: Summary, columns: int) -> str:
    """Everything for a terminal of that many columns: by temperature, a table, bars, and words."""
    parts = [
        "\n\n".join(
            (
                aligned([COLUMNS, *map(cells, rows_at(summary, temperature))], left=2),
                drawn(chart(summary, temperature), columns),
                words(summary, temperature),
            )
        )
        for temperature in summary.temperatures
    ]
    return "\n\n".join([*parts, footnotes(summary)])


def rows_at(summary: Summary, temperature: float) -> tuple[Row, ...]:
    """The rows of one temperature, by category, the mix last."""
    order = [*Category, None]
    found = [row for row in summary.rows if row.temperature == temperature]

    def place(row: Row) -> tuple[int, bool, int, str]:
        return order.index(row.category), row.arm != AUTO.name, len(row.arm), row.arm

    return tuple(sorted(found, key=place))


def cells(row: Row) -> tuple[str, ...]:
    return (
        name(row),
        row.arm.removeprefix("depth "),
        f"{row.plain_tokens_per_second:.1f}",
        f"{row.tokens_per_second:.1f}",
        f"{row.speedup.middle:.2f}x",
        interval_text(row.speedup),
        f"{row.acceptance_rate:.0%}",
        f"{row.mean_accepted_length:.2f}",
        str(row.prompts),
    )


def interval_text(interval: Interval) -> str:
    return f"{interval.low:.2f} to {interval.high:.2f}" if interval.known else "too few"


def name(row: Row) -> str:
    return row.category.value if row.category else MIX


def chart(summary: Summary, temperature: float) -> Chart:
    """Speed-ups as bars; plain decoding is the line at 1."""
    rows = rows_at(summary, temperature)
    several = len({row.arm for row in rows}) > 1
    return Chart(
        title=f"Speed-up over plain decoding, temperature {temperature:g}",
        bars=tuple(
            Bar(
                label=f"{name(row)}, {row.arm}" if several else name(row),
                value=row.speedup.middle,
                low=row.speedup.low if row.speedup.known else None,
                high=row.speedup.high if row.speedup.known else None,
                text=f"{row.speedup.middle:.2f}x",
            )
            for row in rows
        ),
        reference=1.0,
    )


def words(summary: Summary, temperature: float) -> str:
    """A sentence for each category, and the verdict on the pair."""
    rows = [row for row in rows_at(summary, temperature) if row.arm == AUTO.name and row.category]
    width = max((len(name(row)) for row in rows), default=0)
    lines = [f"{name(row):<{width}}  {in_words(row)}" for row in rows]
    judged = next(v for v in verdicts(summary) if v.temperature == temperature)
    best = better_depth(rows_at(summary, temperature))
    return "\n".join(
        [*lines, "", f"{judged.decision.upper()} at temperature {temperature:g}: {judged.reason}", *best]
    )


def better_depth(rows: Sequence[Row]) -> list[str]:
    """The fixed depth that was ahead of auto on the mix, if one was."""
    mix = [row for row in rows if row.category is None]
    auto = next(row for row in mix if row.arm == AUTO.name)
    best = max(mix, key=lambda row: row.speedup.middle)
    if best is auto:
        return []
    lead = best.speedup.middle / auto.speedup.middle - 1
    return [f"Ahead of auto: {best.arm}, by {lead:.1%}."]


def footnotes(summary: Summary) -> str:
    """What no row contains."""
    lines = [
        "Speed counts from the end of the prompt; intervals are about other prompts of the same kinds.",
        f"Not counted: {summary.prefill_seconds:.1f} s of reading {summary.prefill_tokens} prompt tokens.",
    ]
    if summary.too_short:
        lines.append(f"Left out: {summary.too_short} pairs of replies too short to time.")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Subject:
    """What was measured."""

    pair: str
    target: str
    draft: str
    load_seconds: float
    max_tokens: int


def record(subject: Subject, machine: Machine, outcome: BenchOutcome, summary: Summary) -> dict[str, Any]:
    """Plain values for json.dumps; an interval that is not known has no bounds."""
    return {
        **asdict(subject),
        "machine": asdict(machine),
        "stopped": outcome.stopped,
        "too_long": outcome.too_long,
        "too_short": summary.too_short,
        "prefill": {"tokens": summary.prefill_tokens, "seconds": summary.prefill_seconds},
        "verdicts": [asdict(verdict) for verdict in verdicts(summary)],
        "rows": [without_infinity({**asdict(row), "finding": finding(row.speedup)}) for row in summary.rows],
        "measurements": [asdict(measurement) for measurement in outcome.measurements],
    }


def without_infinity(row: dict[str, Any]) -> dict[str, Any]:
    if row["speedup"]["high"] == float("inf"):
        row["speedup"] = {"middle": row["speedup"]["middle"], "low": None, "high": None}
    return row


def keep(pair: str, recorded: Mapping[str, Any]) -> Path:
    """Store a record as the pair's latest one; a crash leaves the one before. OSError where that fails."""
    path = data_dir() / "bench" / f"{''.join(c if c.isalnum() or c in '.+-_' else '_' for c in pair)}.json"
    write_text_atomically(path, json.dumps(recorded))
    return path
