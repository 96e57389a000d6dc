"""The results of a bench: speed-ups with intervals by category, temperature and arm, and whether to use the pair."""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import TypeVar

from localspec.measure.bench import AUTO, PLAIN, Measurement
from localspec.measure.prompts import Category
from localspec.measure.statistics import Interval, mean_ratio

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

LEAST_TOKENS = 16  # a shorter reply is over before its speed can be told
WORTH = 1.05  # a speed-up that a person can notice over a reply
SAME = 1.03  # less than this either way is no difference
HARDLY_DRAFTED = 1.03  # mean accepted length

Pair = tuple[Measurement, Measurement]  # plain, and another arm on the same prompt in the same block


@dataclass(frozen=True, slots=True)
class Row:
    """One arm against plain decoding, on one category or on all of them."""

    category: Category | None  # None: the mix, each category with the same weight
    temperature: float
    arm: str
    plain_tokens_per_second: float  # median over replies
    tokens_per_second: float  # median over replies
    speedup: Interval  # tokens per second / plain tokens per second, paired by prompt
    acceptance_rate: float  # accepted / drafted tokens; 0 when nothing was drafted
    mean_accepted_length: float  # emitted tokens / target passes
    draft_cost: float  # seconds of a draft token / of a plain token; 0 when nothing was drafted
    prompts: int
    pairs: int  # of replies


@dataclass(frozen=True, slots=True)
class Summary:
    """All rows of a bench, and what was left out of them."""

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
        categories = grouped(found, lambda pair: pair[1].category)
        rows += [
            row_of(category, temperature, arm, [categories[category]])
            for category in Category
            if category in categories
        ]
        rows.append(row_of(None, temperature, arm, list(categories.values())))
    return Summary(
        rows=tuple(rows),
        too_short=len(pairs) - len(usable),
        prefill_seconds=sum(m.prefill_seconds for m in measurements),
        prefill_tokens=sum(m.prompt_tokens - m.reused_tokens for m in measurements),
    )


def paired(measurements: Iterable[Measurement]) -> list[Pair]:
    """Every reply beside the plain one of its block."""
    by_block = grouped(measurements, lambda m: (m.prompt, m.temperature, m.round))
    pairs = list[Pair]()
    for block in by_block.values():
        plain = next((m for m in block if m.arm == PLAIN.name), None)
        if plain is not None:
            pairs += [(plain, m) for m in block if m is not plain]
    return pairs


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
        speedup=mean_ratio([log_ratios(group) for group in groups]),
        acceptance_rate=sum(m.accepted for m in other) / drafted if drafted else 0.0,
        mean_accepted_length=sum(m.emitted for m in other) / sum(m.cycles for m in other),
        draft_cost=sum(m.draft_seconds for m in other) / drafted / plain_token if drafted else 0.0,
        prompts=len({m.prompt for m in other}),
        pairs=len(pairs),
    )


def log_ratios(pairs: Sequence[Pair]) -> list[list[float]]:
    """By prompt, the logarithm of each pair's speed-up."""
    by_prompt = grouped(pairs, lambda pair: pair[1].prompt)
    return [
        [math.log(other.tokens_per_second / plain.tokens_per_second) for plain, other in found]
        for found in by_prompt.values()
    ]


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


@dataclass(frozen=True, slots=True)
class SpeedVerdict:
    """Whether to use the pair at a temperature, and why."""

    temperature: float
    decision: Decision
    reason: str


def finding(speedup: Interval) -> Finding:
    """What an interval allows to say about speculative against plain decoding."""
    if not speedup.known:
        return Finding.UNSURE
    if speedup.low >= WORTH:
        return Finding.FASTER
    if speedup.low > 1.0:
        return Finding.SLIGHTLY_FASTER
    if speedup.high < 1.0:
        return Finding.SLOWER if speedup.middle < 1 / SAME else Finding.SAME
    return Finding.SAME if speedup.low > 1 / SAME and speedup.high < SAME else Finding.UNSURE


def in_words(row: Row) -> str:
    """One sentence about a category."""
    speedup, found = row.speedup, finding(row.speedup)
    range_ = f"{speedup.low:.2f}x to {speedup.high:.2f}x"
    match found:
        case Finding.FASTER | Finding.SLIGHTLY_FASTER:
            return f"{found}: {speedup.middle:.2f}x ({range_})"
        case Finding.SLOWER:
            return f"slower: {speedup.middle:.2f}x ({range_}); plain decoding is better here"
        case Finding.SAME:
            return f"no difference: {range_}"
    if not speedup.known:
        return f"not sure: {speedup.middle:.2f}x on {row.prompts} prompts is too few to tell"
    return f"not sure: {speedup.middle:.2f}x ({range_}); measure for longer"


def verdicts(summary: Summary) -> tuple[SpeedVerdict, ...]:
    """Go or no-go for every temperature, judged by auto on the mix and by what it costs where it loses."""
    found = []
    for temperature in summary.temperatures:
        rows = [row for row in summary.rows if row.temperature == temperature and row.arm == AUTO.name]
        (mix,) = (row for row in rows if row.category is None)
        found.append(verdict(mix, [row for row in rows if row.category]))
    return tuple(found)


def verdict(mix: Row, categories: list[Row]) -> SpeedVerdict:
    found = finding(mix.speedup)
    over_all = f"{mix.speedup.middle:.2f}x over all prompts"
    if mix.speedup.known:
        over_all += f" ({mix.speedup.low:.2f}x to {mix.speedup.high:.2f}x)"
    won = [row for row in categories if finding(row.speedup) is Finding.FASTER]
    lost = [row for row in categories if finding(row.speedup) is Finding.SLOWER]
    if found is Finding.UNSURE:
        advice = "measure for longer (--seconds)" if mix.speedup.known else "too few prompts to tell"
        return SpeedVerdict(mix.temperature, Decision.UNDECIDED, f"{over_all}; {advice}.")
    if found in (Finding.FASTER, Finding.SLIGHTLY_FASTER):
        but = f" Slower on {listed(lost)}." if lost else ""
        return SpeedVerdict(mix.temperature, Decision.GO, f"{over_all}. {because(mix)}{but}")
    if won:
        return SpeedVerdict(
            mix.temperature, Decision.GO, f"on {listed(won)} only; {over_all}. {because(mix)}"
        )
    return SpeedVerdict(mix.temperature, Decision.NO_GO, f"{over_all}. {because(mix)}")


def listed(rows: list[Row]) -> str:
    return ", ".join(f"{row.category} ({row.speedup.middle:.2f}x)" for row in rows)


def because(row: Row) -> str:
    """The numbers that decide: how often drafts are right, and what they cost."""
    if row.mean_accepted_length < HARDLY_DRAFTED:
        return "Hardly anything was drafted, because it did not pay."
    cost = f" A draft token costs {row.draft_cost:.0%} of a plain one." if row.draft_cost else ""
    return (
        f"{row.acceptance_rate:.0%} of drafts are accepted and {row.mean_accepted_length:.2f} tokens "
        f"come out of a target pass.{cost}"
    )
