"""Speculative decoding for GGUF models on your own machine.

    import localspec

    reply = localspec.run("What is speculative decoding?")
    print(reply.text, reply.stats.tokens_per_second)

Names are resolved when they are first used, so that importing localspec loads nothing heavy.
"""

TYPE_CHECKING = False  # of typing: this file imports nothing, as Ctrl-C in it would be a traceback
if TYPE_CHECKING:
    from localspec.api import Session, arun, astream, load, run, stream, unload
    from localspec.errors import LocalspecError
    from localspec.events import (
        Cycle,
        Finished,
        Notice,
        Piece,
        Prefill,
        Reply,
        Scores,
        Started,
        Stats,
        ToolCall,
    )
    from localspec.measure.compare import Comparison, compare

__version__ = "0.1.0"

HOMES = {
    **dict.fromkeys(("Session", "arun", "astream", "load", "run", "stream", "unload"), "localspec.api"),
    **dict.fromkeys(
        ("Cycle", "Finished", "Notice", "Piece", "Prefill", "Reply", "Scores", "Started", "ToolCall"),
        "localspec.events",
    ),
    "LocalspecError": "localspec.errors",
    "Comparison": "localspec.measure.compare",
    "compare": "localspec.measure.compare",
    "Stats": "localspec.events",
}

__all__ = [
    "Comparison",
    "Cycle",
    "Finished",
    "LocalspecError",
    "Notice",
    "Piece",
    "Prefill",
    "Reply",
    "Scores",
    "Session",
    "Started",
    "Stats",
    "ToolCall",
    "arun",
    "astream",
    "compare",
    "load",
    "run",
    "stream",
    "unload",
]


def __getattr__(name: str) -> object:
    if name not in HOMES:
        raise AttributeError(f"module 'localspec' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *HOMES})
