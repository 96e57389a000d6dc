"""A bench in words: what drafting does to each category, and whether the pair is worth using."""

from dataclasses import dataclass
from enum import StrEnum

from localspec.measure.bench.bench import AUTO
from localspec.measure.bench.summary import Row, Summary
from localspec.measure.statistics import Interval

WORTH = 1.05  # a speed-up that a person can notice over a reply
SAME = 1.03  # less than this either way is no difference
HARDLY_DRAFTED = 1.03  # mean accepted length


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
