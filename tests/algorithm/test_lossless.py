"""The distribution of the emitted text is the target's own, exactly: every rule, by enumerating every random decision.

The rules under test are the production classes, driven through `draw` and `verify` cycle after cycle.
The traps are the same code with one line changed, and each must be caught by the same comparison.
"""

from dataclasses import dataclass, replace

import pytest

from localspec.algorithm import judgement, verification
from localspec.algorithm.verification import BlockRule
from localspec.sampler.chain import Chain
from localspec.sampler.passes import Candidates
from localspec.sampler.sampling import Sampling
from tests.algorithm.enumeration import Forks, OneStream, PositionOnly, distance, distribution_of, mutant
from tests.algorithm.random_pairs import (
    OPEN,
    PROMPT,
    RULES,
    World,
    always,
    certain_drafter,
    mixed_drafter,
    model_drafter,
    plain_distribution,
    proposal_of,
    rejection,
    text_of,
)

EXACT = 1e-12
CAUGHT = (
    1e-3  # what a trap must move the distribution by; the weakest of these moves it by twenty times as much
)


def error(world, make_rule, propose, length, *, sampling=OPEN, forks=Forks):
    chain = Chain(sampling)
    emitted = distribution_of(lambda noise: text_of(world, make_rule(chain, noise), propose, length), forks)
    assert sum(emitted.values()) == pytest.approx(1.0, abs=1e-9)
    return distance(emitted, plain_distribution(world, sampling, length))


def worst_error(make_rule, drafter=lambda world: model_drafter(world, always(2)), **options):
    """The error on the one of a few worlds that shows most."""
    return max(error(world, make_rule, drafter(world), 3, **options) for world in map(World, range(4)))


