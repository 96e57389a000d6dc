"""Replies follow the target's distribution exactly: loop, selection, stopper, lookup and draft model.

All of it is the production code. Only the models are small enough, and the clock steady enough, that every random
decision of a reply can be taken every way.
"""

from functools import partial
from threading import Condition

import numpy as np
import pytest

from localspec.algorithm.loop import speculate
from localspec.control.acceptance import AcceptanceModel, ChanceWeights
from localspec.control.concurrent import ConcurrentReplies
from localspec.control.costs import Costs, CostsByContext, CostTable
from localspec.control.depth import DepthControl, Stopper
from localspec.control.timing import SEVERAL
from localspec.drafters import model
from localspec.drafters.copies import BUCKETS, CopyChances, CopyCounts, CopyDrafter, CopyKind
from localspec.drafters.head import EAGLE3, MTP, BlockDrafter, ChainDrafter, Steps
from localspec.drafters.model import ModelDrafter
from localspec.drafters.selection import DrafterSelection, Fixed
from localspec.events import Source
from localspec.sampler.chain import Chain
from localspec.sampler.passes import Candidates, ForwardPass, HiddenRows
from tests.algorithm.enumeration import distance, distribution_of, mutant
from tests.algorithm.exact_models import never
from tests.algorithm.random_pairs import OPEN, PROMPT, RULES, World, plain_distribution

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
        hidden = np.array([row.logits if isinstance(row, Candidates) else row for row in found])
        return ForwardPass(len(self.tokens) - len(tokens), tokens, found[-rows:], hidden)

    def rollback(self, keep):
        del self.tokens[keep:]

    rewind = rollback

    def checkpoint(self, *, lasting):
        pass


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
    """How far the distribution of the replies is from the target's own; `watch` sees every cycle of every reply."""
    chain = Chain(OPEN)

    def tokens_of_reply(noise):
        tokens, cycles = reply_of(world, make_rule(chain, noise), strategy_of, prompt, length, is_end)
        for cycle in cycles:
            watch(cycle)
        return tokens

    plain = {}
    for text, probability in plain_distribution(world, OPEN, length, prompt).items():
        ends = [i for i, token in enumerate(text, start=1) if is_end(token)]
        text = text[: ends[0]] if ends else text
        plain[text] = plain.get(text, 0.0) + probability
    return distance(distribution_of(tokens_of_reply), plain)


class Stopped:
    """Drafts while a stopper says so, with one and the same calibration in every cycle."""

    why_off = None

    def __init__(self, drafter, rule, rate):
        self.drafter, self.rule, self.rate = drafter, rule, rate

    @property
    def busy_seconds(self):
        return self.drafter.busy_seconds

    def propose(self, tokens, room):
        stopper = Stopper(AcceptanceModel(), Costs(TABLE).verify, lambda depth: 0.1 * depth, self.rate, 3)
        return self.drafter.propose(tokens, min(3, room), self.rule, stopper)

    def observe(self, batch, kept):
        self.drafter.observe(batch, kept)

    def learn(self, cycle):
        """The calibration does not change."""


def stopped(decoder, rule, is_end):
    return Stopped(ModelDrafter(decoder, is_end), rule, rate=1.4)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("end", [None, 1])
def test_proposals_that_the_stopper_ends(rule, end):
    """Whatever it has drawn by then, and also where the text ends."""
    lengths = set()
    for world in (World(seed, symbols=2) for seed in range(2)):
        found = error(
            world,
            RULES[rule],
            stopped,
            4,
            is_end=lambda token: token == end,
            watch=lambda cycle: lengths.add(cycle.drafted),
        )
        assert found < EXACT
    assert len(lengths) > 2


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
    assert error(World(2), RULES[rule], stopped, 4, is_end=lambda token: token == 1) > CAUGHT


def selection_of(drafter, rule, table):
    """Automatic depth up to 3 with one drafter, from a cold start."""
    places = CostsByContext([table])
    control = DepthControl(places.costs, drafter, AcceptanceModel(), 3)
    return DrafterSelection(ConcurrentReplies(places), [control], rule)


EVERY_TRIGRAM = (0, 0, 0, 1, 0, 1, 1, 1, 0, 0)  # so that lookup always has a guess


