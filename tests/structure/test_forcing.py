"""Forced tokens go before what another strategy proposes, and are counted as what they are."""

import itertools

import pytest

from localspec.algorithm.loop import speculate
from localspec.algorithm.protocols import PlainStep, Proposal
from localspec.algorithm.verification import make_rule
from localspec.control.timing import Tally
from localspec.drafters.model import ModelDrafter
from localspec.drafters.selection import Fixed, Plain
from localspec.events import Cycle, Mode, Origin, Source
from localspec.sampler.passes import ForwardPass
from localspec.sampler.sampling import Sampling
from localspec.structure.constraint import Constrained, GrammarTokens
from localspec.structure.forcing import Forcing
from localspec.structure.grammar import regex_grammar
from tests.algorithm.exact_models import Blend, ExactModel
from tests.structure.characters import Characters, text_of

VOCABULARY = Characters()
TOKENS = GrammarTokens(VOCABULARY)
PROMPT = [5, 6, 7]
RECORD = regex_grammar("name=[a-z]{3,5};colour=(red|green);size=[0-9]{2,4};end of the record")
GREEDY = Sampling(temperature=0.0)


class Remembering:
    """A strategy that proposes what it is given and keeps what it gets."""

    def __init__(self, *proposals, plain=1.2):
        self.proposals, self.plain_step = list(proposals), PlainStep(plain)
        self.asked, self.learned = [], []

    def propose(self, tokens, room):
        self.asked.append((list(tokens), room))
        return self.proposals.pop(0) if self.proposals else Proposal()

    def settle(self, tokens):
        pass

    def learn(self, cycle):
        self.learned.append(cycle)


def constraint():
    return Constrained(TOKENS.matcher(RECORD), "it", TOKENS, start=len(PROMPT))


def drafted(text, **more):
    tokens = tuple(VOCABULARY.tokenize(text, parse_special=False))
    return Proposal(tokens, (None,) * len(tokens), (0.5,) * len(tokens), source=Source.MODEL, **more)


def run(seed, *, draft=True, forces=True, sampling=GREEDY, rule="auto", depth=3, room=200, stop_after=None):
    """Tokens and cycles of a constrained text on exact models; cancelled and continued after `stop_after`."""
    size = VOCABULARY.size
    target, constrained = ExactModel(seed, vocabulary=size), constraint()
    made = make_rule(rule, sampling, 7, constrained)
    drafter = ModelDrafter(Blend(seed, 0.7, vocabulary=size), VOCABULARY.is_end)
    inner = Fixed(drafter, depth, made) if draft else Plain()
    strategy = Forcing(inner, constrained, 33 if forces else 0)
    tokens, cycles = list(PROMPT), []
    list(target.prefill(tokens[:-1]))
    while True:
        for cycle in speculate(
            target, strategy, tokens, rule=made, room=room - len(tokens), is_end=VOCABULARY.is_end
        ):
            cycles.append(cycle)
            if stop_after and len(cycles) % stop_after == 0:
                break
        if VOCABULARY.is_end(tokens[-1]) or len(tokens) >= room:
            return tokens[len(PROMPT) :], cycles


def test_a_text_is_the_same_forced_drafted_both_or_neither():
    for seed in range(20):
        plain, steps = run(seed, draft=False, forces=False)
        assert [cycle.tokens for cycle in steps] == [(token,) for token in plain]
        assert run(seed, draft=False)[0] == plain
        assert run(seed, forces=False)[0] == plain
        assert run(seed)[0] == plain
        assert run(seed, stop_after=1)[0] == plain
        assert text_of(plain).endswith(";end of the record")


def test_a_coupled_text_is_the_same_forced_drafted_both_or_neither():
    sampling = Sampling(temperature=0.9, top_k=20)
    for seed in range(10):
        ways = itertools.product((True, False), repeat=2)
        texts = [run(seed, draft=d, forces=f, sampling=sampling, rule="coupled")[0] for d, f in ways]
        assert texts[1:] == texts[:-1]


def test_forced_tokens_have_their_own_origin_and_source_and_are_not_drafted():
    tokens, cycles = run(3, draft=False)
    first = cycles[0]
    assert first.origins == (Origin.FORCED,) * 5 + (Origin.BONUS,)
    assert (first.source, first.width, first.proposal, first.accepted) == (Source.FORCED, 6, (), 0)
    tally = Tally()
    for cycle in cycles:
        tally.add(cycle)
    stats = tally.stats()
    assert (stats.drafted, stats.accepted) == (0, 0)
    assert stats.from_grammar == sum(cycle.origins.count(Origin.FORCED) for cycle in cycles) > len(tokens) / 2


