"""The text of the lines around the conversation and under replies."""

from collections.abc import Sequence
from typing import Final

from localspec.chat.conversations import StoredMessage
from localspec.display import size_text
from localspec.models.registry import DEMO

from ..state.engine import EngineState, PullProgress, ReplyState

NOTICEABLE: Final = 1.03  # times as fast; less is no difference


def gauge(value: float, width: int) -> str:
    """A value 0..1 as a thin bar of `width` cells."""
    full, half = divmod(round(min(1.0, max(0.0, value)) * width * 2), 2)
    return ("━" * full + "╸" * half).ljust(width)


def shares(values: Sequence[float], width: int) -> tuple[int, ...]:
    """Cells for each value so that they fill `width` in proportion; the largest takes the rounding."""
    total = sum(values)
    if total <= 0:
        return (0,) * len(values)
    cells = [int(width * value / total) for value in values]
    cells[max(range(len(values)), key=lambda i: values[i])] += width - sum(cells)
    return tuple(cells)


def time_split(seconds: Sequence[float], width: int) -> list[tuple[str, str]]:
    """Draft, verify and other time side by side, each with its style."""
    styles = ("$warning", "$primary", "$secondary")
    return [("━" * cells, style) for cells, style in zip(shares(seconds, width), styles, strict=True)]


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
    drafting = f"drafted by {engine.ready.draft or 'lookup'}" if engine.ready else ""
    if not settings.get("speculate", True) or settings.get("depth") == 0:
        drafting = "draft off"
    parts = ["" if stored else "not stored", engine.pair_name or "no pair", drafting]
    if settings.get("speculate", True) and settings.get("depth", "auto") != "auto":
        parts.append(f"depth {settings['depth']}")
    if "temperature" in settings:
        parts.append(f"T {settings['temperature']:g}")
    if "seed" in settings:
        parts.append(f"seed {settings['seed']}")
    return " · ".join(part for part in parts if part)


def status(engine: EngineState, pull: PullProgress | None) -> str:
    """The current work in one line; "" when idle."""
    return "   ".join(filter(None, [_engine_status(engine), pull_status(pull) if pull else ""]))


def _engine_status(engine: EngineState) -> str:
    if engine.loading:
        return f"loading: {engine.stage}" if engine.stage else "starting the engine"
    if (reply := engine.reply) is not None:
        what = "waiting for the engine"
        if reply.tally.emitted:
            what = f"{reply.tally.emitted:,} tokens"
        elif reply.prefill is not None:
            what = f"reading the prompt {reply.prefill.done:,} / {reply.prefill.total:,}"
        return f"comparing: {what}" if engine.comparing else what
    if engine.ready is None:
        return "no pair is loaded · ^o chooses one" if engine.client.alive else "the engine is not running"
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
        return "nothing guessed yet" if is_wanted else "plain decoding", False
    if stats.speedup is None:
        return "gain not known yet", False
    if 1 / NOTICEABLE < (times := stats.speedup.value) < NOTICEABLE:
        return "as fast as plain decoding", False
    return (f"{times:.1f}x faster", True) if times > 1 else (f"no gain here: {times:.2f}x", False)


def pull_status(pull: PullProgress) -> str:
    if not pull.total_bytes:
        return f"fetching {pull.name}"
    return f"fetching {pull.name} {pull.done_bytes / pull.total_bytes:.0%} of {size_text(pull.total_bytes)}"


def footer(message: StoredMessage) -> str:
    """A reply's version, end and cost."""
    parts = [f"‹{message.version + 1}/{len(message.versions)}›"] if message.versions else []
    parts += [OUTCOMES[message.outcome]] if message.outcome in OUTCOMES else []
    if (cost := message.numbers) is not None:
        parts.append(f"{cost.tokens:,} tokens · {cost.seconds:.1f} s · {cost.tokens_per_second:.1f} tok/s")
        if cost.drafted:
            parts.append(f"{cost.acceptance_rate:.0%} accepted · {cost.mean_accepted_length:.1f} per pass")
        if cost.speedup is not None:
            parts.append(f"{cost.speedup:.2f}x plain")
        if cost.restored_tokens and cost.restore_seconds:
            parts.append(f"{cost.restored_tokens:,} tokens from the disk in {cost.restore_seconds:.1f} s")
    return " · ".join(parts)
