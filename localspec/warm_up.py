"""The first passes of a pair, at load: no reply then meets kernels that are not loaded, or costs nobody measured."""

from collections.abc import Sequence
from time import perf_counter

from localspec.algorithm.protocols import Drafter, Vocabulary
from localspec.drafters.model import FAILURES
from localspec.llama.context import Context
from localspec.pair_drafting import PairDrafting

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32)  # that verify batches mostly have
DRAFT_WIDTHS = (1, 2)
CPU_SECONDS = 0.1  # nothing is compiled there: a first pass takes 1.0 to 1.4 times as long as a later one
GPU_SECONDS = 3.0
CALIBRATION_SECONDS = 2.0  # once for a pair on a GPU: the costs are stored

PARAGRAPH = """\
The ferry left at ten past six, two hours late, with nineteen passengers and a dog. Mrs Okafor, who had kept the \
ticket office since 1987, counted them twice and wrote the number on the back of an envelope. "You will want the \
other harbour," she told the engineer, "the one behind the salt works; ours has been too shallow since the storm." \
He thanked her in three languages and asked what a room cost. Prices had gone up: 42.50 for a single, 61.00 with \
breakfast, and nothing at all if you could mend the pump. So he wrote a short program to find out how long that \
would take:

def hours(litres: float, rate: float = 3.2) -> float:
    return round(litres / rate / 60, 1)

for name, litres in {"cellar": 1200, "yard": 450}.items():
    print(f"{name}: {hours(litres)} h")
"""


def ordinary_tokens(vocabulary: Vocabulary) -> list[int]:
    """Tokens of a text of many kinds, to measure on: what a mixture of experts costs depends on them."""
    return list(vocabulary.tokenize(PARAGRAPH, parse_special=False))


def warm_up(target: Context, drafters: Sequence[Drafter], drafting: PairDrafting) -> None:
    """Decode batches of the common widths on the target and let drafters run their models; all end empty.

    On a GPU costs that nobody knows yet are then measured. Raises what the target's `decode` raises.
    """
    text = ordinary_tokens(target.model.vocab)
    warm(target, WIDTHS, text)
    for drafter in drafters:
        try:
            drafter.warm_up([text[:width] for width in DRAFT_WIDTHS])
        except FAILURES:
            return  # it meets the failure again and tells the user
    if target.model.gpu:
        drafting.calibrate(text, CALIBRATION_SECONDS, stop=lambda: False)


def warm(context: Context, widths: Sequence[int], text: Sequence[int]) -> None:
    began = perf_counter()
    for width in widths:
        tokens = text[: min(width, context.capacity)]
        context.decode(tokens, rows=min(len(tokens), context.rows_max))
        context.rollback(0)
        if perf_counter() - began > (GPU_SECONDS if context.model.gpu else CPU_SECONDS):
            return
