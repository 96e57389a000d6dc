"""The command line: `main` imports it where Ctrl-C is heeded, so this file imports nothing."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

CANCELLED = 130  # the exit code that a shell expects after Ctrl-C


def main(arguments: "Sequence[str] | None" = None) -> int:
    """Run one command; the exit code is 0, 1 after an error, 2 for wrong usage, 130 after Ctrl-C.

    `verify` also has one of its own for an alarm. Without arguments it is the program itself, with its command line.
    """
    try:
        import sys

        from localspec.cli.program import run

        return run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        return CANCELLED
    finally:
        if arguments is None:
            end_at_once_on_interrupt()


def end_at_once_on_interrupt() -> None:
    """What is left is to free memory: Ctrl-C in it would show where it was."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)
