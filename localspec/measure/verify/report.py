"""A verification as tables, as words, and as plain values."""

import math
from collections.abc import Sequence
from dataclasses import asdict

from localspec.measure.plot import aligned
from localspec.measure.prompts import Category
from localspec.measure.verify.greedy import FIXED_DEPTH, GreedyCase, GreedyResult
from localspec.measure.verify.law import ALPHA, EACH, LEAK, LawResult
from localspec.measure.verify.quality import QualityResult
from localspec.measure.verify.verify import Verification


def problems(found: Verification) -> list[str]:
    """What differs beyond numerics, a sentence each; empty when nothing does."""
    said = []
    wrong = sum(case.not_likeliest for case in found.greedy.cases)
    if wrong:
        said.append(f"{wrong} greedy tokens are not the likeliest of the row that decided them.")
    apart = [case for case in found.greedy.unexplained if not case.not_likeliest]
    if apart:
        said.append(
            f"{len(apart)} of {len(found.greedy.cases)} greedy texts part where no near-tie explains it."
        )
    if found.law and found.law.impossible:
        said.append(f"Replays let {found.law.impossible} tokens through that the target's law excludes.")
    elif found.law and not found.law.exact:
        said.append(
            f"Replays depart from the target's law (p = {found.law.leak_p:.1g}, alarm below {EACH:.1g})."
        )
    if found.quality.impossible:
        said.append(f"{found.quality.impossible} sampled tokens are ones that the target's law excludes.")
    if found.quality.excess_p < EACH:
        said.append(
            f"Sampled replies are {found.quality.excess:+.3f} nats per token less likely than the target's "
            f"law expects (p < {found.quality.excess_p:.1g})."
        )
    return said


def missing(found: Verification) -> list[str]:
    """What the time did not suffice for, a sentence each."""
    said = []
    if not found.greedy.cases:
        said.append("No greedy text was finished.")
    if not found.quality.texts:
        said.append("No sampled text was finished.")
    if not found.law:
        said.append("The verifier was not replayed.")
    elif found.law.smallest_leak > LEAK:
        said.append(
            f"{found.law.verifications:,} replays are too few: a rule that wrongly keeps {LEAK:.0%} of what it "
            f"should reject could go unnoticed, one that keeps {found.law.smallest_leak:.1%} could not."
        )
    return said


def verdict(found: Verification) -> str:
    """What the user wants to know, in a few sentences."""
    if wrong := problems(found):
        return "\n".join(["DIFFERENT: speculation changes what this pair says.", *wrong])
    lacking = missing(found)
    if lacking or not found.law:
        return "\n".join(
            ["NOTHING DIFFERS so far, but not everything was tested.", *lacking, "Give it longer: --seconds."]
        )
    near = sum(case.divergence is not None for case in found.greedy.cases)
    greedy = "Every greedy text is the same" if not near else f"{near} greedy texts part, at near-ties only"
    return (
        f"LOSSLESS, as far as {found.law.verifications:,} replays and {found.quality.texts} replies can tell. "
        f"{greedy}; the sampled law is the target's (a rule that wrongly keeps {found.law.smallest_leak:.1%} "
        "of what it should reject would have been found); sampled replies are as likely as they should be."
    )


def report(found: Verification) -> str:
    """Everything, for a terminal."""
    parts = []
    if found.greedy.cases:
        parts.append(greedy_report(found.greedy))
        if found.expected_acceptance is not None:
            parts.append(acceptance_line(found.greedy, found.expected_acceptance))
    if found.law:
        parts.append(law_report(found.law, found))
    if found.quality.texts:
        parts.append(quality_report(found.quality, found.sampling.temperature))
    return "\n\n".join([*parts, verdict(found)])


def greedy_report(greedy: GreedyResult) -> str:
    rows: list[tuple[str, ...]] = [
        ("greedy", "depth", "texts", "identical", "near-tie", "different", "accepted")
    ]
    for category in Category:
        for depth in (FIXED_DEPTH, None):
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
    """How often the draft is right, against what was published: a head that is read wrongly is right less often."""
    cases = [case for case in greedy.cases if case.depth == FIXED_DEPTH]
    drafted, accepted = sum(case.drafted for case in cases), sum(case.accepted for case in cases)
    share = f"{accepted / drafted:.0%}" if drafted else "none"
    return (
        f"Of the draft's tokens the target kept {share} at depth {FIXED_DEPTH}; "
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


def law_report(law: LawResult, found: Verification) -> str:
    return "\n".join(
        [
            f"Sampling, the verifier replayed {law.verifications:,} times on rows from {found.meetings} places at "
            f"temperature {found.sampling.temperature:g}:",
            f"  {law.kept_share:.0%} of the draft's tokens kept; {law.impossible} tokens that the law excludes; "
            f"p = {law.leak_p:.2g} of the rest, finds leaks from {law.smallest_leak:.1%}.",
            f"  An alarm below p = {EACH:.1g}, so that a correct verifier alarms once in {1 / ALPHA:,.0f} runs.",
        ]
    )


def quality_report(quality: QualityResult, temperature: float) -> str:
    return "\n".join(
        [
            f"Likelihood under the target at temperature {temperature:g}, nats per token, {quality.texts} "
            "replies of each kind:",
            f"  plain {quality.plain:.3f}, speculative {quality.speculative:.3f}; difference "
            f"{quality.difference:+.3f} (95 %: {quality.low:+.3f} to {quality.high:+.3f}).",
            f"  Against the law itself, {quality.tokens:,} tokens: {quality.excess:+.4f} nats, standard "
            f"error {quality.excess_error:.4f}; {quality.impossible} tokens that it excludes.",
        ]
    )


def depth_text(depth: int | None) -> str:
    return "auto" if depth is None else str(depth)


def gap_text(gap: float | None) -> str:
    return "?" if gap is None else f"{gap:.4f}"


def as_json(found: Verification) -> dict[str, object]:
    """Plain values for json.dumps; what is not known is None."""
    wrong = problems(found)
    cases = [
        {
            "prompt": case.prompt.name,
            "category": case.prompt.category,
            "depth": depth_text(case.depth),
            "tokens": case.tokens,
            "drafted": case.drafted,
            "accepted": case.accepted,
            "not_likeliest": case.not_likeliest,
            "divergence": asdict(case.divergence) if case.divergence else None,
            "explained": case.explained(found.greedy.width_difference),
        }
        for case in found.greedy.cases
    ]
    quality = {name: value if math.isfinite(value) else None for name, value in asdict(found.quality).items()}
    return {
        "verdict": "different" if wrong else "incomplete" if missing(found) else "lossless",
        "problems": wrong,
        "missing": missing(found),
        "greedy": {"width_difference": found.greedy.width_difference, "cases": cases},
        "sampling": {
            "meetings": found.meetings,
            "alarm_below": EACH,
            "replays": asdict(found.law) | {"exact": found.law.exact} if found.law else None,
            "chain": asdict(found.sampling),
        },
        "quality": quality | {"difference": found.quality.difference},
        "seed": found.seed,
        "seconds": found.seconds,
        "stopped": found.stopped,
    }
