"""Reads a prompt into the caches: what they hold of it already is kept, the rest comes chunk by chunk."""

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter

from localspec.drafters.model import FAILURES
from localspec.events import Prefill
from localspec.speculation.protocols import Decoder


def rewind(decoder: Decoder, prompt: Sequence[int], can_roll_back: bool) -> int:
    """Keep what cache and prompt have in common, the prompt's last token excepted; how much that is."""
    common = 0
    for cached, wanted in zip(decoder.tokens, prompt[:-1], strict=False):
        if cached != wanted:
            break
        common += 1
    keep = common if can_roll_back or common == decoder.length else 0
    decoder.rollback(keep)
    return keep


def read(
    target: Decoder, draft: Decoder | None, prompt: Sequence[int], cancelled: Callable[[], bool]
) -> Iterator[Prefill]:
    """Read what the caches lack of all but the prompt's last token, until it is `cancelled`.

    A draft that fails is left where it is: its drafter meets the failure again and tells the user.
    """
    readers = [target, draft] if draft else [target]
    total = sum(len(prompt) - 1 - reader.length for reader in readers)
    done, seconds = 0, 0.0
    for reader in readers:
        start, chunks = done, reader.prefill(prompt[reader.length : -1])
        while not cancelled():
            began = perf_counter()
            try:
                count = next(chunks, None)
            except FAILURES:
                if reader is target:
                    raise
                return
            seconds += perf_counter() - began
            if count is None:
                break
            done = start + count
            yield Prefill(done, total, seconds)