CHAINS = {
    "top-k": Sampling(temperature=0.8, top_k=2, top_p=1.0, min_p=0.0),
    "top-p": Sampling(temperature=0.8, top_k=0, top_p=0.7, min_p=0.0),
    "min-p": Sampling(temperature=1.3, top_k=0, top_p=1.0, min_p=0.3),
    "all": Sampling(temperature=0.8, top_k=2, top_p=0.8, min_p=0.1),
    "low temperature": Sampling(temperature=0.25, top_k=0, top_p=1.0, min_p=0.0),
    "penalties": replace(
        OPEN, repeat_penalty=1.6, presence_penalty=0.4, frequency_penalty=0.3, repeat_last_n=2
    ),
    "whole text": replace(OPEN, frequency_penalty=0.5, repeat_last_n=-1),
    "penalised top-k": Sampling(
        temperature=0.8,
        top_k=2,
        top_p=0.9,
        min_p=0.1,
        repeat_penalty=1.6,
        frequency_penalty=0.3,
        repeat_last_n=2,
    ),
    "boost and bias": replace(OPEN, top_k=2, presence_penalty=-0.8, logit_bias=((1, 1.5), (2, -0.7))),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("chain", CHAINS)
def test_every_part_of_the_chain(rule, chain):
    world = World(4)
    assert error(world, RULES[rule], model_drafter(world, always(2)), 3, sampling=CHAINS[chain]) < EXACT


@dataclass
class Cut:
    """A world whose target gives the largest logits of its rows; `short` of them had to be whole."""

    world: World
    most: int
    short: int = 0

    def target(self, text):
        row = self.world.target(text)
        ids = (-row).argsort()[: self.most][::-1]
        return Candidates(ids, row[ids], lambda: self._whole(row))

    def _whole(self, row):
        self.short += 1
        return row


@pytest.mark.parametrize("rule", ["block", "coupled"])
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("most", [2, 3])
def test_every_part_of_the_chain_where_rows_are_cut(rule, chain, most):
    cut, sampling = Cut(World(4, symbols=4), most), CHAINS[chain]
    propose = model_drafter(cut.world, always(2))
    emitted = distribution_of(lambda noise: text_of(cut, RULES[rule](Chain(sampling), noise), propose, 3))
    assert distance(emitted, plain_distribution(cut.world, sampling, 3)) < EXACT
    always_whole = sampling.logits_needed is None or sampling.logits_needed >= most
    assert cut.short or not always_whole


def dropping_drafter(world, is_doubtful):
    """Draws two tokens, dropping the drawn one and stopping where it is doubtful."""

    def propose(rule, text, room):
        draws, now = [], list(text)
        while len(draws) < min(2, room):
            draw = rule.draw(world.draft(now), now, len(text))
            if is_doubtful(draw):
                break
            draws.append(draw)
            now.append(draw.token)
        return proposal_of(draws)

    return propose


@pytest.mark.parametrize("rule", RULES)
def test_dropping_a_drawn_token_by_the_largest_q(rule):
    world = World(6)
    assert error(world, RULES[rule], dropping_drafter(world, lambda d: d.confidence < 0.6), 3) < EXACT


@pytest.mark.nightly
@pytest.mark.parametrize("make_rule", [BlockRule, rejection])
def test_a_draft_temperature_that_learns_from_rejected_tokens(make_rule, monkeypatch):
    monkeypatch.setattr(judgement, "ENOUGH", 1)
    factors = set()

    def watched(world):
        def propose(rule, text, room):
            factors.add(rule.sharpness.factor)
            return model_drafter(world, always(2))(rule, text, room)

        return propose

    for world in map(World, range(4)):
        assert error(world, make_rule, watched(world), 4) < EXACT
    assert len(factors) > 2


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("pattern", ["12", "0q", "q0q", "1qq", "00q"])
def test_proposals_that_mix_chosen_and_drawn_tokens(rule, pattern):
    world = World(8)
    assert error(world, RULES[rule], mixed_drafter(world, pattern), len(pattern) + 1) < EXACT


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("forced", [(0,), (0, 1), (1,)])
def test_certain_tokens_are_kept_unseen(rule, forced):
    world = World(9, forced=forced)
    assert error(world, RULES[rule], certain_drafter(world, 2), 3) < EXACT


def expected_kept(world, make_rule, depth):
    """The mean number of draft tokens that one cycle keeps."""

    def kept(noise):
        rule = make_rule(Chain(OPEN), noise)
        proposal = model_drafter(world, always(depth))(rule, PROMPT, depth)
        rows = [world.target((*PROMPT, *proposal.tokens[:i])) for i in range(depth + 1)]
        return rule.verify(rows, proposal, PROMPT).accepted

    return sum(count * probability for count, probability in distribution_of(kept).items())


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_block_verification_keeps_at_least_as_much_as_rejection_and_often_more(depth):
    gains = [
        expected_kept(world, BlockRule, depth) - expected_kept(world, rejection, depth)
        for world in map(World, range(10))
    ]
    assert min(gains) > -EXACT
    assert max(gains) == pytest.approx(0.0, abs=EXACT) if depth == 1 else max(gains) > 0.02


BLOCK_TRAPS = {
    "break at the first failure": (
        "            kept, kept_share = i, share\n",
        "            kept, kept_share = i, share\n        else:\n            break\n",
    ),
    "token-level residual": (
        "excess(here, q[kept], tokens[kept], kept_share)",
        "excess(here, q[kept], tokens[kept])",
    ),
    "the last share in the residual": (
        "excess(here, q[kept], tokens[kept], kept_share)",
        "excess(here, q[kept], tokens[kept], share)",
    ),
    "a share that is not capped": ("min(1.0, share * p(i - 1)", "(share * p(i - 1)"),
    "an acceptance by share alone": ("left / (left + 1.0 - share)", "share"),
}


REJECTION_TRAPS = {
    "the target's own distribution instead of the residual": (
        "return i, excess(here, q[i], token)",
        "return i, here",
    ),
    "p and q the wrong way round": (
        "here.of(token) / drawn_with(q[i], token)",
        "drawn_with(q[i], token) / max(here.of(token), 1e-300)",
    ),
}


@pytest.mark.parametrize("trap", [*BLOCK_TRAPS, *REJECTION_TRAPS])
def test_traps_of_judgement_are_caught(trap):
    trapped = mutant(judgement, (BLOCK_TRAPS | REJECTION_TRAPS)[trap])
    judge = trapped.block if trap in BLOCK_TRAPS else trapped.reject
    assert worst_error(lambda chain, noise: BlockRule(chain, noise, judge)) > CAUGHT


@pytest.mark.parametrize("make_rule", [BlockRule, rejection])
def test_dropping_a_token_because_q_doubts_it_is_caught(make_rule):
    def drafter(world):
        return dropping_drafter(world, lambda draw: draw.q.of(draw.token) < 0.4)

    assert worst_error(make_rule, drafter) > CAUGHT


@pytest.mark.parametrize("make_rule", [BlockRule, rejection])
def test_a_shared_random_stream_is_caught(make_rule):
    assert worst_error(make_rule, forks=OneStream) > CAUGHT


def test_meeting_the_randomness_of_an_earlier_cycle_again_is_caught():
    assert worst_error(BlockRule, forks=PositionOnly) > CAUGHT


HISTORY_TRAPS = {
    "BlockRule": "text = Continued(history, proposal.tokens[: certain + i])",
    "Coupled": "lambda i: choose(certain + i, Continued(history, proposal.tokens[: certain + i]))",
}


@pytest.mark.parametrize("rule", HISTORY_TRAPS)
def test_a_history_that_does_not_move_is_caught(rule):
    line = HISTORY_TRAPS[rule]
    trapped = mutant(
        verification, (line, line.replace("Continued(history, proposal.tokens[: certain + i])", "history"))
    )
    assert worst_error(getattr(trapped, rule), sampling=CHAINS["penalties"]) > CAUGHT
