"""On GGUFs speculation changes no text, greedy or coupled."""

from dataclasses import dataclass

import numpy as np
import pytest

import localspec
from localspec.algorithm.loop import speculate
from localspec.algorithm.verification import make_rule
from localspec.drafters.model import ModelDrafter
from localspec.drafters.selection import Fixed, Plain
from localspec.sampler.passes import ForwardPass
from localspec.sampler.sampling import Sampling

GREEDY = make_rule("greedy", Sampling(temperature=0), seed=0)
NEW_TOKENS = 40


@dataclass
class Recording:
    """A target that keeps the rows that verified each token."""

    target: object
    rows: list

    def __getattr__(self, name):
        return getattr(self.target, name)

    def decode(self, tokens, rows):
        found = self.target.decode(tokens, rows)
        self.rows.append([np.array(row) for row in found.rows])
        return found


def generate(target, strategy, prompt, rule=GREEDY, room=NEW_TOKENS):
    """The emitted tokens, and for each the row that chose or verified it."""
    target.rollback(0)
    strategy.observe(ForwardPass(0, ()), 0)
    list(target.prefill(prompt[:-1]))
    recording = Recording(target, [])
    tokens = list(prompt)
    rows = []
    for cycle in speculate(
        recording, strategy, tokens, rule=rule, room=room, is_end=target.model.vocab.is_end
    ):
        rows += recording.rows.pop()[: len(cycle.tokens)]
        assert not recording.rows
    return tokens[len(prompt) :], rows


_plain = {}


def plain_text(target, prompt, rule=GREEDY, room=NEW_TOKENS, seed=0):
    """The tokens that the target writes alone, computed once for all depths and drafts."""
    key = target.model.path, tuple(prompt), type(rule), room, seed
    if key not in _plain:
        _plain[key] = generate(target, Plain(), prompt, rule, room)[0]
    return _plain[key]


@pytest.mark.parametrize("depth", [1, 8])
def test_greedy_text_is_the_plain_one(pair, opened, depth):
    target, draft = opened
    for text in pair.prompts:
        prompt = target.model.vocab.tokenize(text, parse_special=False)
        plain = plain_text(target, prompt)
        drafter = ModelDrafter(draft, target.model.vocab.is_end)
        draft.rollback(0)
        tokens, rows = generate(target, Fixed(drafter, depth, GREEDY), prompt)
        assert drafter.failure is None
        assert all(token == int(row.argmax()) for token, row in zip(tokens, rows, strict=True))
        assert tokens == plain


FLAT = {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}  # so that rare tokens come up


@pytest.fixture
def load(tiny_gguf, tmp_path, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))

    def load(target, draft):
        """A pair with vocabularies of these sizes."""
        shape = {"vocab": "spm", "seed": 1}
        return localspec.load(
            target=tiny_gguf(vocab_size=target, **shape),
            draft=tiny_gguf(vocab_size=draft, noise=0.3, **shape),
        )

    return load


@pytest.mark.parametrize(("target", "draft"), [(400, 340), (340, 400)])
def test_every_reply_comes_to_its_end(load, target, draft):
    kept, largest = 0, 0
    with load(target, draft) as session:
        for seed in range(2):
            for options in (FLAT, FLAT | {"top_k": 300}, {"temperature": 0.0}):
                reply = session.run("hello there my friend", max_tokens=40, depth=4, seed=seed, **options)
                kept += reply.stats.accepted
                largest = max(largest, *reply.tokens)
    assert kept > 0
    assert largest >= draft or target < draft, "the draft read tokens that it lacks"


SEEDS = range(2)
SAMPLING = Sampling(temperature=0.8)


def test_coupled_text_is_the_plain_one(pair, opened):
    target, draft = opened
    vocab = target.model.vocab
    for text in pair.prompts:
        prompt = vocab.tokenize(text, parse_special=False)
        for seed in SEEDS:
            rule = make_rule("coupled", SAMPLING, seed)
            plain = plain_text(target, prompt, rule, 40, seed)
            draft.rollback(0)
            drafter = ModelDrafter(draft, vocab.is_end)
            tokens, _ = generate(target, Fixed(drafter, 4, rule), prompt, rule, room=40)
            assert drafter.failure is None
            assert tokens == plain
