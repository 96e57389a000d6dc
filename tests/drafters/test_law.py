"""What users run follows the target's law exactly: the loop, the arbiter, the stopper, lookup and the draft model.

All of it is the production code. Only the models are small enough, and the clock steady enough, that every random
decision of a reply can be taken every way.
"""

from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from localspec.algorithm.loop import speculate
from localspec.control.acceptance import AcceptanceModel, ChanceWeights
from localspec.control.company import Company
from localspec.control.cost_table import CostTable
from localspec.control.costs import RELIABLE, Costs, CostsByContext
from localspec.control.depth import DepthControl, Stopper
from localspec.drafters import model
from localspec.drafters.arbiter import Arbiter
from localspec.drafters.lookup import CELLS, LookupAcceptance, LookupCounts, LookupDrafter
from localspec.drafters.model import ModelDrafter
from localspec.events import Source
from localspec.sampler.chain import Chain
from localspec.sampler.passes import Pass
from tests.algorithm.enumeration import distance, law
from tests.algorithm.mutants import mutant
from tests.algorithm.random_pairs import OPEN, PROMPT, RULES, World, plain_law

EXACT, CAUGHT = 1e-12, 1e-3
TABLE = CostTable((1, 2, 9), (1.0, 1.3, 3.4), {"model": 0.1})


class Side:
    """One model of a world as a decoder; its time is what the table says."""

    capacity = 100

    def __init__(self, row, seconds):
        self.row, self.seconds = row, seconds
        self.tokens, self.busy_seconds = [], 0.0

    @property
    def length(self):
        return len(self.tokens)

    def decode(self, tokens, rows):
        self.busy_seconds += self.seconds(len(tokens))
        found = []
        for token in tokens:
            self.tokens.append(token)
            found.append(self.row(tuple(self.tokens)))
        hidden = np.array(found)
        return Pass(len(self.tokens) - len(tokens), tokens, found[-rows:], hidden)

    def rollback(self, keep):
        del self.tokens[keep:]

    rewind = rollback

    def checkpoint(self, *, lasting):
        pass


def never(token):
    return False


def reply_of(world, rule, strategy_of, prompt, length, is_end):
    """The tokens and cycles of a reply; `strategy_of` gets the world's draft model as a decoder."""
    target = Side(world.target, TABLE.verify)
    draft = Side(world.draft, lambda width: TABLE.run_seconds["model"])
    target.tokens += prompt[:-1]
    tokens = list(prompt)
    cycles = speculate(
        target,
        strategy_of(draft, rule, is_end),
        tokens,
        rule=rule,
        room=length,
        is_end=is_end,
        clock=lambda: target.busy_seconds + draft.busy_seconds,
    )
    seen = list(cycles)
    return tuple(tokens[len(prompt) :]), seen


def error(world, make_rule, strategy_of, length, *, prompt=PROMPT, is_end=never, watch=lambda cycle: None):
    """How far the law of the replies is from the target's own; `watch` sees every cycle of every reply."""
    chain = Chain(OPEN)

    def tokens_of_reply(noise):
        tokens, cycles = reply_of(world, make_rule(chain, noise), strategy_of, prompt, length, is_end)
        for cycle in cycles:
            watch(cycle)
        return tokens

    plain = {}
    for text, probability in plain_law(world, OPEN, length, prompt).items():
        ends = [i for i, token in enumerate(text, start=1) if is_end(token)]
        text = text[: ends[0]] if ends else text
        plain[text] = plain.get(text, 0.0) + probability
    return distance(law(tokens_of_reply), plain)


class Stopped:
    """Drafts while a stopper says so, with one and the same calibration in every cycle."""

    why_off = None

    def __init__(self, drafter, rule, rate, depths):
        self.drafter, self.rule, self.rate, self.depths = drafter, rule, rate, depths

    @property
    def busy_seconds(self):
        return self.drafter.busy_seconds

    def propose(self, tokens, room):
        stopper = Stopper(
            AcceptanceModel(),
            Costs(TABLE),
            lambda depth: 0.1 * depth,
            rate=self.rate,
            depths=tuple(depth for depth in self.depths if depth <= 3),
        )
        return self.drafter.propose(tokens, min(3, room), self.rule, stopper)

    def observe(self, batch, kept):
        self.drafter.observe(batch, kept)

    def learn(self, cycle):
        """The calibration does not change."""


def stopped(depths=(1, 2, 3)):
    return lambda decoder, rule, is_end: Stopped(ModelDrafter(decoder, is_end), rule, rate=1.4, depths=depths)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("end", [None, 1])
