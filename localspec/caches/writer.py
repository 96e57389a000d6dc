"""Writes beside everything else, one after the other; the end of the program waits for them."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

_disk = ThreadPoolExecutor(1, "caches")
_waiting: set[Future[object]] = set()


def later(work: Callable[[], object]) -> None:
    """Perform this after what was added before; at once where Python ends and takes no work any more."""
    try:
        write = _disk.submit(work)
    except RuntimeError:
        work()
        return
    _waiting.add(write)
    write.add_done_callback(_waiting.discard)


def writing() -> bool:
    """Whether something is on its way to the disk."""
    return bool(_waiting)


def finish(seconds: float = 30.0) -> None:
    """Wait that long for what is being written."""
    wait(_waiting.copy(), seconds)
