"""A comparison in words, and as a table of two rows."""

from localspec.algorithm.verification import SEED_DECIDES
from localspec.measure.compare.compare import Comparison, Side
from localspec.measure.machine import CROWDED
from localspec.measure.plot import aligned

NOTICEABLE = 1.03  # less than this either way is no difference
COLUMNS = ("", "tokens", "prompt s", "decode s", "tokens/s", "accepted", "tokens/pass")


def verdict_on(comparison: Comparison) -> str:
    """One sentence about the text, one about the speed, and one about a busy processor."""
    said = [about_text(comparison), about_speed(comparison), CROWDED if comparison.crowded else ""]
    return " ".join(filter(None, said))


def about_text(comparison: Comparison) -> str:
    where = comparison.divergence
    if comparison.cancelled:
        return "Stopped early, so the texts are not compared."
    if where is None:
        return "The same text, token for token."
    if comparison.rule not in SEED_DECIDES:
        return (
            f"The texts part at token {where.index + 1}, as two draws from one distribution do. "
            "At temperature 0, or with the rule coupled, a seed gives one text."
        )
    if where.top_two_gap is None or comparison.width_difference is None:
        return (
            f"The texts part at token {where.index + 1}; with the rule {comparison.rule} only a near-tie "
            "explains that: `localspec verify` tells."
        )
    allowed = 2 * comparison.width_difference
    gap = f"the two likeliest tokens are {where.top_two_gap:.4f} logits apart"
    if where.top_two_gap <= allowed:
        return (
            f"The texts part at token {where.index + 1}, a near-tie: {gap}, and batches of different width "
            f"alone move a logit by up to {comparison.width_difference:.4f} here."
        )
    return (
        f"The texts part at token {where.index + 1}, and no near-tie explains it: {gap}, more than twice the "
        f"{comparison.width_difference:.4f} that batch widths account for. `localspec verify` looks closer."
    )


def about_speed(comparison: Comparison) -> str:
    if not comparison.speedup:
        return "Too little was decoded to compare the speed."
    if not comparison.speculative.reply.stats.drafted:
        return "Nothing was drafted."
    runs = len(comparison.plain.replies)
    measured = "one run each" if runs == 1 else f"medians of {runs} runs each"
    if 1 / NOTICEABLE < comparison.speedup < NOTICEABLE:
        said = "Speculative decoding is as fast as plain"
    elif comparison.speedup > 1:
        said = f"Speculative decoding is {comparison.speedup:.2f}x as fast"
    else:
        said = f"Speculative decoding is slower, {comparison.speedup:.2f}x as fast"
    return f"{said} ({measured}); {comparison.total_speedup:.2f}x with the reading of the prompt counted."


def about_segments(comparison: Comparison) -> str:
    """Acceptance by kind of text, where a reply has both; else nothing."""
    free, structured = comparison.speculative.free_text, comparison.speculative.structured_text
    if not free.drafted or not structured.tokens:
        return ""
    forced = f", {structured.forced} tokens forced by the grammar" if structured.forced else ""
    return (
        f"Accepted in free text: {free.acceptance_rate:.0%} of {free.drafted}; in code and JSON: "
        f"{structured.acceptance_rate:.0%} of {structured.drafted}{forced}."
    )


def table(comparison: Comparison) -> str:
    """Both sides, a line each."""
    return aligned([COLUMNS, cells("plain", comparison.plain), cells("speculative", comparison.speculative)])


def cells(name: str, side: Side) -> tuple[str, ...]:
    stats = side.reply.stats
    return (
        name,
        str(len(side.tokens)),
        f"{side.median_prefill_seconds:.3f}",
        f"{side.median_decode_seconds:.3f}",
        f"{side.tokens_per_second:.1f}",
        f"{stats.acceptance_rate:.0%}" if stats.drafted else "-",
        f"{stats.mean_accepted_length:.2f}",
    )
