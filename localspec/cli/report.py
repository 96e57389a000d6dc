"""The numbers of a reply in words: one line, or all of them."""

from localspec.events import FinishReason, Reply
from localspec.stats import Stats

ENDINGS = {
    FinishReason.STOP: "",
    FinishReason.LENGTH: " · cut at the token limit",
    FinishReason.CANCELLED: " · stopped",
}
MOSTLY_READING = 0.5  # of a reply's time: from here on a summary says where it went


def summary(reply: Reply) -> str:
    """One line: how fast, and what speculation contributed."""
    stats = reply.stats
    parts = [f"{stats.emitted} tokens", f"{stats.tokens_per_second:.1f} tokens/s"]
    if stats.drafted:
        parts.append(f"{stats.acceptance_rate:.0%} of drafts accepted")
        parts.append(f"{stats.mean_accepted_length:.2f} tokens per target pass")
    if stats.from_prediction:
        parts.append(f"{stats.from_prediction} tokens from the prediction")
    line = "[" + " · ".join(parts) + ENDINGS[reply.finish_reason] + "]"
    return f"{line}\n{reading}" if (reading := about_reading(stats)) else line


def about_reading(stats: Stats) -> str:
    """A sentence where most of the time went into the prompt; else nothing."""
    if stats.prefill_share < MOSTLY_READING:
        return ""
    read = stats.prompt_tokens - stats.reused_tokens
    return (
        f"{stats.prefill_share:.0%} of this was reading the prompt ({read} tokens "
        f"in {stats.prefill_seconds:.1f} s), where speculation cannot help."
    )


def report(reply: Reply) -> str:
    """Every number, a line each, with what it counts."""
    stats = reply.stats
    by_position = " ".join(f"{rate:.0%}" for rate in stats.acceptance_by_position) or "-"
    sources = {
        "a model": stats.from_model,
        "a head": stats.from_head,
        "lookup": stats.from_lookup,
        "the prediction": stats.from_prediction,
        "the grammar": stats.from_grammar,
    }
    proposed = ", ".join(f"{count} by {source}" for source, count in sources.items() if count)
    rows = [
        ("finish reason", reply.finish_reason, ""),
        ("seed", str(reply.seed), ""),
        ("prompt", f"{stats.prompt_tokens} tokens", f"{stats.reused_tokens} of them already in the cache"),
        (
            "prefill",
            f"{stats.prefill_seconds:.3f} s",
            f"{stats.prefill_share:.0%} of the time, which speculation cannot touch",
        ),
        ("first token", f"{stats.first_token_seconds:.3f} s", "after the request"),
        ("decode", f"{stats.decode_seconds:.3f} s", f"{1 - stats.prefill_share:.0%} of the time"),
        ("emitted", f"{stats.emitted} tokens", f"in {stats.cycles} target passes"),
        ("from the target", f"{stats.from_target} tokens", f"proposed: {proposed}" if proposed else ""),
        ("speed", f"{stats.tokens_per_second:.1f} tokens/s", "emitted / (draft + verify + other)"),
        ("drafted", f"{stats.drafted} tokens", f"{stats.accepted} accepted"),
        ("acceptance rate", f"{stats.acceptance_rate:.1%}", f"by position: {by_position}"),
        (
            "mean accepted length",
            f"{stats.mean_accepted_length:.2f}",
            "tokens per target pass; 1 is plain decoding",
        ),
        (
            "draft",
            f"{stats.draft_seconds:.3f} s",
            f"inside the draft model, {stats.draft_reading_seconds:.3f} s of it to read the text",
        ),
        ("verify", f"{stats.verify_seconds:.3f} s", "inside the target model"),
        ("other", f"{stats.other_seconds:.3f} s", "everything else"),
    ]
    return "\n".join(f"{name:<21} {value:<18} {meaning}".rstrip() for name, value, meaning in rows)
