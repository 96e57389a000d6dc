"""The findings of a verification in words, figures and JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import product

from localspec.display import aligned, counted
from localspec.measure.bench import Category
from localspec.measure.likelihood import ALARM
from localspec.measure.verify import DEPTH, ENOUGH, GreedyCase, GreedyResult, Verification


def problems(found: Verification) -> list[str]:
    """A sentence for each difference beyond numerics."""
    cases, difference, sampled, said = found.greedy.cases, found.greedy.width_difference, found.sampled, []
    if wrong := sum(case.not_likeliest for case in cases):
        said.append(f"At temperature 0, not the target's first choice: {counted(wrong, 'token')}.")
    if apart := sum(not case.not_likeliest and not case.explained(difference) for case in cases):
        said.append(f"At temperature 0, {apart} of {len(cases)} texts differ by more than rounding explains.")
    if sampled.impossible:
        said.append(f"Sampled, although the settings forbid it: {counted(sampled.impossible, 'token')}.")
    if sampled.excess_p < ALARM:
        said.append(
            "Sampled replies are less likely than the target's own. "
            f"A pair without a fault shows this in less than one of {1 / max(sampled.excess_p, 1e-12):,.0f} runs."
        )
    return said


def missing(found: Verification) -> list[str]:
    """A sentence for each part for which the time was too short."""
    sampled = found.sampled
    said = [] if found.greedy.cases else ["No text at temperature 0 was finished."]
    if found.greedy.cases and not any(case.drafted for case in found.greedy.cases):
        said.append("Nothing was drafted in the texts at temperature 0.")
    if not sampled.tokens:
        said.append("No sampled text was finished.")
    elif sampled.smallest_excess > ENOUGH:
        said.append(f"Too few for a judgement: {counted(sampled.tokens, 'sampled token')}.")
    return said


def verdict(found: Verification) -> str:
    """The answer in a few sentences."""
    if wrong := problems(found):
        return "\n".join(["DIFFERENT: drafting changes what this pair writes.", *wrong])
    if lacking := missing(found):
        return "\n".join(
            ["NO DIFFERENCE so far, but not everything was tested.", *lacking, "Give it longer: --seconds."]
        )
    cases = found.greedy.cases
    near = sum(case.divergence is not None for case in cases)
    rounding = f"; {near} part where two words were about equally likely, and rounding chose" if near else ""
    together = f" They were written {found.at_once} at a time." if found.at_once > 1 else ""
    return (
        "NO DIFFERENCE: this pair writes what its target would write alone.\n"
        f"At temperature 0, {len(cases) - near} of {len(cases)} texts are the same, token for token{rounding}.\n"
        f"The target read {counted(found.sampled.texts, 'reply', 'replies')} at temperature "
        f"{found.sampling.temperature:g} again, without a draft: their words are as likely as its own.{together}"
    )


def report(found: Verification) -> str:
    """The answer, then the figures, for a terminal."""
    parts, sampled = [verdict(found)], found.sampled
    if found.greedy.cases:
        parts.append(greedy_report(found.greedy))
    if sampled.texts:
        usual, smallest = 3 * sampled.excess_error, f"{sampled.smallest_excess:.2f}"
        rows = (
            ("forbidden tokens", f"{sampled.impossible:,}", "The sampling settings forbid them: 0 is right."),
            (
                "extra surprise",
                f"{sampled.excess:+.3f}",
                f"Without a fault it is near 0, by chance between -{usual:.3f} and {usual:.3f}.",
            ),
            ("smallest fault", smallest, "This run finds any fault that adds as much surprise, or more."),
        )
        parts.append(
            f"Temperature {found.sampling.temperature:g}: {counted(sampled.texts, 'reply', 'replies')} of "
            f"{counted(sampled.tokens, 'token')}, read again by the target without a draft. The surprise tells how\n"
            f"unlikely a token was to the target, in nats.\n{aligned(rows, left=3)}"
        )
    return "\n\n".join(parts)


def greedy_report(greedy: GreedyResult) -> str:
    """A row for each category and depth, D, and a line for each text that parts."""
    difference = greedy.width_difference
    rows: list[tuple[str, ...]] = [("", "depth", "texts", "the same", "rounded", "different", "guesses kept")]
    idle = False
    for category, depth in product(Category, (DEPTH, None)):
        cases = [c for c in greedy.cases if c.prompt.category is category and c.depth == depth]
        wrong = sum(not case.explained(difference) for case in cases)
        if depth is None and cases and not wrong and not any(case.drafted for case in cases):
            idle = True
        elif cases:
            same = sum(case.divergence is None and case.explained(difference) for case in cases)
            counts = map(str, (len(cases), same, len(cases) - same - wrong, wrong))
            rows.append((category, depth_text(depth), *counts, kept_text(cases)))
    moves = f"the score of a word by up to {difference:.4f}" if difference >= 0.00005 else "no word's score"
    lines = [
        "Temperature 0: each text with drafting beside the text without.",
        aligned(rows),
        *["auto is not shown where it guessed nothing: plain decoding was faster there."] * idle,
        f"Rounding changes {moves} here.",
    ]
    lines += [
        f"{case.prompt.name}, depth {depth_text(case.depth)}: parts at token {case.divergence.index + 1}, where the "
        f"scores of two words are {case.divergence.top_two_gap or 0:.4f} apart; rounding explains {2 * difference:.4f}."
        for case in greedy.cases
        if case.divergence
    ]
    return "\n".join(lines)


def kept_text(cases: Sequence[GreedyCase]) -> str:
    return f"{sum(case.accepted for case in cases):,} of {sum(case.drafted for case in cases):,}"


def depth_text(depth: int | None) -> str:
    return "auto" if depth is None else str(depth)


def as_json(found: Verification) -> dict[str, object]:
    """Plain values for json.dumps."""
    wrong, lacking, greedy, sampled = problems(found), missing(found), found.greedy, found.sampled
    cases = [
        asdict(case)
        | {"prompt": case.prompt.name, "category": case.prompt.category, "depth": depth_text(case.depth)}
        | {"explained": case.explained(greedy.width_difference)}
        for case in greedy.cases
    ]
    derived = {"excess": sampled.excess, "excess_p": sampled.excess_p, "alarm_below": ALARM}
    return {
        "verdict": "different" if wrong else "incomplete" if lacking else "lossless",
        "problems": wrong,
        "missing": lacking,
        "greedy": {"width_difference": greedy.width_difference, "cases": cases},
        "sampled": asdict(sampled) | {"chain": asdict(found.sampling)} | derived,
        **{name: getattr(found, name) for name in ("seed", "seconds", "stopped", "at_once")},
    }
