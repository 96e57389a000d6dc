"""Sampled texts drafted by heads have the law of the target, by enumeration through the drafters of the product."""

import numpy as np
import pytest

from localspec.control.acceptance import AcceptanceModel
from localspec.control.company import Company
from localspec.control.cost_table import CostTable
from localspec.control.costs import CostsByContext
from localspec.control.depth import DepthControl
from localspec.drafters.arbiter import Arbiter, Fixed
from localspec.drafters.head import EAGLE3, MTP, Block, Chain, Steps
from localspec.sampler.passes import HiddenRows
from tests.algorithm.random_pairs import PROMPT, RULES, World
from tests.drafters.test_law import EXACT, error, never

TABLE = CostTable((1, 2, 9), (1.0, 1.1, 1.5), {"head": 0.1})
WANTS = HiddenRows(output=True)


class ToyHead:
    """A head that holds tokens by position, and guesses as the draft of a world does after them."""

    capacity, columns, most_rows, most_guesses = 100, 3, 8, 4

    def __init__(self, world, shift):
        self.world, self.shift, self.busy_seconds, self.held = world, shift, 0.0, {}

    def features(self, hidden):
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


class ToyChain(ToyHead):
    """Three prediction layers, each with rows of its own; those of the others stay where one reads anew."""

    def __init__(self, world):
        super().__init__(world, MTP.shift)
        self.layers = [{}, {}, {}]

    def choose(self, layer, position):
        self.held = self.layers[layer] = {p: t for p, t in self.layers[layer].items() if p < position}

    def cut(self, position):
        self.layers = [{p: t for p, t in rows.items() if p < position} for rows in self.layers]


class ToyBlock(ToyHead):
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
        return Block(ToyBlock(world, 0), WANTS, never)
    if kind == "chain":
        return Chain(ToyChain(world), WANTS, never, 3)
    layout = {"eagle3": EAGLE3, "mtp": MTP}[kind]
    return Steps(ToyHead(world, layout.shift), WANTS, never, layout)


@pytest.mark.parametrize("kind", ["eagle3", "mtp", "chain", "block"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("depth", [3, None])
def test_the_sampled_law_is_the_targets(kind, rule, depth):
    drafted = []

    def strategy_of(world):
        def made(draft, rule, is_end):
            drafter = drafter_of(kind, world)
            if depth:
                return Fixed(drafter, depth, rule)
            places = CostsByContext([TABLE])
            control = DepthControl(places, drafter, AcceptanceModel(), (1, 2, 3))
            return Arbiter(Company(places), [control], rule)

        return made

    world = World(3)
    assert error(world, RULES[rule], strategy_of(world), 4, watch=lambda c: drafted.append(c.drafted)) < EXACT
    assert max(drafted) > 1
