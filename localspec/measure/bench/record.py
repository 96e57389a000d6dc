"""A bench as JSON: every reply, the summary, and the verdict; the latest one of each pair is kept."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from localspec.files import write_text_atomically
from localspec.measure.bench.bench import BenchOutcome
from localspec.measure.bench.summary import Summary
from localspec.measure.bench.verdict import finding, verdicts
from localspec.measure.machine import Machine
from localspec.settings import data_dir


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
