"""From single replies to what they show: speed-up with its interval by category, temperature and arm."""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from localspec.measure.bench.bench import PLAIN, Measurement
from localspec.measure.prompts import Category
from localspec.measure.statistics import Interval, mean_ratio

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

LEAST_TOKENS = 16  # a shorter reply is over before its speed can be told

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
