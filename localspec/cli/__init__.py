"""The command line: `main` imports it while it handles Ctrl-C, so this file imports nothing."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

CANCELLED = 130  # the exit code that a shell expects after Ctrl-C


def main(arguments: "Sequence[str] | None" = None) -> int:
    """Run one command; the exit code is 0, 1 after an error, 2 for wrong usage, 130 after Ctrl-C.

    `verify` also has one of its own for an alarm. Without arguments it is the program itself, with its command line.
    """
    try:
        if arguments is None:
            return _program()
        from localspec.engine.spawn import start_early

        start_early(arguments)
        from localspec.cli.program import run

        return run(arguments)
    except KeyboardInterrupt:
        return CANCELLED


def _program() -> int:
    """`main`, where nothing else runs in this process: Ctrl-C ends it at once before its command and after it."""
    import os
    import signal
    import sys

    # A job in the background ignores it.
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeded:
        # Python imports with callbacks of its own, in which an exception would be lost.
        signal.signal(signal.SIGINT, lambda *_: os._exit(CANCELLED))
    from localspec.engine.spawn import start_early

    start_early(sys.argv[1:])  # before the imports of the command line, which take as long as some of its own
    from localspec.cli.program import run

    if heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return run(sys.argv[1:])
    finally:
        if heeded:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
