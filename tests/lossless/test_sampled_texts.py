"""On the demo pair, 20,000 speculated texts against the exact distribution of plain sampling at temperature 0.8."""

from collections import Counter
from functools import cache

import numpy as np
import pytest

from localspec import demo
from localspec.algorithm.noise import Keyed
from localspec.algorithm.protocols import Proposal
from localspec.algorithm.verification import BlockRule, Coupled
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.sampler.chain import Chain
from localspec.sampler.sampling import Sampling

pytestmark = pytest.mark.nightly

DRAWS = 20_000
SAMPLING = Sampling(temperature=0.8)
LEAST_EXPECTED = 5.0  # rarer outcomes share one cell
ONE_IN_A_MILLION = 4.9  # standard errors
BEGINNINGS = ("Once upon a time there was a", "The name of the", "One day, a", "import", "I like")
BEGINNINGS += ('{"name": "',)


class Remembering(Chain):
    """A chain that shapes each row once: without penalties a distribution depends on its row alone."""

    def __init__(self, sampling):
        super().__init__(sampling)
        self.known = {}

    def distribution(self, row, history, *, drafts=False):
        if (id(row), drafts) not in self.known:
            self.known[id(row), drafts] = (row, super().distribution(row, history, drafts=drafts))
        return self.known[id(row), drafts][1]


@pytest.fixture(scope="module")
def rows():
    """Functions from a text to the target's and to the draft's row after it, each decoded once."""
    with Model(demo.target_path()) as target, Model(demo.draft_path()) as draft:
        contexts = [Context(model, length=256, threads=1, rows_max=1) for model in (target, draft)]

        def reader(context):
            @cache
            def row(text):
                context.rollback(0)
                (found,) = context.decode(text, rows=1).rows
                return np.array(found)

            return row

        target_row, draft_row = map(reader, contexts)
        prompts = [tuple(target.vocab.tokenize(text, parse_special=False)) for text in BEGINNINGS]
        chain = Chain(SAMPLING)
        # The beginning that leaves the model most open: a distribution with few outcomes tests little.
        yield max(prompts, key=lambda p: len(plain_distribution(chain, p, target_row))), target_row, draft_row


def speculated_pair(rule, prompt, target_row, draft_row):
    """The first two tokens, by cycles that draft as far, and how many of the drafted ones were kept."""
    text, kept = prompt, 0
    while len(text) < len(prompt) + 2:
        draws, now = [], text
        for _ in range(len(prompt) + 2 - len(text)):
            draws.append(rule.draw(draft_row(now), now, len(text)))
            now = (*now, draws[-1].token)
        proposal = Proposal(tuple(d.token for d in draws), tuple(d.q for d in draws))
        verdict = rule.verify(
            [target_row(now[: len(text) + i]) for i in range(len(draws) + 1)], proposal, text
        )
        text = (*now[: len(text) + verdict.accepted], verdict.next_token)
        kept += verdict.accepted
    return text[len(prompt) : len(prompt) + 2], kept


def plain_distribution(chain, prompt, target_row):
    first = chain.distribution(target_row(prompt), prompt)
    distribution = {}
    for one, share in zip(first.ids.tolist(), first.probabilities, strict=True):
        second = chain.distribution(target_row((*prompt, one)), (*prompt, one))
        for two, probability in zip(second.ids.tolist(), second.probabilities, strict=True):
            distribution[one, two] = share * probability
    return distribution


def standard_errors(counts, distribution, draws):
    """How far Pearson's statistic lies above its mean, in standard deviations, and the number of cells."""
    common = [
        outcome for outcome, probability in distribution.items() if draws * probability >= LEAST_EXPECTED
    ]
    seen = np.array([counts[outcome] for outcome in common] + [0.0])
    expected = np.array([draws * distribution[outcome] for outcome in common] + [0.0])
    seen[-1], expected[-1] = draws - seen.sum(), draws - expected.sum()
    if expected[-1] < LEAST_EXPECTED:
        seen, expected = seen[:-1], expected[:-1]
    statistic, degrees = ((seen - expected) ** 2 / expected).sum(), len(seen) - 1
    return (statistic - degrees) / np.sqrt(2 * degrees), len(seen)


@pytest.mark.parametrize("make_rule", [BlockRule, Coupled])
@pytest.mark.parametrize("likeness", [0.0, 0.5])
def test_speculated_texts_follow_the_distribution_of_plain_sampling(make_rule, likeness, rows):
    """With the demo's own draft, and with one that is halfway to the target, so that much is surely kept."""
    prompt, target_row, draft_row = rows
    chain = Remembering(SAMPLING)
    distribution = plain_distribution(chain, prompt, target_row)

    @cache
    def blended_row(text):
        return likeness * target_row(text) + (1.0 - likeness) * draft_row(text)

    kept = 0

    def text_under(seed):
        nonlocal kept
        text, accepted = speculated_pair(make_rule(chain, Keyed(seed)), prompt, target_row, blended_row)
        kept += accepted
        return text

    counts = Counter(text_under(seed) for seed in range(DRAWS))
    assert counts.keys() <= distribution.keys()
    excess, cells = standard_errors(counts, distribution, DRAWS)
    print(
        f"\n{make_rule.__name__}, likeness {likeness}: chi-square {excess:+.2f} sigma, {cells} cells, "
        f"{kept / DRAWS:.2f} of 2 tokens drafted and kept"
    )
    assert cells > 5
    assert excess < ONE_IN_A_MILLION
    if likeness:
        assert kept > DRAWS / 4


@pytest.mark.parametrize("temperature", [1.0, 1.3])
def test_tokens_of_whole_rows_follow_the_softmax_of_the_target(temperature, rows):
    """top-k, top-p and min-p off: the first token of 20,000 texts against float64 arithmetic on the row."""
    prompt, target_row, draft_row = rows
    chain = Remembering(Sampling(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0))
    shares = np.exp(target_row(prompt).astype(np.float64) / temperature)
    distribution = {(token,): share for token, share in enumerate((shares / shares.sum()).tolist())}
    counts = Counter(
        speculated_pair(BlockRule(chain, Keyed(seed)), prompt, target_row, draft_row)[0][:1]
        for seed in range(DRAWS)
    )
    excess, cells = standard_errors(counts, distribution, DRAWS)
    print(f"\nchi-square {excess:+.2f} sigma, {cells} cells")
    assert cells > 100
    assert excess < ONE_IN_A_MILLION
