"""Keeps Python's garbage collector from stopping the screen: a full collection takes longer than a key may."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

REST_SECONDS: Final = 20.0  # without a key or a reply: then nobody notices a full collection
_NEVER: Final = 1_000_000  # collections of the middle generation before a full one


@contextmanager
def only_small() -> Iterator[None]:
    """No full collection by itself: the small ones go on, and the app does the rest when nobody waits."""
    before = gc.get_threshold()
    gc.freeze()  # what was imported stays for good and need not be looked at again
    gc.set_threshold(before[0], before[1], _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
