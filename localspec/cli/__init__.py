"""The command line. No module is imported at the top, so that `main` handles Ctrl-C during imports."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

CANCELLED = 130  # the exit code that a shell expects after Ctrl-C


def main(arguments: "Sequence[str] | None" = None) -> int:
    """Run one command and return the exit code: 0, 1 for an error, 2 for wrong usage, 130 after Ctrl-C.

    `verify` returns 3 if drafting changes the text. Without `arguments` the command is read from sys.argv.
    """
    try:
        import os
        import signal
        import sys

        # Before and after the command, Ctrl-C ends the program at once, except in a background job.
        ends = arguments is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if ends:  # no KeyboardInterrupt: a callback of Python's imports would lose it
            signal.signal(signal.SIGINT, lambda *_: os._exit(CANCELLED))
        from localspec.engine.spawn import start_early

        arguments = sys.argv[1:] if arguments is None else arguments
        start_early(arguments)  # start the engine process now, so that both processes import at the same time
        from localspec.cli.program import run

        if ends:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return run(arguments)
        finally:
            if ends:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
    except KeyboardInterrupt:
        return CANCELLED
