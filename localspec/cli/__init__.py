"""The command line: `main` imports it while it handles Ctrl-C, so this file imports nothing."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

CANCELLED = 130  # the exit code that a shell expects after Ctrl-C
PROOF_SECONDS = 600.0  # of all parts of a page of `doctor --prove`


def main(arguments: "Sequence[str] | None" = None) -> int:
    """Run one command; the exit code is 0, 1 after an error, 2 for wrong usage, 130 after Ctrl-C.

    `verify` also has one of its own for an alarm. Without arguments it is the program itself, with its command line.
    """
    try:
        import os
        import signal
        import sys

        # The program itself ends at once on Ctrl-C before its command and after it; a job in the background ignores it.
        ends = arguments is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if ends:  # not by an exception, which the callbacks of Python's imports would lose
            signal.signal(signal.SIGINT, lambda *_: os._exit(CANCELLED))
        from localspec.engine.spawn import start_early

        arguments = sys.argv[1:] if arguments is None else arguments
        start_early(arguments)  # its imports run beside those of the command line
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
