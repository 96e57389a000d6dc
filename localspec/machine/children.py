"""Child processes: their environment, limits and exit codes."""

import os
import signal
import sys
from contextlib import suppress

SECRET_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "LOCALSPEC_API_KEY")
LARGEST_FILE = 64 << 20  # maximum bytes of a file that a child writes; GPU drivers cache smaller files
_CRASHED_ON_WINDOWS = 0xC0000000  # exit codes from here on are the NTSTATUS of a crash


def environment_of_child(**more: str) -> dict[str, str]:
    """Return the environment for a child process, without API keys and access tokens."""
    return {name: value for name, value in os.environ.items() if name not in SECRET_VARIABLES} | more


def end_with_stdin() -> None:
    """Exit when stdin closes. Use os.read, because a thread that waits in sys.stdin would block a regular exit."""
    while os.read(0, 1024):
        pass
    os._exit(1)


def died_by_signal(exit_code: int | None) -> bool:
    return exit_code is not None and (exit_code < 0 or exit_code >= _CRASHED_ON_WINDOWS)


def describe_exit(exit_code: int) -> str:
    """Return an exit code in words; on POSIX a negative code is the number of a signal."""
    if exit_code >= _CRASHED_ON_WINDOWS:
        return f"exception {exit_code:#x}"
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"
    return f"{name}, perhaps for lack of memory" if name == "SIGKILL" else name


def limit_this_process(*, largest_file: int | None = LARGEST_FILE) -> None:
    """Forbid core dumps, files above `largest_file` bytes, and more private memory than the machine has.

    Limits that are already lower stay. Address space is not limited, because GPU drivers need a lot of it.
    On Windows, do nothing.
    """
    if sys.platform == "win32":
        return
    import resource

    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: largest_file,
        resource.RLIMIT_DATA: os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }
    for kind, limit in limits.items():
        _, hard = resource.getrlimit(kind)
        if limit is not None:
            lowest = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            with suppress(OSError, ValueError):  # a system may refuse one of these limits
                resource.setrlimit(kind, (lowest, lowest))