def automatic(decoder, rule, is_end, *, confirmed=True):
    """What users get, as it is after some replies: it knows costs and acceptance, and stops by confidence.

    `confirmed`: whether these replies ran in this process.
    """
    places = CostsByContext([TABLE])
    for _ in range(SEVERAL * confirmed):
        places.costs.learn_verify(2, TABLE.verify(2))
    doubted = ChanceWeights((-3.0, 0.5, 1.5), (0.01, 0.01, 0.01))
    cells = BUCKETS * len(CopyKind)
    counts = CopyCounts((90.0,) * cells, (10.0,) * cells)
    drafters = CopyDrafter(CopyChances(counts)), ModelDrafter(decoder, is_end)
    candidates = [DepthControl(places.costs, drafter, AcceptanceModel(doubted), 3) for drafter in drafters]
    return DrafterSelection(ConcurrentReplies(places), candidates, rule)


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


HEAD_COSTS = CostTable((1, 2, 9), (1.0, 1.1, 1.5), {"head": 0.1})
WANTS = HiddenRows(output=True)


class ExactHead:
    """A head that holds tokens by position, and guesses as the draft of a world does after them."""

    capacity, columns, most_rows, most_draft_tokens = 100, 3, 8, 4
    calling = Condition()

    def __init__(self, world, shift):
        self.world, self.shift, self.busy_seconds, self.held = world, shift, 0.0, {}

    def features(self, hidden, position):
        return np.array(hidden, dtype=np.float32)

    def read(self, *rows):
        self.predict(*rows)

    def predict(self, tokens, features, position):
        assert not self.held or position == max(self.held) + 1, "no gap and nothing twice"
        assert len(tokens) == len(features)
        self.busy_seconds += 0.0001
        self.held.update(enumerate(tokens, start=position))
        end = max(self.held) + 1 - self.shift
        text = [*PROMPT[: min(self.held) + 1 - self.shift], *(self.held[p] for p in sorted(self.held))]
        assert len(text) == end + 1
        return self.world.draft(tuple(text)), np.zeros(self.columns, np.float32)

    def cut(self, position):
        self.held = {p: token for p, token in self.held.items() if p < position}


class ExactChain(ExactHead):
    """Three prediction layers, each with rows of its own; those of the others stay where one reads anew."""

    layer = 0

    def __init__(self, world):
        super().__init__(world, MTP.is_shifted)
        self.layers = [{}, {}, {}]

    def predict(self, tokens, features, position):
        rows = self.layers[self.layer].items()
        self.held = self.layers[self.layer] = {p: token for p, token in rows if p < position}
        return super().predict(tokens, features, position)

    def cut(self, position):
        self.layers = [{p: t for p, t in rows.items() if p < position} for rows in self.layers]


class ExactBlock(ExactHead):
    """A head whose guesses of a block know the text and their place, and not one another."""

    def read(self, hidden, position):
        assert not self.held or position == max(self.held) + 1, "no gap and nothing twice"
        self.held |= dict.fromkeys(range(position, position + len(hidden)), 0)

    def guess(self, token, count, position):
        assert position == max(self.held) + 1
        self.busy_seconds += 0.0001
        return lambda place, before: self.world.draft((*PROMPT, *(token,) * place))


def drafter_of(kind, world):
    if kind == "block":
        return BlockDrafter(ExactBlock(world, 0), WANTS, never)
    if kind == "chain":
        return ChainDrafter(ExactChain(world), WANTS, never, 3)
    layout = {"eagle3": EAGLE3, "mtp": MTP}[kind]
    return Steps(ExactHead(world, layout.is_shifted), WANTS, never, layout)


@pytest.mark.parametrize(
    ("kind", "depth"), [("eagle3", 3), ("mtp", None), ("chain", 3), ("chain", None), ("block", None)]
)
@pytest.mark.parametrize("rule", RULES)
def test_the_sampled_distribution_is_the_targets(kind, rule, depth):
    drafted = []

    def strategy_of(world):
        def made(draft, rule, is_end):
            drafter = drafter_of(kind, world)
            return Fixed(drafter, depth, rule) if depth else selection_of(drafter, rule, HEAD_COSTS)

        return made

    world = World(3)
    assert error(world, RULES[rule], strategy_of(world), 4, watch=lambda c: drafted.append(c.drafted)) < EXACT
    assert max(drafted) > 1
