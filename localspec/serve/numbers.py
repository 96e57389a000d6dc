"""The numbers of a reply, in the fields where clients look for them, and those that only speculation has."""

from collections.abc import Sequence
from typing import Any

from localspec.events import Reply
from localspec.stats import Stats


def usage(replies: Sequence[Reply], to_each_prompt: int = 1) -> dict[str, Any]:
    """OpenAI's usage; of several replies to a prompt the first one counts what was read."""
    stats = [reply.stats for reply in replies]
    firsts = stats[::to_each_prompt]
    read, written = sum(s.prompt_tokens for s in firsts), sum(len(reply.tokens) for reply in replies)
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": sum(s.reused_tokens for s in firsts)},
        "completion_tokens_details": {
            "reasoning_tokens": sum(reply.reasoning_tokens for reply in replies),
            "accepted_prediction_tokens": sum(s.from_prediction for s in stats),
            "rejected_prediction_tokens": sum(s.predicted - s.from_prediction for s in stats),
        },
    }


def timings(reply: Reply, notices: Sequence[str]) -> dict[str, Any]:
    """llama-server's timings, and what speculation did, under `localspec` (docs/metrics.md)."""
    stats = reply.stats
    read, written = stats.prompt_tokens - stats.reused_tokens, stats.emitted
    found: dict[str, Any] = {
        "cache_n": stats.reused_tokens,
        **rates("prompt", read, stats.prefill_seconds),
        **rates("predicted", written, stats.decode_seconds),
    }
    if stats.drafted:
        found |= {"draft_n": stats.drafted, "draft_n_accepted": stats.accepted}
    return {**found, "localspec": {**speculation(stats), "seed": reply.seed, "notices": list(notices)}}


def rates(name: str, count: int, seconds: float) -> dict[str, float]:
    return {
        f"{name}_n": count,
        f"{name}_ms": round(seconds * 1000, 3),
        f"{name}_per_token_ms": round(seconds * 1000 / count, 3) if count else 0.0,
        f"{name}_per_second": round(count / seconds, 3) if seconds else 0.0,
    }


def speculation(stats: Stats) -> dict[str, Any]:
    """What drafting gained; null where that is not known."""
    speedup, saved = stats.speedup, stats.saved_seconds
    return {
        "speedup": round(speedup.value, 3) if speedup else None,
        "speedup_low": round(speedup.low, 3) if speedup else None,
        "speedup_high": round(speedup.high, 3) if speedup else None,
        "saved_ms": round(saved * 1000, 1) if saved is not None else None,
        "mean_accepted_length": round(stats.mean_accepted_length, 3),
        "acceptance_rate": round(stats.acceptance_rate, 4),
        "acceptance_by_position": [round(share, 4) for share in stats.acceptance_by_position],
        "cycles": stats.cycles,
        "tokens_by_source": {
            "target": stats.from_target,
            "model": stats.from_model,
            "head": stats.from_head,
            "lookup": stats.from_lookup,
            "prediction": stats.from_prediction,
            "grammar": stats.from_grammar,
        },
        "switched_off": stats.switch_offs,
    }


def headers(reply: Reply) -> dict[str, str]:
    """The numbers for those who do not read bodies."""
    stats = reply.stats
    found = {
        "x-localspec-tokens-per-second": f"{stats.tokens_per_second:.2f}",
        "x-localspec-mean-accepted-length": f"{stats.mean_accepted_length:.2f}",
        "x-localspec-acceptance-rate": f"{stats.acceptance_rate:.3f}",
    }
    if stats.speedup:
        found["x-localspec-speedup"] = f"{stats.speedup.value:.2f}"
    return found
