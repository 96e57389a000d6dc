"""On real models coupled text differs from plain text only where rows of different batch widths allow it."""

import numpy as np
import pytest

from localspec.algorithm.loop import speculate
from localspec.algorithm.noise import gumbel
from localspec.algorithm.verification import make_rule
from localspec.drafters.arbiter import Fixed, Plain
from localspec.drafters.model import ModelDrafter
from localspec.measure.compare import width_gap
from localspec.sampler.passes import Pass
from localspec.sampler.sampling import Sampling

NEW_TOKENS = 40
SEEDS = range(3)
SAMPLING = Sampling(temperature=0.8)


class Recording:
    """A target that keeps a copy of the rows of its last decode."""

    def __init__(self, target):
        self.target = target
        self.rows = []

    def __getattr__(self, name):
        return getattr(self.target, name)

    def decode(self, tokens, rows):
        found = self.target.decode(tokens, rows)
        self.rows = [np.array(row) for row in found.rows]
        return found


def generate(target, strategy, rule, prompt, is_end):
    """The emitted tokens, and for each the row that it was chosen from."""
    target.rollback(0)
    strategy.observe(Pass(0, ()), 0)
    list(target.prefill(prompt[:-1]))
    recording, tokens, rows = Recording(target), list(prompt), []
    for cycle in speculate(recording, strategy, tokens, rule=rule, room=NEW_TOKENS, is_end=is_end):
        rows += recording.rows[: len(cycle.tokens)]
    return tokens[len(prompt) :], rows


def scores(row, history, seed):
    """log probability + noise of the tokens that the chain leaves, by token."""
    p = make_rule("coupled", SAMPLING, seed).chain.distribution(row, history)
    noisy = np.log(p.probabilities) + gumbel(seed, len(history), p.ids)
    return dict(zip(p.ids.tolist(), noisy.tolist(), strict=True))


@pytest.mark.parametrize("depth", [1, 4])
def test_coupled_text_differs_from_plain_only_at_near_ties_and_truncation_edges(pair, opened, depth):
    target, draft = opened
    vocab = target.model.vocab
    tallies = {"identical": 0, "near-tie": 0, "truncation edge": 0}
    for text in pair.prompts:
        prompt = vocab.tokenize(text, parse_special=False)
        gap = width_gap(target, vocab.tokenize(" ".join([text] * 5), parse_special=False)[:60])
        for seed in SEEDS:
            rule = make_rule("coupled", SAMPLING, seed)
            plain, plain_rows = generate(target, Plain(), rule, prompt, vocab.is_end)
            draft.rollback(0)
            drafter = ModelDrafter(draft, vocab.is_end)
            tokens, rows = generate(target, Fixed(drafter, depth, rule), rule, prompt, vocab.is_end)
            assert drafter.failure is None
            first = next((i for i, (a, b) in enumerate(zip(plain, tokens, strict=False)) if a != b), None)
            if first is None:
                assert len(plain) == len(tokens)
                tallies["identical"] += 1
                continue
            history = [*prompt, *plain[:first]]
            one, other = (scores(found[first], history, seed) for found in (plain_rows, rows))
            if one.keys() != other.keys():
                tallies["truncation edge"] += 1
                moved = np.abs(plain_rows[first] - rows[first]).max()
                assert moved <= 2 * gap, "a token crossed an edge that width alone cannot carry it over"
            else:
                tallies["near-tie"] += 1
                assert abs(one[plain[first]] - one[tokens[first]]) <= 2 * gap / SAMPLING.temperature
    print(f"\n{pair.name}, depth {depth}: {tallies}")
