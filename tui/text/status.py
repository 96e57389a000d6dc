"""The text of the lines around the conversation and under replies."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final

from localspec.chat.conversations import StoredMessage
from localspec.display import counted, size_text
from localspec.measure.race import NOTICEABLE
from localspec.models.registry import DEMO

from ..state.engine import EngineState, PullProgress, ReplyState


def gauge(value: float, width: int) -> str:
    """A value 0..1 as a thin bar of `width` cells."""
    full, half = divmod(round(min(1.0, max(0.0, value)) * width * 2), 2)
    return ("━" * full + "╸" * half).ljust(width)


def time_split(seconds: Sequence[float], width: int) -> list[tuple[str, str]]:
    """Draft, verify and other time side by side, each with its style."""
    total, styles = sum(seconds) or 1.0, ("$warning", "$primary", "$secondary")
    ends = [round(width * end / total) for end in accumulate(seconds, initial=0.0)]
    return [("━" * (end - start), style) for (start, end), style in zip(pairwise(ends), styles, strict=True)]


OUTCOMES: Final = {
    "cancelled": "stopped",
    "length": "cut at the limit, /continue resumes",
    "died": "the engine died here",
    "failed": "ended by an error",
    "unsaved": "NOT SAVED",
}


def title(engine: EngineState, *, stored: bool = True) -> str:
    """Pair, drafting and temperature, and whether nothing of the chat is kept."""
    settings = engine.settings
    drafting = ""
    if engine.ready:
        drafting = f"drafted by {engine.ready.draft}" if engine.ready.draft else "no draft model"
    if not settings.get("speculate", True) or settings.get("depth") == 0:
        drafting = "draft off"
    parts = ["" if stored else "not stored", shown_name(engine), drafting]
    if settings.get("speculate", True) and settings.get("depth", "auto") != "auto":
        parts.append(f"depth {settings['depth']}")
    if "temperature" in settings:
        parts.append(f"T {settings['temperature']:g}")
    if "seed" in settings:
        parts.append(f"seed {settings['seed']}")
    return " · ".join(part for part in parts if part)


def shown_name(engine: EngineState) -> str:
    """The pair's name; of the demo also that it is a toy."""
    return "demo (a toy)" if engine.pair_name == DEMO else engine.pair_name or "no pair"


def status(engine: EngineState, pull: PullProgress | None) -> str:
    """The current work in one line; "" when idle."""
    return "   ".join(filter(None, [_engine_status(engine), pull_status(pull) if pull else ""]))


def _engine_status(engine: EngineState) -> str:
    if engine.loading:
        return f"loading: {engine.stage}" if engine.stage else "starting the engine"
    if (reply := engine.reply) is not None:
        what = "waiting for the engine"
        if reply.tally.emitted:
            what = counted(reply.tally.emitted, "token")
        elif reply.prefill is not None:
            what = f"reading the prompt {reply.prefill.done:,} / {reply.prefill.total:,}"
        return f"comparing: {what}" if engine.comparing else what
    if engine.ready is None:
        return "no pair is loaded · /pair chooses one" if engine.client.alive else "the engine is not running"
    return "" if engine.recent else f"ready in {engine.ready.seconds:.1f} s"


def gain(engine: EngineState, reply: ReplyState) -> tuple[str, bool]:
    """What drafting gains in a reply, and whether that is good news."""
    stats = reply.stats
    if engine.pair_name == DEMO and stats.drafted:
        return f"{stats.mean_accepted_length:.1f} tokens a pass, toy pair", True
    if reply.is_off:
        return "no gain here: drafting is off", False
    if not stats.drafted:
        is_wanted = engine.settings.get("speculate", True) and not engine.comparing
        nothing = "nothing guessed" if reply.final else "nothing guessed yet"
        return nothing if is_wanted else "plain decoding", False
    if stats.speedup is None:
        return "gain not known yet", False
    return times_text(stats.speedup.value), stats.speedup.value >= NOTICEABLE


def times_text(times: float) -> str:
    if 1 / NOTICEABLE < times < NOTICEABLE:
        return "as fast as plain decoding"
    return f"{times:.{2 if times < 1.05 else 1}f}x faster" if times > 1 else f"no gain here: {times:.2f}x"


def kept_text(accepted: int, drafted: int) -> str:
    """The share of guesses kept; of few guesses their number."""
    if drafted >= 10:
        return f"{accepted / drafted:.0%} of guesses kept"
    return f"{accepted} of {counted(drafted, 'guess', 'guesses')} kept"


def pull_status(pull: PullProgress) -> str:
    if not pull.total_bytes:
        return f"fetching {pull.name}"
    return f"fetching {pull.name} {pull.done_bytes / pull.total_bytes:.0%} of {size_text(pull.total_bytes)}"


def footer(message: StoredMessage) -> str:
    """A reply's version, end and cost."""
    parts = [f"‹{message.version + 1}/{len(message.versions)}›"] if message.versions else []
    parts += [OUTCOMES[message.outcome]] if message.outcome in OUTCOMES else []
    if (cost := message.numbers) is not None:
        parts += [
            counted(cost.tokens, "token"),
            f"{cost.seconds:.1f} s",
            f"{cost.tokens_per_second:.1f} tok/s",
        ]
        if cost.drafted:
            kept = round(cost.acceptance_rate * cost.drafted)
            parts += [kept_text(kept, cost.drafted), f"{cost.mean_accepted_length:.1f} a pass"]
        if cost.speedup is not None:
            parts.append(times_text(cost.speedup))
        if cost.restored_tokens and cost.restore_seconds:
            restored = counted(cost.restored_tokens, "token")
            parts.append(f"{restored} from the disk in {cost.restore_seconds:.1f} s")
    return " · ".join(parts)
