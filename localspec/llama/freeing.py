"""Free each object of llama.cpp once, in the process that made it, and never while a thread uses it.

A child of fork() cannot use the models of its parent, because it lacks the threads of its parent.
"""

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable
from time import monotonic, sleep
from traceback import walk_stack
from typing import Any, Final

from localspec.stopping import ending

_TIMEOUT_SECONDS: Final = 1.0  # longest wait, at Python's exit, for threads that run a reply
_LOOK_SECONDS: Final = 0.005
# The packages whose code may use a model of llama.cpp in a thread of its own.
_USERS: Final = ("algorithm", "chat", "drafters", "embedding", "llama", "loading", "measure", "prompt")
_WATCHER: Final = "localspec.llama.watch"  # this module's thread never ends, but uses no model

_process = os.getpid()  # id of the process that loaded llama.cpp
_open: list[Any] = []  # finalizers, the oldest first; Python's exit calls the newest first


def free_with(owner: object, free: Callable[..., None], *given: object) -> Any:
    """Call `free(*given)` once: when Python frees `owner`, when Python exits, or when the result is called."""
    process = os.getpid()

    def here() -> None:
        if os.getpid() == process:
            free(*given)

    finalizer = weakref.finalize(owner, here)
    finalizer.atexit = False
    _open[:] = [*(each for each in _open if each.alive), finalizer]
    return finalizer


def computes_here() -> bool:  # False after fork(), because a child lacks OpenMP's threads
    return os.getpid() == _process


def _end() -> None:
    ending.ask()
    deadline = monotonic() + _TIMEOUT_SECONDS
    while (used := _in_use()) and monotonic() < deadline:
        sleep(_LOOK_SECONDS)
    for finalizer in () if used else reversed(_open):
        finalizer()


def _in_use() -> bool:
    """Return whether another thread is running code that may use llama.cpp."""
    own = threading.get_ident()
    others = [frame for thread, frame in sys._current_frames().items() if thread != own]
    names = (each.f_globals.get("__name__", "") for other in others for each, _ in walk_stack(other))
    users = tuple(f"localspec.{room}." for room in _USERS)
    return any(name.startswith(users) and name != _WATCHER for name in names)


atexit.register(_end)
