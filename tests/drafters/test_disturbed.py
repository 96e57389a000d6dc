"""Costs that were measured while the machine was held up do not keep a good draft from drafting for ever."""

from dataclasses import replace

import pytest

from localspec.control.acceptance import AcceptanceModel
from localspec.control.costs import CostsByContext, CostTable
from localspec.control.depth import DepthControl
from tests.drafters.machine import Machine
from tests.drafters.test_depth import iid

WIDTHS = (*range(1, 10), 12, 16, 32)
TRUE = CostTable(
    WIDTHS,
    tuple(0.06 * (1 + 0.12 * (n - 1)) for n in WIDTHS),
    {"model": 0.006},
    prefill_seconds={"model": 0.0006},
)
DEEPEST = 12
PROCESSES, REPLIES, TOKENS, PROMPT = 3, 3, 64, 60


def dearer(factor, widths):
    seconds = zip(WIDTHS, TRUE.verify_seconds, strict=True)
    return replace(TRUE, verify_seconds=tuple(s * factor if n in widths else s for n, s in seconds))


def gain(tables, seed):
    """Times as fast as plain decoding in one process, and the costs that it stores."""
    places, acceptance, control = CostsByContext(tables), AcceptanceModel(), None
    seconds = plain = 0.0
    for reply in range(REPLIES):
        agrees = iid(0.85, seed + reply)
        machine = Machine(
            TRUE.verify,
            0.006,
            agrees,
            noise=0.06,
            seed=seed + reply,
            reading=0.0006,
            text=PROMPT,
            confidence=lambda position, agrees=agrees: 0.9 if agrees(position) else 0.5,
        )
        control = control or DepthControl(places.costs, machine, acceptance, DEEPEST)
        selection = machine.selection(None, DEEPEST, control, places)
        while machine.position < TOKENS:
            machine.step(selection)
        seconds, plain = seconds + machine.seconds, plain + machine.plain_seconds
    return plain / seconds, places.tables()


def last_gain(table):
    """The mean gain in the last of several processes, each with the costs of the one before."""
    total = 0.0
    for seed in (0, 100, 200, 300):
        found, tables = 0.0, (table,)
        for process in range(PROCESSES):
            found, tables = gain(tables, seed + 10 * process)
        total += found / 4
    return total


@pytest.mark.parametrize(
    "table",
    [
        replace(TRUE, prefill_seconds={"model": 0.045}),
        replace(TRUE, prefill_seconds={"model": 0.045}, run_seconds={"model": 0.06}),
        replace(TRUE, run_seconds={"model": 0.12}),
        dearer(5, [2]),
        dearer(3, WIDTHS[1:]),
        dearer(3, WIDTHS[2:]),
        dearer(3, [1]),
        dearer(0.3, [1]),
    ],
    ids=["reading", "reading and run", "run", "width 2", "drafts", "long drafts", "plain", "cheap plain"],
)
def test_a_wild_table_is_corrected(table):
    assert last_gain(table) > 0.85 * last_gain(TRUE) > 1.7
