"""Verifiers and passes that are wrong in one place, for the time of a with statement."""

import random
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

from localspec.algorithm import judgement
from localspec.algorithm.noise import Keyed
from localspec.llama.shared import SharedContext


@contextmanager
def leaky_coins(leak):
    """A share of the coins that should fail succeed: block and rejection."""
    coin, chance = Keyed.coin, random.Random(1)

    def leaky(self, probability, position, start):
        return coin(self, probability, position, start) or chance.random() < leak

    with patch.object(Keyed, "coin", leaky):
        yield


@contextmanager
def leaky_comparison(leak):
    """A share of the tokens that differ from the target's are kept: greedy, compare and coupled."""
    chance = random.Random(1)

    def leaky(tokens, choose):
        for i, token in enumerate(tokens):
            choice = choose(i)
            if choice != token and chance.random() >= leak:
                return i, choice
        return len(tokens), choose(len(tokens))

    with patch.object(judgement, "compare", leaky):
        yield


@contextmanager
def exchanged_rows():
    """Two replies that share a pass get the rows of each other."""
    read = SharedContext.read

    def wrong(self, wanted, *options):
        found = read(self, wanted, *options)
        if len(found) == 2 and len(found[0].rows) == len(found[1].rows):
            return [replace(one, rows=other.rows) for one, other in zip(found, found[::-1], strict=True)]
        return found

    with patch.object(SharedContext, "read", wrong):
        yield
