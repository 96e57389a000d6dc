"""What the lines around the conversation say, worked out from the state of the engine. Pure."""

from localspec.engine.messages import PullProgress
from localspec.models.units import size_text

from .conductor import Conductor
from .live_turn import LiveTurn
from .widgets.meter import Reading


def title(conductor: Conductor, *, stored: bool = True) -> str:
    """Pair, drafting and temperature, and whether nothing of the chat is kept."""
    settings = conductor.settings
    parts = ["" if stored else "not stored", conductor.pair_name or "no pair", drafting(conductor)]
    if settings.speculate and settings.depth not in (None, "auto"):
        parts.append(f"depth {settings.depth}")
    if settings.temperature is not None:
        parts.append(f"T {settings.temperature:g}")
    if settings.seed is not None:
        parts.append(f"seed {settings.seed}")
    return " · ".join(part for part in parts if part)


def drafting(conductor: Conductor) -> str:
    """Who drafts; "" while nothing is loaded that could."""
    if not conductor.settings.speculate or conductor.settings.depth == 0:
        return "draft off"
    if conductor.ready is None:
        return ""
    return "draft on" if conductor.ready.draft else "lookup"


def status(conductor: Conductor, pull: PullProgress | None) -> str:
    """What goes on, in one line; "" when nothing does."""
    parts = [_engine_status(conductor)]
    if pull is not None:
        parts.append(pull_status(pull))
    return "   ".join(part for part in parts if part)


def _engine_status(conductor: Conductor) -> str:
    if conductor.loading:
        return f"loading: {conductor.stage}" if conductor.stage else "starting the engine"
    turn = conductor.turn
    if turn is not None:
        return _turn_status(turn, conductor.comparing)
    if conductor.ready is None:
        return "no pair is loaded · ^o chooses one" if conductor.engine.alive else "the engine is not running"
    return advice(conductor)


def _turn_status(turn: LiveTurn, comparing: bool) -> str:
    what = "comparing: " if comparing else ""
    if turn.tally.emitted:
        return f"{what}{turn.tally.emitted:,} tokens"
    if turn.prefill is not None:
        return f"{what}reading the prompt {turn.prefill.done:,} / {turn.prefill.total:,}"
    return f"{what}waiting for the engine"


def advice(conductor: Conductor) -> str:
    """One sentence when drafting did not pay in the last reply; else how long loading took, until there is one."""
    turn, ready = conductor.last_turn, conductor.ready
    if turn is None:
        return f"ready in {ready.seconds:.1f} s" if ready else ""
    stats = turn.stats
    if turn.is_off:
        return "drafting is off: plain decoding is faster here"
    if stats.drafted and stats.speedup and stats.speedup.high < 1:
        return "plain decoding is faster here; try /depth 2 or /draft off"
    if stats.drafted and stats.draft_seconds > 0.4 * stats.decode_seconds:
        return "the draft model takes a large part of the time; try a smaller /depth"
    return ""


def pull_status(pull: PullProgress) -> str:
    if not pull.total_bytes:
        return f"fetching {pull.name}"
    return f"fetching {pull.name} {pull.done_bytes / pull.total_bytes:.0%} of {size_text(pull.total_bytes)}"


def reading(conductor: Conductor, turn: LiveTurn | None) -> Reading:
    """What the meter shows of a reply."""
    if turn is None:
        return Reading()
    stats = turn.stats
    speedup = stats.speedup.value if stats.speedup and stats.drafted else None
    return Reading(
        speed_now=turn.speed_now if conductor.turn is turn else stats.tokens_per_second,
        speed_reply=stats.tokens_per_second,
        best_speed=conductor.best_speed,
        plain_speed=conductor.plain_speed,
        acceptance=turn.acceptance,
        acceptance_rate=stats.acceptance_rate,
        depth=turn.depth,
        drafted=stats.drafted,
        seconds=(stats.draft_seconds, stats.verify_seconds, stats.other_seconds),
        speedup=speedup,
        saved_seconds=stats.saved_seconds if speedup else None,
        off=turn.is_off,
    )
