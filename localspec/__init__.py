"""Speculative decoding for GGUF models on your own machine.

    import localspec

    reply = localspec.run("What is speculative decoding?")
    print(reply)
    print(reply.stats.tokens_per_second)

run, stream      answer a prompt; the pair stays loaded until unload()
arun, astream    `run` and `stream` for asyncio
load             load a pair as a Session, for conversations
compare          answer one prompt with and without drafting
embed, rerank    turn texts into vectors; score documents for a query
LocalspecError   the base of all errors; its `hint` says what to do (all are in localspec.errors)

help(localspec.run) and help(localspec.load) list the options.
"""

# Import nothing here, not even typing, because Ctrl-C during an import would print a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from localspec.api import Infill, Session, arun, astream, load, run, stream, unload
    from localspec.embedding.model import embed, rerank
    from localspec.errors import BadSetting, LocalspecError, UnknownPair
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
    **dict.fromkeys(("embed", "rerank"), "localspec.embedding.model"),
    **dict.fromkeys(("BadSetting", "LocalspecError", "UnknownPair"), "localspec.errors"),
    "Infill": "localspec.api",
    "Comparison": "localspec.measure.compare",
    "compare": "localspec.measure.compare",
    "Stats": "localspec.events",
}

__all__ = [
    "BadSetting",
    "Comparison",
    "Cycle",
    "Finished",
    "Infill",
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
    "UnknownPair",
    "arun",
    "astream",
    "compare",
    "embed",
    "load",
    "rerank",
    "run",
    "stream",
    "unload",
]


def __getattr__(name: str) -> object:  # imports names late, so that `import localspec` is fast
    if name not in HOMES:
        raise AttributeError(f"module 'localspec' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *HOMES})
