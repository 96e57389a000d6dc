"""With a mask, the text still follows the target's own distribution: every rule, every random decision enumerated."""

import numpy as np
import pytest

from localspec.sampler.chain import Chain, Distribution
from localspec.sampler.passes import Candidates
from tests.algorithm.enumeration import distance, distribution_of
from tests.algorithm.random_pairs import (
    OPEN,
    PROMPT,
    RULES,
    World,
    always,
    mixed_drafter,
    model_drafter,
    text_of,
)
from tests.algorithm.test_lossless import CHAINS

EXACT = 1e-7  # gathered logits are exponentiated in double, whole rows in single precision


class Lattice:
    """A made-up constraint: which symbols may follow depends on the whole text, and often it is only one."""

    whole_rows = True

    def __init__(self, world, *, gathers):
        self.world = world
        self.gathers = gathers

    def allowed(self, history):
        row = self.world.target(history)
        random = np.random.default_rng([9, self.world.seed, *history])
        possible = np.flatnonzero(np.isfinite(row))
        return np.sort(random.choice(possible, random.integers(1, len(possible) + 1), replace=False))

    def allows(self, token, history):
        return token in self.allowed(tuple(history))

    def permitted(self, row, history):
        ids = self.allowed(tuple(history))
        if isinstance(row, Candidates):
            kept = np.isin(row.ids, ids)
            return Candidates(row.ids[kept], row.logits[kept]) if kept.any() else row
        if not np.isfinite(row[ids]).any():
            return row  # the draft knows nothing that may come; whatever it draws will be rejected
        if self.gathers:
            return Candidates(ids, row[ids])
        masked = np.full(len(row), -np.inf, np.float32)
        masked[ids] = row[ids]
        return masked


def masked_distribution(world, sampling, constraint, length):
    """The distribution of the target's own masked text, by the product rule, masked without the code under test."""
    chain = Chain(sampling)
    found = {(): 1.0}
    for _ in range(length):
        longer = {}
        for text, probability in found.items():
            history = (*PROMPT, *text)
            row = world.target(history).copy()
            row[np.setdiff1d(np.arange(len(row)), constraint.allowed(history))] = -np.inf
            p = chain.distribution(row, history)
            for token, share in zip(p.ids.tolist(), p.probabilities.tolist(), strict=True):
                longer[(*text, token)] = probability * share
        found = longer
    return found


def error(rule, propose_by, *, seed=3, sampling=OPEN, gathers=True, length=3):
    world = World(seed, symbols=4)
    constraint = Lattice(world, gathers=gathers)
    chain = Chain(sampling, constraint)
    emitted = distribution_of(
        lambda noise: text_of(world, RULES[rule](chain, noise), propose_by(world), length)
    )
    return distance(emitted, masked_distribution(world, sampling, constraint, length))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("gathers", [True, False])
def test_masked_target_and_draft(rule, chain, gathers):
    def drafter(world):
        return model_drafter(world, always(2))

    assert error(rule, drafter, sampling=CHAINS[chain], gathers=gathers) < EXACT


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("pattern", ["01", "q0", "2q"])
def test_drafts_that_know_no_grammar(rule, pattern):
    assert error(rule, lambda world: mixed_drafter(world, pattern)) < EXACT


class MaskedLast(Chain):
    """Truncates first and masks what is left: other tokens remain, or none."""

    def distribution(self, row, history, *, drafts=False):
        kept = Chain(self.sampling).distribution(row, history, drafts=drafts)
        allowed = np.isin(kept.ids, self._constraint.allowed(tuple(history)))
        if not allowed.any():
            return super().distribution(row, history, drafts=drafts)
        weights = kept.probabilities[allowed]
        return Distribution(kept.ids[allowed], weights / weights.sum())


def test_a_mask_after_truncation_is_caught():
    sampling, rule = CHAINS["top-k"], RULES["block"]

    def shift(world):
        constraint = Lattice(world, gathers=True)
        chain, propose = MaskedLast(sampling, constraint), model_drafter(world, always(2))
        emitted = distribution_of(lambda noise: text_of(world, rule(chain, noise), propose, 3))
        return distance(emitted, masked_distribution(world, sampling, constraint, 3))

    assert max(shift(World(seed, symbols=4)) for seed in range(4)) > 1e-3
