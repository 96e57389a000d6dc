"""The numbers of a reply where clients look for them, and of all replies for Prometheus, under llama-server's names."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from typing import Any

from localspec.events import Reply, Stats


def usage(replies: Sequence[Reply], to_each_prompt: int = 1) -> dict[str, Any]:
    """OpenAI's usage; the prompt of several replies counts once."""
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
    """llama-server's timings, and speculation's gain under `localspec` (docs/metrics.md); null while unknown."""
    stats = reply.stats
    speedup, saved = stats.speedup, stats.saved_seconds
    return {
        "cache_n": stats.reused_tokens,
        **rates("prompt", stats.prompt_tokens - stats.reused_tokens, stats.prefill_seconds),
        **rates("predicted", stats.emitted, stats.decode_seconds),
        **({"draft_n": stats.drafted, "draft_n_accepted": stats.accepted} if stats.drafted else {}),
        "localspec": {
            "speedup": round(speedup.value, 3) if speedup else None,
            "speedup_low": round(speedup.low, 3) if speedup else None,
            "speedup_high": round(speedup.high, 3) if speedup else None,
            "saved_ms": round(saved * 1000, 1) if saved is not None else None,
            "mean_accepted_length": round(stats.mean_accepted_length, 3),
            "acceptance_rate": round(stats.acceptance_rate, 4),
            "acceptance_by_position": [round(share, 4) for share in stats.acceptance_by_position],
            "cycles": stats.cycles,
            "replies_at_once": round(stats.replies_at_once, 3),
            "tokens_by_source": {
                source: getattr(stats, f"from_{source}")
                for source in ("target", "model", "head", "lookup", "prediction", "grammar")
            },
            "switched_off": stats.switch_offs,
            "restored_n": stats.restored_tokens,
            "restored_ms": round(stats.restore_seconds * 1000, 1),
            "waited_ms": round(stats.waited_seconds * 1000, 1),
            "seed": reply.seed,
            "notices": list(notices),
        },
    }


def rates(name: str, count: int, seconds: float) -> dict[str, float]:
    return {
        f"{name}_n": count,
        f"{name}_ms": round(seconds * 1000, 3),
        f"{name}_per_token_ms": round(seconds * 1000 / count, 3) if count else 0.0,
        f"{name}_per_second": round(count / seconds, 3) if seconds else 0.0,
    }


@dataclass(slots=True)
class Totals:
    """All replies since the start."""

    replies: int = 0
    longest: int = 0  # tokens of a prompt and its reply
    sums: Stats = Stats()  # noqa: RUF009  frozen
    judged: Stats = Stats()  # noqa: RUF009  of the replies whose plain time is known

    def add(self, stats: Stats) -> None:
        self.replies += 1
        self.longest = max(self.longest, stats.prompt_tokens + stats.emitted)
        self.sums = added(self.sums, stats)
        if stats.plain_seconds:
            self.judged = added(self.judged, stats)


@dataclass(frozen=True, slots=True)
class Served:
    """An answered request, as the log tells it."""

    method: str
    path: str
    status: int
    seconds: float
    reason: str = ""  # why it failed, or ended early
    replies: tuple[Reply, ...] = ()
    waited_seconds: float = 0.0  # of these seconds

    @property
    def totals(self) -> Totals:
        found = Totals()
        for reply in self.replies:
            found.add(reply.stats)
        return found


def added(one: Stats, other: Stats) -> Stats:
    """The sums of two, in all fields that are numbers."""
    names = [f.name for f in fields(Stats) if isinstance(f.default, int | float)]
    sums = {name: getattr(one, name) + getattr(other, name) for name in names}
    positions = zip_longest(one.accepted_by_position, other.accepted_by_position, fillvalue=0)
    return replace(one, **sums, accepted_by_position=tuple(map(sum, positions)))


def exposition(totals: Totals, *, running: int, waiting: int, restarts: int) -> str:
    """The sums in Prometheus' text format."""
    sums, speedup = totals.sums, totals.judged.speedup
    fresh = sums.prompt_tokens - sums.reused_tokens
    counters = {
        "llamacpp:prompt_tokens_total": fresh,
        "llamacpp:prompt_tokens_cached_total": sums.reused_tokens,
        "llamacpp:n_tokens_max": totals.longest,
        "llamacpp:prompt_seconds_total": sums.prefill_seconds,
        "llamacpp:tokens_predicted_total": sums.emitted,
        "llamacpp:tokens_predicted_seconds_total": sums.decode_seconds,
        "llamacpp:n_decode_total": sums.cycles,
        "llamacpp:spec_decode_num_drafts_total": sums.cycles,
        "llamacpp:spec_decode_num_draft_tokens_total": sums.drafted,
        "llamacpp:spec_decode_num_accepted_tokens_total": sums.accepted,
        "localspec:replies_total": totals.replies,
        "localspec:saved_seconds_total": totals.judged.saved_seconds or 0.0,
        "localspec:engine_restarts_total": restarts,
    }
    gauges = {
        "llamacpp:prompt_tokens_seconds": fresh / sums.prefill_seconds if sums.prefill_seconds else 0.0,
        "llamacpp:predicted_tokens_seconds": sums.tokens_per_second,
        "llamacpp:n_busy_slots_per_decode": sums.replies_at_once,
        "llamacpp:requests_processing": running,
        "llamacpp:requests_deferred": waiting,
        **({"localspec:speedup": speedup.value} if speedup else {}),
    }
    position = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
    lines = [
        *(f"# TYPE {name} counter\n{name} {value}" for name, value in counters.items()),
        *(f"# TYPE {name} gauge\n{name} {value:g}" for name, value in gauges.items()),
        f"# TYPE {position} counter",
        *(f'{position}{{position="{n}"}} {count}' for n, count in enumerate(sums.accepted_by_position)),
    ]
    return "\n".join(lines) + "\n"
