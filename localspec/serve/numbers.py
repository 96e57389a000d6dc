"""Numbers of a reply for its client, and of all replies for Prometheus, mostly under llama-server's names."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from localspec.control.timing import Tally
from localspec.events import Cycle, Prefill, Reply, Started, Stats

_SPECULATION: Final = "llamacpp:spec_decode_num"


def usage(replies: Sequence[Reply], to_each_prompt: int = 1) -> dict[str, Any]:
    """Return OpenAI's `usage`, numbers of tokens. A prompt with `to_each_prompt` replies counts once."""
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
    stats = reply.stats
    values = timings_of(stats, stats.prompt_tokens - stats.reused_tokens)
    values["localspec"] |= {"seed": reply.seed, "notices": list(notices)}
    return values


def timings_of(stats: Stats, fresh: int) -> dict[str, Any]:
    """Return llama-server's timings, and the gain of drafting under the key `localspec`.

    `fresh`: number of prompt tokens that the prefill has read.
    """
    speedup, saved = stats.speedup, stats.saved_seconds
    return {
        "cache_n": stats.reused_tokens,
        **rates("prompt", fresh, fresh, stats.prefill_seconds),
        **rates("predicted", stats.emitted, max(stats.emitted - 1, 0), stats.decode_seconds),
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
            "thinking_cut": stats.thinking_cut,
            "restored_n": stats.restored_tokens,
            "restored_ms": round(stats.restore_seconds * 1000, 1),
            "read_ahead_n": stats.read_ahead_tokens,
            "waited_ms": round(stats.waited_seconds * 1000, 1),
        },
    }


def rates(name: str, count: int, steps: int, seconds: float) -> dict[str, float]:
    return {
        f"{name}_n": count,
        f"{name}_ms": seconds * 1000,
        f"{name}_per_token_ms": seconds * 1000 / steps if steps else 0.0,
        f"{name}_per_second": rate(steps, seconds),  # not rounded, because clients compute with this number
    }


@dataclass(slots=True)
class Running:
    read: int = 0  # number of prompt tokens that the prefill has read so far
    tally: Tally = field(default_factory=Tally)

    def see(self, report: object) -> bool:
        """Update the numbers by a report; return whether it changed the progress of the prefill."""
        tally, sums = self.tally, self.tally.sums
        match report:
            case Started(prompt_tokens=whole, reused_tokens=reused):
                tally.sums = replace(sums, prompt_tokens=whole, reused_tokens=reused)
            case Prefill():
                self.read, tally.sums = report.done, replace(sums, prefill_seconds=report.seconds)
            case Cycle():
                tally.add(report)
                self.read = sums.prompt_tokens - sums.reused_tokens  # the first cycle ends the prefill
                return not sums.emitted
        return isinstance(report, Started | Prefill)

    @property
    def progress(self) -> dict[str, float]:
        sums = self.tally.sums
        return {
            "total": sums.prompt_tokens,
            "cache": sums.reused_tokens,
            "processed": sums.reused_tokens + self.read,
            "time_ms": sums.prefill_seconds * 1000,
        }

    @property
    def timings(self) -> dict[str, Any]:
        return timings_of(self.tally.stats(), self.read)


@dataclass(slots=True)
class Totals:
    """Sums over the replies to one request, or over all replies since the server started."""

    replies: int = 0
    longest: int = 0  # tokens of the longest prompt with its reply
    steps: int = 0  # number of emitted tokens, except the first token of each reply
    sums: Stats = Stats()  # noqa: RUF009  Stats is frozen
    judged: Stats = Stats()  # noqa: RUF009  only replies with a known time of plain decoding

    def add(self, stats: Stats) -> None:
        self.replies += 1
        self.longest = max(self.longest, stats.prompt_tokens + stats.emitted)
        self.steps += max(stats.emitted - 1, 0)
        self.sums += stats
        if stats.plain_seconds:
            self.judged += stats


@dataclass(frozen=True, slots=True)
class Served:
    method: str
    path: str
    status: int
    seconds: float
    reason: str = ""  # the reason for a failure or an early end
    replies: tuple[Reply, ...] = ()
    waited_seconds: float = 0.0  # the longest time that a reply waited, which is part of `seconds`
    notices: tuple[str, ...] = ()

    @property
    def totals(self) -> Totals:
        totals = Totals()
        for reply in self.replies:
            totals.add(reply.stats)
        return totals


def exposition(totals: Totals, *, running: int, waiting: int, restarts: int) -> str:
    sums, speedup = totals.sums, totals.judged.speedup
    fresh = sums.prompt_tokens - sums.reused_tokens
    spent, read_rate = sums.decode_seconds, rate(fresh, sums.prefill_seconds)
    written_rate = rate(totals.steps, spent)
    metrics: list[tuple[str, str, str, float]] = [
        ("counter", "llamacpp:prompt_tokens_total", "Prefilled prompt tokens", fresh),
        ("counter", "llamacpp:prompt_tokens_cached_total", "Prompt tokens from a cache", sums.reused_tokens),
        ("counter", "llamacpp:n_tokens_max", "Tokens of the longest prompt and reply", totals.longest),
        ("counter", "llamacpp:prompt_seconds_total", "Seconds of prefill", sums.prefill_seconds),
        ("counter", "llamacpp:tokens_predicted_total", "Tokens written", sums.emitted),
        ("counter", "llamacpp:tokens_predicted_seconds_total", "Seconds writing tokens", spent),
        ("counter", "llamacpp:n_decode_total", "Forward passes of the target after prefill", sums.cycles),
        ("counter", f"{_SPECULATION}_drafts_total", "Passes with a draft", sum(sums.drafted_by_position[:1])),
        ("counter", f"{_SPECULATION}_draft_tokens_total", "Draft tokens", sums.drafted),
        ("counter", f"{_SPECULATION}_accepted_tokens_total", "Accepted draft tokens", sums.accepted),
        ("counter", "localspec:read_ahead_tokens_total", "Tokens read ahead", sums.read_ahead_tokens),
        ("counter", "localspec:replies_total", "Replies", totals.replies),
        ("counter", "localspec:saved_seconds_total", "Seconds saved", totals.judged.saved_seconds or 0.0),
        ("counter", "localspec:engine_restarts_total", "Restarts of the engine", restarts),
        ("gauge", "llamacpp:prompt_tokens_seconds", "Prompt tokens per second", read_rate),
        ("gauge", "llamacpp:predicted_tokens_seconds", "Tokens written per second", written_rate),
        ("gauge", "llamacpp:n_busy_slots_per_decode", "Replies in a pass", sums.replies_at_once),
        ("gauge", "llamacpp:requests_processing", "Running replies", running),
        ("gauge", "llamacpp:requests_deferred", "Waiting requests", waiting),
        *([("gauge", "localspec:speedup", "Speed-up over plain decoding", speedup.value)] if speedup else []),
    ]
    lines = [
        f"# HELP {name} {what}\n# TYPE {name} {kind}\n{name} {value if kind == 'counter' else f'{value:g}'}"
        for kind, name, what, value in metrics
    ]
    return "\n".join(lines) + "\n"


def rate(count: int, seconds: float) -> float:
    return count / seconds if seconds else 0.0
