"""`python -m localspec.engine`: the engine process. It speaks only messages over stdin and stdout."""

import gc
import os
import signal
import sys
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, BinaryIO

from localspec.engine.server import Server
from localspec.health.trial import limit_this_process

if TYPE_CHECKING:
    from localspec.engine.requests import PairRequests


def take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """The two pipes to the client; file descriptor 1 becomes stderr, so that a native print cannot break a message."""
    sys.stdout.flush()
    source = os.fdopen(os.dup(0), "rb")
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return source, sink


def open_handler() -> "PairRequests":
    """What performs requests, imported in less time than usual."""
    gc.disable()  # imports make no garbage
    if spec := find_spec("llama_cpp"):  # not executed, as only its own Python API needs what it imports
        sys.modules["llama_cpp"] = module_from_spec(spec)
    from localspec.engine.requests import PairRequests

    gc.freeze()
    gc.enable()
    return PairRequests()


def main() -> None:
    limit_this_process(largest_file=None)  # caches may be large
    # Ctrl+C in the terminal is the client's business: it cancels by message.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Server(*take_pipes()).serve(open_handler)
    # The listener may still hold its pipe, which a regular shutdown of the interpreter would trip over.
    os._exit(0)


if __name__ == "__main__":
    main()
