"""Coupled drafting: a seed pins the text, and nothing about the drafting changes it."""

import pytest

from localspec.algorithm.loop import speculate
from localspec.algorithm.protocols import Proposal
from localspec.algorithm.verification import make_rule
from localspec.drafters.arbiter import Fixed, Plain
from localspec.drafters.lookup import LookupDrafter
from localspec.drafters.model import ModelDrafter
from localspec.events import Source
from localspec.sampler.sampling import Sampling
from tests.algorithm.toys import END, Blend, Toy

PROMPT = [3, 1, 4, 1, 5]
ROOM = 20
OPEN = Sampling(temperature=0.9, top_k=0, top_p=1.0, min_p=0.0)
PENALISED = Sampling(temperature=1.1, top_k=12, repeat_penalty=1.3, frequency_penalty=0.2, repeat_last_n=6)


def is_end(token):
    return token == END


class Scripted(LookupDrafter):
    """Proposes whatever the text ended with before: chosen tokens, mostly wrong."""

    def propose(self, tokens, limit, rule=None, stopping=None):
        guesses = tuple(tokens[-limit:])
        return Proposal(guesses, (None,) * len(guesses), (1.0,) * len(guesses), Source.LOOKUP)


def reply(seed, sampling, drafted):
    """A reply of the toy target, and how many draft tokens were kept."""
    rule, target, tokens = make_rule("coupled", sampling, seed), Toy(seed), list(PROMPT)
    list(target.prefill(tokens[:-1]))
    cycles = list(speculate(target, drafted(rule, seed), tokens, rule=rule, room=ROOM, is_end=is_end))
    return tokens, sum(cycle.accepted for cycle in cycles)


def with_model(depth, agreement):
    return lambda rule, seed: Fixed(ModelDrafter(Blend(seed, agreement), is_end), depth, rule)


DRAFTED = {
    "depth 0": with_model(0, 0.9),
    "depth 1": with_model(1, 0.9),
    "depth 4": with_model(4, 0.9),
    "depth 8": with_model(8, 0.9),
    "another drafter": with_model(4, 0.3),
    "chosen tokens": lambda rule, seed: Fixed(Scripted(), 4, rule),
}


@pytest.mark.parametrize("sampling", [OPEN, PENALISED], ids=["open", "penalised"])
def test_100_of_100_seeds_give_one_text_whatever_drafts(sampling):
    kept = dict.fromkeys(DRAFTED, 0)
    for seed in range(100):
        alone, _ = reply(seed, sampling, lambda rule, seed: Plain())
        for name, drafted in DRAFTED.items():
            text, accepted = reply(seed, sampling, drafted)
            assert text == alone, (seed, name)
            kept[name] += accepted
    assert all(count > 0 for name, count in kept.items() if name != "depth 0"), kept


def test_another_seed_gives_another_text():
    texts = {tuple(coupled_text(seed)) for seed in range(20)}
    assert len(texts) == 20


def coupled_text(seed):
    """The text of one target under a seed of its own."""
    rule, target, tokens = make_rule("coupled", OPEN, seed), Toy(1), list(PROMPT)
    list(target.prefill(tokens[:-1]))
    list(speculate(target, Plain(), tokens, rule=rule, room=ROOM, is_end=lambda token: False))
    return tokens
