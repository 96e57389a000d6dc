"""The results of a bench: speed-ups with intervals, the verdict on the pair, the report, and the JSON record."""

import math
import os
import platform
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from statistics import median
from typing import Any, TypeVar

import localspec
from localspec import api
from localspec.display import aligned, counted
from localspec.measure.bench import AUTO, PLAIN, BenchOutcome, Category, Measurement
from localspec.measure.intervals import Interval, Log, mean_ratio
from localspec.measure.race import HARDLY, NOTICEABLE

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

LEAST_TOKENS = 16  # a shorter reply is over too soon to time
WORTH = 1.05  # a speed-up that a person can notice over a reply
HARDLY_DRAFTED = 1.03  # mean accepted length
MIX = "all"
COLUMNS = ("", "depth", "prompts", "kept", "a pass", "plain", "drafting", "speed-up", "95 %")
TOY_COLUMNS = 5  # of these: without speeds

Pair = tuple[Measurement, Measurement]  # plain, and another arm on the same prompt in the same block


@dataclass(frozen=True, slots=True)
class Row:
    """One arm against plain decoding, on one category or on all of them."""

    category: Category | None  # None: the mix, each category with the same weight
    temperature: float
    arm: str
    plain_tokens_per_second: float  # median over replies
    tokens_per_second: float  # median over replies
    speedup: Interval  # tokens per second / plain tokens per second, paired by prompt, as far as drafting caused it
    acceptance_rate: float  # accepted / drafted tokens; 0 when nothing was drafted
    mean_accepted_length: float  # emitted tokens / target passes
    draft_cost: float  # seconds of a draft token / of a plain token; 0 when nothing was drafted
    prompts: int
    pairs: int  # of replies


@dataclass(frozen=True, slots=True)
class Summary:
    """All rows of a bench, and the counts that are in no row."""

    rows: tuple[Row, ...]
    too_short: int  # pairs of replies
    prefill_seconds: float  # of all replies; in no row
    prefill_tokens: int

    @property
    def temperatures(self) -> tuple[float, ...]:
        return tuple(dict.fromkeys(row.temperature for row in self.rows))


def summarise(measurements: Sequence[Measurement]) -> Summary:
    """Rows for every temperature and arm: each category, then the mix."""
    pairs = paired(measurements)
    usable = [pair for pair in pairs if min(m.emitted for m in pair) >= LEAST_TOKENS]
    by_arm = grouped(usable, lambda pair: (pair[1].temperature, pair[1].arm))
    rows = list[Row]()
    for (temperature, arm), found in by_arm.items():
        groups = grouped(found, lambda pair: pair[1].category)
        rows += [row_of(kind, temperature, arm, [groups[kind]]) for kind in Category if kind in groups]
        rows.append(row_of(None, temperature, arm, list(groups.values())))
    return Summary(
        rows=tuple(rows),
        too_short=len(pairs) - len(usable),
        prefill_seconds=sum(m.prefill_seconds for m in measurements),
        prefill_tokens=sum(m.prompt_tokens - m.reused_tokens for m in measurements),
    )


def paired(measurements: Iterable[Measurement]) -> list[Pair]:
    """Every reply beside the plain one of its block."""
    by_block = grouped(measurements, lambda m: (m.prompt, m.temperature, m.round))
    plain = {key: m for key, block in by_block.items() for m in block if m.arm == PLAIN.name}
    return [(plain[key], m) for key in plain for m in by_block[key] if m is not plain[key]]


def row_of(category: Category | None, temperature: float, arm: str, groups: Sequence[Sequence[Pair]]) -> Row:
    pairs = [pair for group in groups for pair in group]
    plain, other = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    drafted = sum(m.drafted for m in other)
    plain_token = sum(m.decode_seconds for m in plain) / sum(m.emitted for m in plain)
    return Row(
        category=category,
        temperature=temperature,
        arm=arm,
        plain_tokens_per_second=median(m.tokens_per_second for m in plain),
        tokens_per_second=median(m.tokens_per_second for m in other),
        speedup=at_most(
            mean_ratio([by_prompt(group, log_ratio) for group in groups]),
            mean_ratio(
                [by_prompt(group, lambda pair: math.log(tokens_a_pass([pair[1]]))) for group in groups]
            ).middle,
        ),
        acceptance_rate=sum(m.accepted for m in other) / drafted if drafted else 0.0,
        mean_accepted_length=tokens_a_pass(other),
        draft_cost=sum(m.draft_seconds for m in other) / drafted / plain_token if drafted else 0.0,
        prompts=len({m.prompt for m in other}),
        pairs=len(pairs),
    )


def tokens_a_pass(found: Sequence[Measurement]) -> float:
    """The mean accepted length."""
    return sum(m.emitted for m in found) / sum(m.cycles for m in found)


def at_most(interval: Interval, most: float) -> Interval:
    """The interval without what no guess can have brought: a pass takes at least the time of a plain step."""
    high = min(interval.high, most) if interval.known else interval.high
    return Interval(min(interval.middle, most), min(interval.low, most), high)


