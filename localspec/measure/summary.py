"""The results of a bench: speed-ups with intervals, a verdict for each temperature, one table, and the JSON record."""

import math
import os
import platform
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from itertools import chain
from statistics import median
from typing import Any, TypeVar

import numpy as np

import localspec
from localspec import api
from localspec.display import aligned, counted
from localspec.events import HARDLY, NOTICEABLE
from localspec.measure.bench import AUTO, PLAIN, BenchOutcome, Category, Measurement

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
Log = float
"""The logarithm of a ratio, in which 2x and 0.5x are equally far from 1x."""

LEAST_TOKENS = 16  # the speed of a reply with fewer tokens does not count

Pair = tuple[Measurement, Measurement]  # a plain reply, and a reply to the same prompt with another setting


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean value with its 95 % interval. With too few measurements the interval is 0 to infinity."""

    middle: float
    low: float = 0.0
    high: float = math.inf

    @property
    def known(self) -> bool:
        return self.high < math.inf


def mean_ratio(groups: Sequence[Sequence[Sequence[Log]]]) -> Interval:
    """Return the geometric mean of ratios and its interval; every group has the same weight.

    groups[g][p]: the log ratios of prompt p in group g, one for each repetition. Their median counts, because a
    repetition may be disturbed. The interval is Student's. Raises ValueError without any ratio.
    """
    groups = [[prompt for prompt in group if prompt] for group in groups]
    groups = [group for group in groups if group]
    if not groups:
        raise ValueError("no ratios")
    medians = [np.array([np.median(prompt) for prompt in group]) for group in groups]
    middle = float(np.mean([group.mean() for group in medians]))
    freedom = sum(map(len, groups)) - len(groups)
    if freedom < 2:  # too few measurements for Student's interval
        return Interval(math.exp(middle))
    # A group of one prompt adds no variance, because its variance is unknown.
    variance = sum(group.var(ddof=1) / group.size for group in medians if group.size > 1) / len(groups) ** 2
    margin = student_quantile(freedom) * math.sqrt(variance)
    return Interval(math.exp(middle), math.exp(middle - margin), math.exp(middle + margin))


def student_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t for 2 or more degrees of freedom, at most 3 % too small."""
    z = 1.959964
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    quantile: float = z + sum(term / freedom**power for power, term in enumerate(terms, start=1))
    return quantile


@dataclass(frozen=True, slots=True)
class BenchRow:
    """The results of one setting (arm) beside those of plain decoding, in one category or in all categories."""

    category: Category | None  # None: all categories
    temperature: float
    arm: str
    plain_tokens_per_second: float  # median over replies
    tokens_per_second: float  # median over replies
    speedup: Interval  # mean speed-up over plain decoding, capped at the tokens per pass
    acceptance_rate: float  # accepted / drafted tokens; 0 if nothing was drafted
    mean_accepted_length: float  # emitted tokens / target passes
    prompts: int
    pairs: int  # number of pairs of replies


@dataclass(frozen=True, slots=True)
class Summary:
    rows: tuple[BenchRow, ...]
    too_short: int  # number of pairs left out because a reply is too short

    @property
    def temperatures(self) -> tuple[float, ...]:
        return tuple(dict.fromkeys(row.temperature for row in self.rows))


def summarise(measurements: Sequence[Measurement]) -> Summary:
    """Return a row for each temperature, category and setting, and rows for all categories together."""
    pairs = paired(measurements)
    usable = [pair for pair in pairs if min(m.emitted for m in pair) >= LEAST_TOKENS]
    rows = list[BenchRow]()
    for temperature, found in grouped(usable, lambda pair: pair[1].temperature).items():
        for kind in (*Category, None):
            by_arm = grouped(found, lambda pair: pair[1].arm)
            for arm in sorted(by_arm, key=lambda arm: (arm != AUTO.name, len(arm), arm)):
                groups = grouped(by_arm[arm], lambda pair: pair[1].category)
                chosen = [groups[kind]] if kind in groups else [] if kind else list(groups.values())
                if chosen:
                    rows.append(row_of(kind, temperature, arm, chosen))
    return Summary(tuple(rows), too_short=len(pairs) - len(usable))


