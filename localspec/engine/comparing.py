"""Where two replies part."""

from collections.abc import Callable, Sequence

from localspec.engine.messages import Difference


def first_difference(
    drafted: Sequence[int], plain: Sequence[int], text_of: Callable[[int], str]
) -> Difference | None:
    """The first position at which two token sequences differ; None when they are equal."""
    position = next(
        (i for i, pair in enumerate(zip(drafted, plain, strict=False)) if pair[0] != pair[1]), None
    )
    if position is None and len(drafted) == len(plain):
        return None
    position = min(len(drafted), len(plain)) if position is None else position
    at = [text_of(tokens[position]) if position < len(tokens) else "" for tokens in (drafted, plain)]
    return Difference(position, at[0], at[1], logit_gap=None)