def by_prompt(pairs: Sequence[Pair], value: Callable[[Pair], Log]) -> list[list[Log]]:
    """A value of each pair, by prompt."""
    return [list(map(value, found)) for found in grouped(pairs, lambda pair: pair[1].prompt).values()]


def log_ratio(pair: Pair) -> Log:
    """The logarithm of a speed-up: 0 where hardly anything was guessed, so that the times differ by noise."""
    plain, other = pair
    idle = other.drafted <= HARDLY * other.emitted
    return 0.0 if idle else math.log(other.tokens_per_second / plain.tokens_per_second)


def grouped(values: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Values by key, in the order in which they came."""
    groups = defaultdict[K, list[T]](list)
    for value in values:
        groups[key(value)].append(value)
    return dict(groups)


class Finding(StrEnum):
    FASTER = "faster"
    SLIGHTLY_FASTER = "slightly faster"
    SAME = "the same"
    SLOWER = "slower"
    UNSURE = "not sure"


class Decision(StrEnum):
    GO = "go"
    NO_GO = "no-go"
    UNDECIDED = "undecided"


DECIDED = {
    Decision.GO: "Drafting pays",
    Decision.NO_GO: "Drafting does not pay",
    Decision.UNDECIDED: "Undecided",
}


@dataclass(frozen=True, slots=True)
class SpeedVerdict:
    """Whether to use the pair at a temperature, and why."""

    temperature: float
    decision: Decision
    reason: str


def finding(speedup: Interval) -> Finding:
    """The finding for an interval of speculative / plain."""
    if not speedup.known:
        return Finding.UNSURE
    if speedup.low >= WORTH:
        return Finding.FASTER
    if speedup.low > 1.0:
        return Finding.SLIGHTLY_FASTER
    if speedup.high < 1.0:
        return Finding.SLOWER if speedup.middle < 1 / NOTICEABLE else Finding.SAME
    is_same = speedup.low > 1 / NOTICEABLE and speedup.high < NOTICEABLE
    return Finding.SAME if is_same else Finding.UNSURE


def found_in(row: Row) -> Finding:
    """The finding for a row; hardly a guess kept is no gain."""
    found = finding(row.speedup)
    if row.mean_accepted_length < HARDLY_DRAFTED and found is not Finding.SLOWER:
        return Finding.SAME
    return found


def in_words(row: Row) -> str:
    """One sentence about a category."""
    speedup, found = row.speedup, found_in(row)
    if row.mean_accepted_length < HARDLY_DRAFTED and found is Finding.SAME:
        return "no gain: hardly a guess was kept"
    if not speedup.known:
        return f"not sure: {speedup.middle:.2f}x, and {counted(row.prompts, 'prompt')} cannot tell"
    range_ = f"{speedup.low:.2f}x to {speedup.high:.2f}x"
    if found is Finding.SAME:
        return f"no difference: {range_}"
    advice = {Finding.SLOWER: "; plain decoding is better here", Finding.UNSURE: "; measure for longer"}
    return f"{found}: {speedup.middle:.2f}x ({range_}){advice.get(found, '')}"


def verdict(summary: Summary, temperature: float) -> SpeedVerdict:
    """Go or no-go, judged by auto on the mix, and on the categories."""
    *categories, mix = (row for row in rows_at(summary, temperature) if row.arm == AUTO.name)
    found, speedup = found_in(mix), mix.speedup
    over_all = f"{speedup.middle:.2f}x over all prompts"
    over_all += f" ({speedup.low:.2f}x to {speedup.high:.2f}x)" if speedup.known else ""
    won = [row for row in categories if found_in(row) is Finding.FASTER]
    lost = [row for row in categories if found_in(row) is Finding.SLOWER]
    decision, reason = Decision.NO_GO, f"{over_all}. {because(mix)}"
    if found is Finding.UNSURE:
        advice = "measure for longer (--seconds)" if mix.speedup.known else "too few prompts to judge"
        decision, reason = Decision.UNDECIDED, f"{over_all}; {advice}."
    elif found in (Finding.FASTER, Finding.SLIGHTLY_FASTER):
        decision, reason = Decision.GO, reason + (f" Slower on {listed(lost)}." if lost else "")
    elif won:
        decision, reason = Decision.GO, f"on {listed(won)} only; {reason}"
    return SpeedVerdict(mix.temperature, decision, reason)


def listed(rows: list[Row]) -> str:
    return ", ".join(f"{row.category} ({row.speedup.middle:.2f}x)" for row in rows)


def because(row: Row) -> str:
    """The numbers that decide: how often drafts are right, and what they cost."""
    if row.mean_accepted_length < HARDLY_DRAFTED:
        return "Hardly a guess was kept, or hardly any was made."
    cost = f" A guess takes {row.draft_cost:.0%} of the time of a plain token." if row.draft_cost else ""
    return (
        f"{row.acceptance_rate:.0%} of the guesses are kept, and a pass of the target writes "
        f"{row.mean_accepted_length:.2f} tokens.{cost}"
    )


def report(summary: Summary, *, toy: bool = False) -> str:
    """The report for a terminal: by temperature, a table and sentences.

    The speed of a `toy` is left out.
    """
    parts = list[str]()
    for temperature in summary.temperatures:
        rows = [COLUMNS, *map(cells, rows_at(summary, temperature))]
        if toy:
            table = aligned([row[:TOY_COLUMNS] for row in rows], left=2)
            parts.append(f"Guesses at temperature {temperature:g}:\n{table}")
            continue
        parts.append(aligned(rows, left=2))
        parts.append(words(summary, temperature))
    meaning = "kept: the share of guesses that the target kept. a pass: the tokens that it writes."
    if toy:
        off = "auto: drafting is off here, because a pass of this toy is shorter than a guess."
        idle = [off] * all(
            row.mean_accepted_length < HARDLY_DRAFTED for row in summary.rows if row.arm == AUTO.name
        )
        return "\n\n".join([*parts, "\n".join([*idle, meaning])])
    notes = (
        f"{meaning}\nplain, drafting: tokens per second, behind the prompt.\n"
        "95 %: the speed-up on other prompts of these kinds lies there, 95 times in 100.\n"
        "No speed-up exceeds the tokens of a pass; what was measured beyond that is left out as noise.\n"
        f"Not counted: {summary.prefill_seconds:.1f} s of reading {counted(summary.prefill_tokens, 'prompt token')}."
    )
    if summary.too_short:
        pairs = counted(summary.too_short, "pair of replies", "pairs of replies")
        notes += f"\nLeft out: {pairs} too short to time."
    return "\n\n".join([*parts, notes])


def rows_at(summary: Summary, temperature: float) -> tuple[Row, ...]:
    """The rows of one temperature, by category, the mix last."""
    order = [*Category, None]

    def place(row: Row) -> tuple[int, bool, int, str]:
        return order.index(row.category), row.arm != AUTO.name, len(row.arm), row.arm

    return tuple(sorted((row for row in summary.rows if row.temperature == temperature), key=place))


def cells(row: Row) -> tuple[str, ...]:
    return (
        name(row),
        row.arm.removeprefix("depth "),
        str(row.prompts),
        f"{row.acceptance_rate:.0%}",
        f"{row.mean_accepted_length:.2f}",
        f"{row.plain_tokens_per_second:.1f}",
        f"{row.tokens_per_second:.1f}",
        f"{row.speedup.middle:.2f}x",
        f"{row.speedup.low:.2f} to {row.speedup.high:.2f}" if row.speedup.known else "too few",
    )


def name(row: Row) -> str:
    return row.category.value if row.category else MIX


def headlines(summary: Summary) -> str:
    """The verdict on the pair at each temperature."""
    judged = (verdict(summary, temperature) for temperature in summary.temperatures)
    return "\n".join(
        f"{DECIDED[it.decision]} at temperature {it.temperature:g}: {it.reason}" for it in judged
    )


def words(summary: Summary, temperature: float) -> str:
    """A sentence for each category, and the depth that beat auto."""
    rows = [row for row in rows_at(summary, temperature) if row.arm == AUTO.name and row.category]
    width = max((len(name(row)) for row in rows), default=0)
    lines = [f"{name(row):<{width}}  {in_words(row)}" for row in rows]
    mix = {row.arm: row.speedup.middle for row in rows_at(summary, temperature) if row.category is None}
    best = max(mix, key=mix.__getitem__)
    if best != AUTO.name:
        lines.append(f"Ahead of auto: {best}, by {mix[best] / mix[AUTO.name] - 1:.1%}.")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything but the models that a speed depends on."""

    devices: tuple[str, ...]  # as llama.cpp describes them
    cores: int  # that the operating system counts
    threads: int  # that decoding uses on the CPU
    system: str
    python: str
    localspec: str
    llama_cpp_python: str
    llama_cpp: str
    measured_at: str  # ISO 8601, UTC

    def sentence(self) -> str:
        return (
            f"{', '.join(self.devices)}; {counted(self.threads, 'thread')} on {counted(self.cores, 'core')}; "
            f"{self.system}; localspec {self.localspec}, llama-cpp-python {self.llama_cpp_python} ({self.llama_cpp}); "
            f"{self.measured_at[:10]}"
        )


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
    """Plain values for json.dumps; an unknown interval has no bounds."""
    rows = [asdict(row) | {"finding": found_in(row)} for row in summary.rows]
    for row in rows:
        if row["speedup"]["high"] == math.inf:
            row["speedup"] |= {"low": None, "high": None}
    return {
        "machine": asdict(machine),
        "stopped": outcome.stopped,
        "too_long": outcome.too_long,
        "too_short": summary.too_short,
        "prefill": {"tokens": summary.prefill_tokens, "seconds": summary.prefill_seconds},
        "verdicts": [asdict(verdict(summary, t)) for t in summary.temperatures],
        "rows": rows,
        "measurements": [asdict(measurement) for measurement in outcome.measurements],
    }
