"""The texts around the conversation and under replies."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final

from localspec.conversations.conversations import StoredMessage
from localspec.display import counted, size_text
from localspec.events import LEAST_JUDGED, NOTICEABLE
from localspec.models.registry import DEMO

from .state.engine import EngineState, PullProgress, ReplyState


def gauge(value: float, width: int) -> str:
    """Return a value from 0 to 1 as a bar of `width` cells."""
    full, half = divmod(round(min(1.0, max(0.0, value)) * width * 2), 2)
    return ("━" * full + "╸" * half).ljust(width)


def time_split(seconds: Sequence[float], width: int) -> list[tuple[str, str]]:
    total, styles = sum(seconds) or 1.0, ("$warning", "$primary", "$secondary")
    ends = [round(width * end / total) for end in accumulate(seconds, initial=0.0)]
    return [("━" * (end - start), style) for (start, end), style in zip(pairwise(ends), styles, strict=True)]


OUTCOMES: Final = {
    "cancelled": "stopped",
    "length": "cut at the limit, /continue resumes",
    "repetition": "ended in a loop, /continue resumes",
    "died": "the engine crashed here",
    "failed": "ended by an error",
    "unsaved": "NOT SAVED",
}


def title(engine: EngineState, *, stored: bool = True) -> str:
    settings = engine.settings
    drafting = ""
    if engine.ready:
        drafting = f"drafted by {engine.ready.draft}" if engine.ready.draft else "no draft model"
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
    return "   ".join(filter(None, [_engine_status(engine), pull_status(pull) if pull else ""]))


def _engine_status(engine: EngineState) -> str:
    if engine.loading:
        return f"loading: {engine.stage}" if engine.stage else "starting the engine"
    if (reply := engine.reply) is not None:
        what = "waiting for the engine"
        if reply.tally.sums.emitted:
            what = counted(reply.tally.sums.emitted, "token")
        elif reply.prefill is not None:
            what = f"reading the prompt: {reply.prefill.done:,} of {reply.prefill.total:,} tokens"
            if count := reply.prefill.image_tokens:
                what = f"encoding an image of {count:,} tokens"
        return f"comparing{' the texts' if reply.final else f': {what}'}" if engine.comparing else what
    if engine.ready is None:
        return "no pair is loaded · /pair chooses one" if engine.client.alive else "the engine is not running"
    return "" if engine.recent else f"ready in {engine.ready.seconds:.1f} s"


def gain(engine: EngineState, reply: ReplyState) -> tuple[str, bool]:
    """Return a text about drafting's gain in a reply, and whether drafting made the reply faster."""
    stats = reply.stats
    if engine.pair_name == DEMO and stats.drafted:
        return f"{stats.mean_accepted_length:.1f} tokens per pass, demo pair", True
    if reply.is_off and not (stats.speedup and stats.speedup.value >= NOTICEABLE):
        is_judged = stats.emitted >= LEAST_JUDGED
        return f"{'no gain here: ' * is_judged}drafting is off", False
    if not stats.drafted:
        is_wanted = engine.settings.get("speculate", True) and not engine.comparing
        return "nothing drafted" if is_wanted else "plain decoding", False
    if stats.speedup is None:
        why = "too short to know the gain" if stats.emitted < LEAST_JUDGED else "gain not measured"
        return "gain not known yet" if reply.final is None else why, False
    return times_text(stats.speedup.value), stats.speedup.value >= NOTICEABLE


def times_text(times: float) -> str:
    if 1 / NOTICEABLE < times < NOTICEABLE:
        return "as fast as plain decoding"
    return f"{times:.{2 if times < 1.05 else 1}f}x faster" if times > 1 else f"no gain here: {times:.2f}x"


def acceptance_text(accepted: int, drafted: int) -> str:
    if drafted >= 10:
        return f"acceptance {accepted / drafted:.0%}"
    return f"{accepted} of {counted(drafted, 'draft token')} accepted"


def pull_status(pull: PullProgress) -> str:
    total = pull.total_bytes
    share = f" {pull.done_bytes / total:.0%} of {size_text(total)}" if total else ""
    return f"downloading {pull.name}{share}"


def footer(message: StoredMessage) -> str:
    parts = [f"‹{message.version + 1}/{len(message.versions)}›"] if message.versions else []
    parts += [OUTCOMES[message.outcome]] if message.outcome in OUTCOMES else []
    if (stats := message.stats) and stats.emitted:
        parts += [
            counted(stats.emitted, "token"),
            f"{stats.decode_seconds:.1f} s",
            f"{stats.tokens_per_second:.1f} tok/s",
        ]
        if stats.drafted:
            parts.append(acceptance_text(stats.accepted, stats.drafted))
            parts.append(f"{stats.mean_accepted_length:.1f} tokens per pass")
            if stats.speedup:
                parts.append(times_text(stats.speedup.value))
        parts += ["thinking cut"] * stats.thinking_cut
        if stats.restored_tokens and stats.restore_seconds:
            restored = counted(stats.restored_tokens, "token")
            parts.append(f"{restored} from the disk in {stats.restore_seconds:.1f} s")
        parts += [f"{counted(stats.read_ahead_tokens, 'token')} read ahead"] * bool(stats.read_ahead_tokens)
    return " · ".join(parts)
