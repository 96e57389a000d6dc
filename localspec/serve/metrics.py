"""What all replies together cost and gained, for Prometheus, under llama-server's names."""

from dataclasses import dataclass, field

from localspec.events import Reply
from localspec.stats import Stats


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
