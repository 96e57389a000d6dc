"""Reads a prompt into the target's cache: what it holds of it already is kept, the rest comes chunk by chunk."""

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter

from localspec.events import Prefill
from localspec.passes import Pass
from localspec.speculation.protocols import Decoder, Strategy


def rewind(target: Decoder, strategy: Strategy, prompt: Sequence[int]) -> int:
    """Keep what cache and prompt have in common, the prompt's last token excepted; how much that is.

    It is less where the cache cannot step back so far.
    """
    common = 0
    for cached, wanted in zip(target.tokens, prompt[:-1], strict=False):
        if cached != wanted:
            break
        common += 1
    keep = target.rewind(common)
    strategy.follow(Pass(0, prompt[:keep]), keep)
    return keep


def read(
    target: Decoder, strategy: Strategy, prompt: Sequence[int], opening: int, cancelled: Callable[[], bool]
) -> Iterator[Prefill]:
    """Read what the cache lacks of all but the prompt's last token, until it is `cancelled`.

    A checkpoint is taken before `opening`, the position where the prompt opens the reply, if it is needed.
    """
    total, done, seconds = len(prompt) - 1 - target.length, 0, 0.0
    passes = _passes(target, prompt, min(opening, len(prompt) - 1))
    while not cancelled():
        began = perf_counter()
        passed = next(passes, None)
        if passed is None:
            break
        strategy.follow(passed, len(passed.tokens))
        done += len(passed.tokens)
        seconds += perf_counter() - began
        yield Prefill(done, total, seconds)


def _passes(target: Decoder, prompt: Sequence[int], opening: int) -> Iterator[Pass]:
    if target.needs_checkpoints and target.length < opening:
        yield from target.prefill(prompt[target.length : opening])
        target.checkpoint(lasting=True)
    yield from target.prefill(prompt[target.length : -1])
