"""A verification as a table, as sentences, and as plain values."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import product

from localspec.measure.plot import aligned
from localspec.measure.prompts import Category
from localspec.measure.verify import (
    ALARM,
    DEPTH,
    GreedyCase,
    GreedyResult,
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
    parts, sampled = [], found.sampled
    if found.greedy.cases:
        parts.append(greedy_report(found.greedy))
        if found.expected_acceptance is not None:
            share = accepted_text([case for case in found.greedy.cases if case.depth == DEPTH])
            parts.append(
                f"Of the draft's tokens the target kept {share} at depth {DEPTH}; "
                f"{found.expected_acceptance:.0%} were published for this pair."
            )
    if sampled.texts:
        parts.append(
            f"Sampled at temperature {found.sampling.temperature:g}: {sampled.texts} replies, {sampled.tokens:,} "
            f"tokens, judged by the target alone.\n  {sampled.excess:+.4f} nats per token less likely than expected, "
            f"standard error {sampled.excess_error:.4f}; p = {sampled.excess_p:.2g}, alarm below {ALARM:g}.\n"
            f"  {sampled.impossible} tokens that the sampler chain excludes."
        )
    return "\n\n".join([*parts, verdict(found)])


def greedy_report(greedy: GreedyResult) -> str:
    """A row for each category and depth, D, and a line for each text that parts."""
    difference = greedy.width_difference
    rows: list[tuple[str, ...]] = [
        ("greedy", "depth", "texts", "identical", "near-tie", "different", "accepted")
    ]
    for category, depth in product(Category, (DEPTH, None)):
        cases = [c for c in greedy.cases if c.prompt.category is category and c.depth == depth]
        if cases:
            wrong = sum(not case.explained(difference) for case in cases)
            same = sum(case.divergence is None and case.explained(difference) for case in cases)
            counts = map(str, (len(cases), same, len(cases) - same - wrong, wrong))
            rows.append((category, depth_text(depth), *counts, accepted_text(cases)))
    lines = [aligned(rows), f"Batch widths alone move a logit by up to D = {difference:.4f} here."]
    lines += [
        f"{case.prompt.name}, depth {depth_text(case.depth)}: parts at token {case.divergence.index + 1}, "
        f"the two likeliest {case.divergence.top_two_gap or 0:.4f} logits apart; 2D = {2 * difference:.4f}."
        for case in greedy.cases
        if case.divergence
    ]
    return "\n".join(lines)


def accepted_text(cases: Sequence[GreedyCase]) -> str:
    drafted = sum(case.drafted for case in cases)
    return f"{sum(case.accepted for case in cases) / drafted:.0%}" if drafted else "-"


def depth_text(depth: int | None) -> str:
    return "auto" if depth is None else str(depth)


def as_json(found: Verification) -> dict[str, object]:
    """Plain values for json.dumps."""
    wrong, lacking = problems(found), missing(found)
    cases = [
        asdict(case)
        | {
            "prompt": case.prompt.name,
            "category": case.prompt.category,
            "depth": depth_text(case.depth),
            "explained": case.explained(found.greedy.width_difference),
        }
        for case in found.greedy.cases
    ]
    sampled = found.sampled
    return {
        "verdict": "different" if wrong else "incomplete" if lacking else "lossless",
        "problems": wrong,
        "missing": lacking,
        "greedy": {"width_difference": found.greedy.width_difference, "cases": cases},
        "sampled": asdict(sampled)
        | {
            "chain": asdict(found.sampling),
            "excess": sampled.excess,
            "excess_p": sampled.excess_p,
            "alarm_below": ALARM,
        },
        "seed": found.seed,
        "seconds": found.seconds,
        "stopped": found.stopped,
    }
