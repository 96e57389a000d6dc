"""Reads a prompt into the target's cache: what it holds of it already is kept, the rest comes chunk by chunk."""

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter

from localspec.events import Prefill
from localspec.passes import Pass
from localspec.speculation.protocols import Decoder, Strategy


def rewind(target: Decoder, strategy: Strategy, prompt: Sequence[int], can_roll_back: bool) -> int:
    """Keep what cache and prompt have in common, the prompt's last token excepted; how much that is."""
    common = 0
    for cached, wanted in zip(target.tokens, prompt[:-1], strict=False):
        if cached != wanted:
            break
        common += 1
    keep = common if can_roll_back or common == target.length else 0
    target.rollback(keep)
    strategy.follow(Pass(0, prompt[:keep]), keep)
    return keep


def read(
    target: Decoder, strategy: Strategy, prompt: Sequence[int], cancelled: Callable[[], bool]
) -> Iterator[Prefill]:
    """Read what the cache lacks of all but the prompt's last token, until it is `cancelled`."""
    total = len(prompt) - 1 - target.length
    chunks, done, seconds = target.prefill(prompt[target.length : -1]), 0, 0.0
    while not cancelled():
        began = perf_counter()
        passed = next(chunks, None)
        if passed is None:
            break
        strategy.follow(passed, len(passed.tokens))
        done += len(passed.tokens)
        seconds += perf_counter() - began
        yield Prefill(done, total, seconds)
