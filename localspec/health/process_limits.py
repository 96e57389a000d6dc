"""Limits on a process that reads files nobody has vouched for; Windows has none of these."""

import contextlib
import os
import sys

LARGEST_FILE = 64 << 20  # bytes: the caches of GPU drivers are smaller

if sys.platform == "win32":

    def limit_this_process(*, largest_file: int | None = LARGEST_FILE) -> None:
        """Nothing: there are no such limits."""

else:
    import resource

    def limit_this_process(*, largest_file: int | None = LARGEST_FILE) -> None:
        """No core dump, no larger file, no more private memory than the machine has; lower limits stay.

        Private memory without address space: a GPU driver reserves more of that than any machine has.
        """
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        _lower(resource.RLIMIT_CORE, 0)
        if largest_file is not None:
            _lower(resource.RLIMIT_FSIZE, largest_file)
        _lower(resource.RLIMIT_DATA, memory)

    def _lower(kind: int, limit: int) -> None:
        _, hard = resource.getrlimit(kind)
        lowest = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        with contextlib.suppress(OSError, ValueError):  # a system may refuse to limit one of them
            resource.setrlimit(kind, (lowest, lowest))
