"""The numbers of a reply where clients look for them, and of all replies for Prometheus, under llama-server's names."""

from collections.abc import Sequence
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class Totals:
    """Counts since the start."""

    replies: int = 0
    longest: int = 0  # tokens of a prompt and its reply
    prompt_tokens: int = 0
    reused_tokens: int = 0
    prefill_seconds: float = 0.0
    written_tokens: int = 0
    decode_seconds: float = 0.0
    cycles: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_by_position: list[int] = field(default_factory=list)
    judged_seconds: float = 0.0  # decode seconds of replies whose plain time is known
    plain_seconds: float = 0.0  # what plain decoding would have taken for those

    def add(self, reply: Reply) -> None:
        stats = reply.stats
        self.replies += 1
        self.longest = max(self.longest, stats.prompt_tokens + stats.emitted)
        self.prompt_tokens += stats.prompt_tokens
        self.reused_tokens += stats.reused_tokens
        self.prefill_seconds += stats.prefill_seconds
        self.written_tokens += stats.emitted
        self.decode_seconds += stats.decode_seconds
        self._add_drafting(stats)

    @property
    def saved_seconds(self) -> float:
        return self.plain_seconds - self.judged_seconds

    @property
    def speedup(self) -> float | None:
        """Over the replies for which it is known."""
        return self.plain_seconds / self.judged_seconds if self.judged_seconds else None

    @property
    def tokens_per_second(self) -> float:
        return self.written_tokens / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def acceptance_rate(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    def _add_drafting(self, stats: Stats) -> None:
        self.cycles += stats.cycles
        self.drafted += stats.drafted
        self.accepted += stats.accepted
        missing = len(stats.accepted_by_position) - len(self.accepted_by_position)
        self.accepted_by_position += [0] * missing
        for position, count in enumerate(stats.accepted_by_position):
            self.accepted_by_position[position] += count
        if stats.plain_seconds:
            self.judged_seconds += stats.decode_seconds
            self.plain_seconds += stats.plain_seconds


def exposition(totals: Totals, *, running: int, waiting: int, restarts: int) -> str:
    """The counts in Prometheus' text format."""
    fresh = totals.prompt_tokens - totals.reused_tokens
    prompt_rate = fresh / totals.prefill_seconds if totals.prefill_seconds else 0.0
    counters = {
        "llamacpp:prompt_tokens_total": fresh,
        "llamacpp:prompt_tokens_cached_total": totals.reused_tokens,
        "llamacpp:n_tokens_max": totals.longest,
        "llamacpp:prompt_seconds_total": totals.prefill_seconds,
        "llamacpp:tokens_predicted_total": totals.written_tokens,
        "llamacpp:tokens_predicted_seconds_total": totals.decode_seconds,
        "llamacpp:n_decode_total": totals.cycles,
        "llamacpp:spec_decode_num_drafts_total": totals.cycles,
        "llamacpp:spec_decode_num_draft_tokens_total": totals.drafted,
        "llamacpp:spec_decode_num_accepted_tokens_total": totals.accepted,
        "localspec:replies_total": totals.replies,
        "localspec:saved_seconds_total": totals.saved_seconds,
        "localspec:engine_restarts_total": restarts,
    }
    gauges = {
        "llamacpp:prompt_tokens_seconds": prompt_rate,
        "llamacpp:predicted_tokens_seconds": totals.tokens_per_second,
        "llamacpp:requests_processing": running,
        "llamacpp:requests_deferred": waiting,
    }
    if totals.speedup is not None:
        gauges["localspec:speedup"] = totals.speedup
    lines: list[str] = []
    for kind, values in (("counter", counters), ("gauge", gauges)):
        for name, value in values.items():
            lines += [f"# TYPE {name} {kind}", f"{name} {value:g}" if kind == "gauge" else f"{name} {value}"]
    name = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
    lines.append(f"# TYPE {name} counter")
    lines += [f'{name}{{position="{n}"}} {count}' for n, count in enumerate(totals.accepted_by_position)]
    return "\n".join(lines) + "\n"