def test_proposals_that_the_stopper_ends(rule, end):
    """Whatever it has drawn by then, and also where the text ends."""
    lengths = set()
    for world in map(World, range(2)):
        found = error(
            world,
            RULES[rule],
            stopped(),
            4,
            is_end=lambda token: token == end,
            watch=lambda cycle: lengths.add(cycle.drafted),
        )
        assert found < EXACT
    assert len(lengths) > 2


@pytest.mark.parametrize("rule", RULES)
def test_proposals_that_may_end_only_at_some_depths(rule):
    for world in map(World, range(2)):
        assert error(world, RULES[rule], stopped(depths=(1, 3)), 4, is_end=never) < EXACT


TRAPS = {
    "asking about the token that was drawn": (
        "stopping.keeps(found.confidence, len(draws))",
        "stopping.keeps(found.q.of(found.token) if found.q else found.confidence, len(draws))",
    ),
    "leaving out an end-of-generation token": (
        "            draws.append(found)\n",
        "            if is_end(found.token):\n                break\n            draws.append(found)\n",
    ),
}


@pytest.mark.parametrize("rule", ["block", "rejection"])
@pytest.mark.parametrize("trap", TRAPS)
def test_traps_of_the_drafter_are_caught(rule, trap, monkeypatch):
    monkeypatch.setattr(model, "draw", mutant(model, TRAPS[trap]).draw)
    assert error(World(2), RULES[rule], stopped(), 4, is_end=lambda token: token == 1) > CAUGHT


EVERY_TRIGRAM = (0, 0, 0, 1, 0, 1, 1, 1, 0, 0)  # so that lookup always has a guess


def automatic(decoder, rule, is_end, *, table=TABLE, pads=False, confirmed=True):
    """What users get, as it is after some replies: it knows costs and acceptance, and stops by confidence.

    `confirmed`: whether these replies ran in this process.
    """
    places = CostsByContext([table])
    for _ in range(RELIABLE * confirmed):
        places.costs.learn_verify(2, table.verify(2))
    doubted = ChanceWeights((-3.0, 0.5, 1.5), (0.01, 0.01, 0.01))
    trust = LookupCounts((9.0,) * CELLS, (1.0,) * CELLS)
    drafters = LookupDrafter(LookupAcceptance(trust)), ModelDrafter(decoder, is_end, one_by_one=pads)
    contenders = [
        DepthControl(places, drafter, AcceptanceModel(doubted), (1, 2, 3), pads=pads) for drafter in drafters
    ]
    return Arbiter(Company(places), contenders, rule)


@pytest.mark.parametrize("rule", RULES)
def test_automatic_depth_with_stopping_and_lookup(rule):
    seen = set()
    for world in (World(seed, symbols=2) for seed in range(8)):
        found = error(
            world,
            RULES[rule],
            partial(automatic, confirmed=bool(world.seed % 2)),
            5,
            prompt=EVERY_TRIGRAM,
            watch=lambda cycle: seen.add((cycle.source, cycle.depth, cycle.drafted)),
        )
        assert found < EXACT
    assert {(Source.LOOKUP, 1, 1), (Source.LOOKUP, 2, 2)} < seen  # as much of a guess as promised most
    assert {(Source.MODEL, 3, 3), (Source.MODEL, 3, 1)} < seen  # to the full depth, and stopped before it
    assert (Source.PLAIN, 3, 0) in seen  # a drawn token was dropped


RECORDED = replace(TABLE, direct_extra_seconds=0.3, capture_extra_seconds=0.9)


@pytest.mark.parametrize("rule", RULES)
def test_verify_batches_that_are_filled_up_to_one_width(rule, monkeypatch):
    """Rows that fill a batch change nothing, and nobody is told of them."""
    decoded, told = Counter(), Counter()
    decode = Side.decode

    def watched(side, tokens, rows):
        decoded[len(tokens)] += 1
        return decode(side, tokens, rows)

    monkeypatch.setattr(Side, "decode", watched)
    for world in (World(seed, symbols=2) for seed in range(4)):
        found = error(
            world,
            RULES[rule],
            partial(automatic, table=RECORDED, pads=True),
            5,
            prompt=EVERY_TRIGRAM,
            watch=lambda cycle: told.update([(cycle.width, cycle.drafted)]),
        )
        assert found < EXACT
    assert all(width == drafted + 1 for width, drafted in told)
    assert decoded[4] > told[4, 3]  # some batches were filled up to this width