def paired(measurements: Iterable[Measurement]) -> list[Pair]:
    """Return every pair of a plain reply and another reply of the same block."""
    by_block = grouped(measurements, lambda m: (m.prompt, m.temperature, m.round))
    plain = {key: m for key, block in by_block.items() for m in block if m.arm == PLAIN.name}
    return [(plain[key], m) for key in plain for m in by_block[key] if m is not plain[key]]


def row_of(
    category: Category | None, temperature: float, arm: str, groups: Sequence[Sequence[Pair]]
) -> BenchRow:
    def mean(value: Callable[[Pair], Log]) -> Interval:
        by_prompt = (grouped(group, lambda pair: pair[1].prompt).values() for group in groups)
        return mean_ratio([[list(map(value, pairs)) for pairs in group] for group in by_prompt])

    pairs = [pair for group in groups for pair in group]
    plain, other = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    drafted, found = sum(m.drafted for m in other), mean(log_ratio)
    # The speed-up cannot exceed the tokens per pass, because no pass is faster than a plain pass.
    most = mean(lambda pair: math.log(pair[1].emitted / pair[1].cycles)).middle
    high = min(found.high, most) if found.known else found.high
    return BenchRow(
        category=category,
        temperature=temperature,
        arm=arm,
        plain_tokens_per_second=median(m.tokens_per_second for m in plain),
        tokens_per_second=median(m.tokens_per_second for m in other),
        speedup=Interval(min(found.middle, most), min(found.low, most), high),
        acceptance_rate=sum(m.accepted for m in other) / drafted if drafted else 0.0,
        mean_accepted_length=sum(m.emitted for m in other) / sum(m.cycles for m in other),
        prompts=len({m.prompt for m in other}),
        pairs=len(pairs),
    )


def log_ratio(pair: Pair) -> Log:
    """Return the logarithm of a speed-up.

    If hardly anything was drafted, the passes of both replies cost the same, and a difference between their times is
    noise. Then only the time outside the passes counts: the time for drafts and decisions.
    """
    plain, other = pair
    passes = other.verify_seconds / other.emitted
    if other.drafted <= HARDLY * other.emitted:
        passes = plain.verify_seconds / plain.emitted
    seconds = passes + (other.decode_seconds - other.verify_seconds) / other.emitted
    return -math.log(seconds * plain.tokens_per_second)


