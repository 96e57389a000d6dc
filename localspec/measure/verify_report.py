"""A verification as a table, as sentences, and as plain values."""

from collections.abc import Sequence
from dataclasses import asdict

from localspec.measure.plot import aligned
from localspec.measure.prompts import Category
from localspec.measure.verify import (
    ALARM,
    DEPTH,
    GreedyCase,
    GreedyResult,
    SampledResult,
    Verification,
)

ENOUGH = 0.5  # nats per token: a test that finds only more says too little


def problems(found: Verification) -> list[str]:
    """A sentence for each difference beyond numerics."""
    said = []
    wrong = sum(case.not_likeliest for case in found.greedy.cases)
    if wrong:
        said.append(f"{wrong} greedy tokens are not the likeliest of the row that decided them.")
    apart = [case for case in found.greedy.unexplained if not case.not_likeliest]
    if apart:
        said.append(
            f"{len(apart)} of {len(found.greedy.cases)} greedy texts part where no near-tie explains it."
        )
    if found.sampled.impossible:
        said.append(f"The sampler chain excludes {found.sampled.impossible} of the sampled tokens.")
    if found.sampled.excess_p < ALARM:
        said.append(
            f"Sampled replies are {found.sampled.excess:+.3f} nats per token less likely than they should be "
            f"(p < {found.sampled.excess_p:.1g}, alarm below {ALARM:g})."
        )
    return said


def missing(found: Verification) -> list[str]:
    """A sentence for each part for which the time was too short."""
    said = []
    if not found.greedy.cases:
        said.append("No greedy text was finished.")
    if not found.sampled.tokens:
        said.append("No sampled text was finished.")
    elif found.sampled.smallest_excess > ENOUGH:
        said.append(
            f"{found.sampled.tokens:,} sampled tokens are too few: only an excess of "
            f"{found.sampled.smallest_excess:.2f} nats per token would be found for sure."
        )
    return said


def verdict(found: Verification) -> str:
    """The answer in a few sentences."""
    if wrong := problems(found):
        return "\n".join(["DIFFERENT: speculation changes what this pair says.", *wrong])
    if lacking := missing(found):
        return "\n".join(
            ["NOTHING DIFFERS so far, but not everything was tested.", *lacking, "Give it longer: --seconds."]
        )
    near = sum(case.divergence is not None for case in found.greedy.cases)
    greedy = "Every greedy text is the same" if not near else f"{near} greedy texts part, at near-ties only"
    return (
        f"LOSSLESS, as far as {len(found.greedy.cases)} greedy texts and {found.sampled.tokens:,} sampled tokens "
        f"can tell. {greedy}; sampled replies are as likely as they should be (an excess of "
        f"{found.sampled.smallest_excess:.2f} nats per token would have been found)."
    )


def report(found: Verification) -> str:
    """Everything, for a terminal."""
    parts = []
    if found.greedy.cases:
        parts.append(greedy_report(found.greedy))
        if found.expected_acceptance is not None:
            parts.append(acceptance_line(found.greedy, found.expected_acceptance))
    if found.sampled.texts:
        parts.append(sampled_report(found.sampled, found.sampling.temperature))
    return "\n\n".join([*parts, verdict(found)])


def greedy_report(greedy: GreedyResult) -> str:
    rows: list[tuple[str, ...]] = [
        ("greedy", "depth", "texts", "identical", "near-tie", "different", "accepted")
    ]
    for category in Category:
        for depth in (DEPTH, None):
            cases = [c for c in greedy.cases if c.prompt.category is category and c.depth == depth]
            if cases:
                rows.append(greedy_row(category, depth, cases, greedy.width_difference))
    lines = [
        aligned(rows),
        f"Batch widths alone move a logit by up to D = {greedy.width_difference:.4f} here.",
    ]
    lines += [
        f"{case.prompt.name}, depth {depth_text(case.depth)}: parts at token {case.divergence.index + 1}, "
        f"the two likeliest {gap_text(case.divergence.top_two_gap)} logits apart; "
        f"2D = {2 * greedy.width_difference:.4f}."
        for case in greedy.cases
        if case.divergence
    ]
    return "\n".join(lines)


def acceptance_line(greedy: GreedyResult, expected: float) -> str:
    """The share of drafts that the target kept, against the published one: a wrongly read head has a lower one."""
    cases = [case for case in greedy.cases if case.depth == DEPTH]
    drafted, accepted = sum(case.drafted for case in cases), sum(case.accepted for case in cases)
    share = f"{accepted / drafted:.0%}" if drafted else "none"
    return (
        f"Of the draft's tokens the target kept {share} at depth {DEPTH}; "
        f"{expected:.0%} were published for this pair."
    )


def greedy_row(
    category: Category, depth: int | None, cases: Sequence[GreedyCase], width_difference: float
) -> tuple[str, ...]:
    wrong = sum(not case.explained(width_difference) for case in cases)
    same = sum(case.divergence is None and case.explained(width_difference) for case in cases)
    drafted = sum(case.drafted for case in cases)
    share = f"{sum(case.accepted for case in cases) / drafted:.0%}" if drafted else "-"
    counts = (len(cases), same, len(cases) - same - wrong, wrong)
    return (category.value, depth_text(depth), *map(str, counts), share)


def sampled_report(sampled: SampledResult, temperature: float) -> str:
    return "\n".join(
        [
            f"Sampled at temperature {temperature:g}, {sampled.texts} replies, {sampled.tokens:,} tokens, judged by "
            "the target alone:",
            f"  {sampled.excess:+.4f} nats per token less likely than expected, standard error "
            f"{sampled.excess_error:.4f}; p = {sampled.excess_p:.2g}, alarm below {ALARM:g}.",
            f"  {sampled.impossible} tokens that the sampler chain excludes.",
        ]
    )


def depth_text(depth: int | None) -> str:
    return "auto" if depth is None else str(depth)


def gap_text(gap: float | None) -> str:
    return "?" if gap is None else f"{gap:.4f}"


def as_json(found: Verification) -> dict[str, object]:
    """Plain values for json.dumps."""
    wrong = problems(found)
    cases = [
        {
            **asdict(case),
            "prompt": case.prompt.name,
            "category": case.prompt.category,
            "depth": depth_text(case.depth),
            "explained": case.explained(found.greedy.width_difference),
        }
        for case in found.greedy.cases
    ]
    sampled = found.sampled
    return {
        "verdict": "different" if wrong else "incomplete" if missing(found) else "lossless",
        "problems": wrong,
        "missing": missing(found),
        "greedy": {"width_difference": found.greedy.width_difference, "cases": cases},
        "sampled": {
            "chain": asdict(found.sampling),
            "texts": sampled.texts,
            "tokens": sampled.tokens,
            "impossible": sampled.impossible,
            "excess": sampled.excess,
            "excess_error": sampled.excess_error if sampled.tokens else None,
            "excess_p": sampled.excess_p,
            "alarm_below": ALARM,
        },
        "seed": found.seed,
        "seconds": found.seconds,
        "stopped": found.stopped,
    }