def test_drafts_follow_the_forced_tokens_and_hear_only_of_themselves():
    inner = Remembering(drafted("abc", depth=3))
    strategy = Forcing(inner, constraint(), 33)
    proposal = strategy.propose(PROMPT, 20)
    assert text_of(proposal.tokens) == "name=abc"
    assert (proposal.certain, proposal.depth, proposal.source) == (5, 3, Source.MODEL)
    assert inner.asked == [([*PROMPT, *proposal.tokens[:5]], 15)]
    assert (len(proposal.q), len(proposal.confidences)) == (8, 8)


def test_what_the_grammar_forbids_is_cut_from_a_draft():
    strategy = Forcing(Remembering(drafted("ab;;")), constraint(), 33)
    assert text_of(strategy.propose(PROMPT, 20).tokens) == "name=ab"


class Filling(Remembering):
    """Takes all the room it is given."""

    def propose(self, tokens, room):
        self.asked.append((list(tokens), room))
        return drafted("abcde"[:room])


def test_a_batch_is_never_wider_than_the_target_can_verify():
    for widest in range(2, 14):
        proposal = Forcing(Filling(), constraint(), widest).propose(PROMPT, 100)
        assert len(proposal.tokens) == min(widest - 1, 10)
        assert proposal.certain == min(widest - 1, 5)
    for room in range(1, 12):
        assert len(Forcing(Filling(), constraint(), 33).propose(PROMPT, room).tokens) == min(room, 10)


def cycle_of(width, forced, seconds):
    tokens, proposal = (1,) * forced + (2,), (3,) * (width - 1 - forced)
    origins = (Origin.FORCED,) * forced + (Origin.BONUS,)
    return Cycle(tokens, origins, proposal, 0, 3, Source.MODEL, width, 0.0, seconds, 0.0)


@pytest.mark.parametrize(
    ("plain", "cycles", "learned"),
    [
        (1.2, [(4, 0), (9, 5), (6, 2), (14, 10)], 4),
        (1.2, [(4, 0), (9, 5), (6, 5)], 2),  # a batch of forced tokens alone is no plain step
        (None, [(9, 5)], 0),  # no plain step is known
    ],
)
def test_the_inner_strategy_learns_of_cycles_without_the_forced_tokens(plain, cycles, learned):
    inner = Remembering(*[drafted("abc")] * 9, plain=plain)
    strategy = Forcing(inner, constraint(), 33)
    for width, forced in cycles:
        strategy.propose(PROMPT, 20)
        strategy.learn(cycle_of(width, forced, seconds=1.0 + 0.2 * width))
    assert [(cycle.width, cycle.tokens) for cycle in inner.learned] == [(4, (2,))] * learned
    assert [cycle.verify_seconds for cycle in inner.learned] == pytest.approx([1.8] * learned)


def test_the_inner_strategy_is_not_shown_cycles_in_which_it_had_no_room():
    inner = Remembering()
    strategy = Forcing(inner, constraint(), 4)
    strategy.propose(PROMPT, 20)
    strategy.learn(cycle_of(4, 3, seconds=1.0))
    assert inner.asked == inner.learned == []


def test_both_see_what_the_text_has_become():
    reported = []
    inner, forcer = Remembering(), constraint()
    forcer.settle = reported.append
    inner.observe = lambda batch, kept: reported.append((batch, kept))
    strategy, batch = Forcing(inner, forcer, 33), ForwardPass(0, [1, 2])
    strategy.observe(batch, 1)
    strategy.propose(PROMPT, 20)
    assert reported == [(batch, 1), PROMPT]


def test_a_plain_step_to_measure_with_forced_tokens_in_front_is_none():
    text = VOCABULARY.tokenize("name=abc;colour=red", parse_special=False)
    strategy = Forcing(Remembering(*[Proposal(mode=Mode.BASELINE)] * 2), constraint(), 33)
    assert strategy.propose(PROMPT, 20).mode is Mode.DRAFTING
    assert strategy.propose([*PROMPT, *text[:5]], 20).mode is Mode.BASELINE


def test_looking_for_forced_tokens_is_no_part_of_a_plain_step():
    text = VOCABULARY.tokenize("name=abc;colour=red", parse_special=False)
    inner = Remembering(Proposal(deciding_seconds=1.0), Proposal(deciding_seconds=1.0))
    assert Forcing(inner, constraint(), 33).propose([*PROMPT, *text[:5]], 20).deciding_seconds > 1.0
    assert Forcing(inner, constraint(), 0).propose([*PROMPT, *text[:5]], 20).deciding_seconds == 1.0