def grouped(values: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    groups = defaultdict[K, list[T]](list)
    for value in values:
        groups[key(value)].append(value)
    return dict(groups)


class Finding(StrEnum):
    FASTER = "faster"
    SAME = "the same"
    SLOWER = "slower"
    UNSURE = "not sure"


VERDICTS = {
    Finding.FASTER: "Drafting pays",
    Finding.SAME: "No difference",
    Finding.SLOWER: "Drafting does not pay",
    Finding.UNSURE: "Undecided",
}


def finding(speedup: Interval) -> Finding:
    """Return whether drafting is faster or slower, by the interval of its speed-up."""
    if not speedup.known:
        return Finding.UNSURE
    if speedup.low > 1.0:
        return Finding.FASTER
    if speedup.high < 1.0 and speedup.middle < 1 / NOTICEABLE:
        return Finding.SLOWER
    return Finding.SAME if speedup.low > 1 / NOTICEABLE and speedup.high < NOTICEABLE else Finding.UNSURE


def verdict(summary: Summary, temperature: float) -> BenchRow:
    """Return the row over all categories at a temperature, for the automatic depth if measured, else the first."""
    return next(row for row in summary.rows if row.temperature == temperature and row.category is None)


def headlines(summary: Summary) -> str:
    """Return a line for each temperature with the gain from drafting over all categories."""
    return "\n".join(
        f"{VERDICTS[finding(row.speedup)]} at T={row.temperature:g}: {speedup_text(row.speedup)}, "
        f"acceptance rate {row.acceptance_rate:.0%}."
        for row in (verdict(summary, temperature) for temperature in summary.temperatures)
    )


def hint(summary: Summary) -> str:
    verdicts = [finding(verdict(summary, temperature).speedup) for temperature in summary.temperatures]
    longer = "Undecided: the range contains 1x. Measure for longer: --seconds 900"
    return longer * (Finding.UNSURE in verdicts)


def speedup_text(speedup: Interval) -> str:
    return f"{speedup.middle:.2f}x ({range_text(speedup, 'too few prompts for a range')})"


def range_text(speedup: Interval, unknown: str) -> str:
    return f"{speedup.low:.2f} to {speedup.high:.2f}" if speedup.known else unknown


def overview(summary: Summary, *, is_demo: bool = False) -> str:
    """Return a text table with a row for each category, and for each depth over all categories."""
    found = {(row.category, row.arm, row.temperature): row for row in summary.rows}
    what, other = ("acceptance", "tokens/pass") if is_demo else ("speed-up", "95 %")
    rows = [("", "depth", *(name for t in summary.temperatures for name in (f"{what} at T={t:g}", other)))]
    for category, arm in dict.fromkeys((row.category, row.arm) for row in summary.rows):
        if category is None or arm == summary.rows[0].arm:
            cells = (_cells(found.get((category, arm, t)), is_demo) for t in summary.temperatures)
            rows.append((category or "all", arm.removeprefix("depth "), *chain.from_iterable(cells)))
    return aligned(rows)


def _cells(row: BenchRow | None, is_demo: bool) -> tuple[str, str]:
    if row is None:
        return "", ""
    if is_demo:
        return f"{row.acceptance_rate:.0%}", f"{row.mean_accepted_length:.2f}"
    return f"{row.speedup.middle:.2f}x", range_text(row.speedup, "too few")


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine and software that a speed depends on."""

    devices: tuple[str, ...]  # names of devices, with llama.cpp's descriptions
    cores: int
    threads: int  # threads that decode on the CPU
    system: str
    python: str
    localspec: str
    llama_cpp_python: str
    llama_cpp: str
    measured_at: str  # ISO 8601, UTC

    def sentence(self) -> str:
        used = f"{counted(self.threads, 'thread')} on {counted(self.cores, 'core')}"
        software = f"localspec {self.localspec}, llama-cpp-python {self.llama_cpp_python} ({self.llama_cpp})"
        return "; ".join([", ".join(self.devices), used, self.system, software, self.measured_at[:10]])


def this_machine(threads: int | None = None) -> Machine:
    backend = api.backend()
    return Machine(
        devices=tuple(f"{device.name} ({device.description})" for device in api.devices()),
        cores=os.cpu_count() or 1,
        threads=threads or api.default_threads(),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        localspec=localspec.__version__,
        llama_cpp_python=backend.binding_version,
        llama_cpp=backend.llama_version,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def record(machine: Machine, outcome: BenchOutcome, summary: Summary) -> dict[str, Any]:
    """Return the results of a bench as values for json.dumps; the bounds of an unknown interval are None."""
    rows = [asdict(row) | {"finding": finding(row.speedup)} for row in summary.rows]
    for row in rows:
        if row["speedup"]["high"] == math.inf:
            row["speedup"] |= {"low": None, "high": None}
    return {
        "machine": asdict(machine),
        "stopped": outcome.stopped,
        "too_long": outcome.too_long,
        "too_short": summary.too_short,
        "verdicts": {f"{t:g}": finding(verdict(summary, t).speedup) for t in summary.temperatures},
        "rows": rows,
        "measurements": [asdict(measurement) for measurement in outcome.measurements],
    }
