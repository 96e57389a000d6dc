"""Made and trimmed drafts and drafts of another vocabulary through llama.cpp: the text is the target's own."""

from copy import deepcopy
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

import localspec
from localspec import demo
from localspec.algorithm.loop import speculate
from localspec.drafters.model import ModelDrafter, OtherVocabularyDrafter
from localspec.drafters.selection import Fixed
from localspec.errors import IncompatiblePair
from localspec.fit.cut import SourceFile, export, trim
from localspec.gguf.header import header_at
from localspec.gguf.trimmed import token_table
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.sampler.chain import Chain
from localspec.sampler.sampling import Sampling
from tests.algorithm.enumeration import distance, distribution_of
from tests.algorithm.random_pairs import PROMPT, RULES, plain_distribution
from tests.drafters.test_lossless import Side, never
from tests.lossless.conftest import WORDS
from tests.lossless.test_lossless_on_ggufs import GREEDY, generate, plain_text

DEPTH = 3
FEW = Sampling(temperature=1.5, top_k=3, top_p=1.0, min_p=0.0)  # few enough choices to take every one


def made(target, path, layers, output_tokens):
    """Some of a target's layers as they are, through the files that a learned draft is written in."""
    model, output_tokens = SourceFile(target), np.asarray(output_tokens, np.int32)
    return export(path, model, model.cut(layers, output_tokens), output_tokens, {})


@pytest.fixture(scope="module", params=["made", "trimmed", "BPE for BPE", "SentencePiece for BPE"])
def session(request, tiny_gguf, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fitted")
    if request.param == "made":
        draft = made(demo.target_path(), folder / "draft.gguf", [0, 1, 3, 4], range(1800))
    elif request.param == "trimmed":
        draft = trim(demo.draft_path(), folder / "draft.gguf", np.arange(1800))
    else:
        draft = tiny_gguf(
            vocab="bpe" if "BPE for" in request.param else "spm", vocab_size=300, context_length=512
        )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALSPEC_HOME", str(folder))
        with localspec.load(target=demo.target_path(), draft=draft, context_length=512, threads=1) as session:
            yield session


def test_greedy_text_is_the_plain_one(session):
    target, (drafter,) = session.pair.target, session.pair.drafters
    drafted = 0
    for text in WORDS:
        prompt = target.model.vocab.tokenize(text, parse_special=False)
        plain = plain_text(target, prompt)
        tokens, rows = generate(target, Counting(drafter, DEPTH), prompt)
        drafted += Counting.drafted
        assert drafter.failure is None
        assert all(token == int(row.argmax()) for token, row in zip(tokens, rows, strict=True))
        assert tokens == plain
    assert drafted > 0


class Counting(Fixed):
    """Counts what is drafted in a reply."""

    drafted = 0

    def __init__(self, drafter, depth):
        super().__init__(drafter, depth, GREEDY)
        Counting.drafted = 0

    def propose(self, tokens, room):
        proposal = super().propose(tokens, room)
        Counting.drafted += len(proposal.tokens)
        return proposal


def test_a_conversation_is_followed(session):
    """Prompts, drafts, cancelled replies and prompts that share a beginning: the draft reads what is there."""
    for text in ("Tell me a story about a fox.", "And one about a bear, in French: où est l'été ? 🎉"):
        reply = session.run(text, max_tokens=40, depth=4, temperature=0.7, seed=3)
        assert reply.stats.drafted > 0
        assert session.pair.drafters[0].failure is None


def test_what_a_draft_of_another_vocabulary_shares_is_reported(session):
    (drafter,) = session.pair.drafters
    notice = next((text for text in session.pair.notices if "has another vocabulary" in text), "")
    assert bool(notice) == isinstance(drafter, OtherVocabularyDrafter)


def test_too_little_in_common_is_refused(tiny_gguf):
    with pytest.raises(IncompatiblePair, match=r"only .*% of the tokens that the draft writes are also"):
        localspec.load(target=tiny_gguf(vocab="spm", vocab_size=300), draft=demo.draft_path())


def rows_of(model):
    """A function from a text to the row after it, each decoded once."""
    context = Context(model, length=64, threads=1, table=token_table(model.path, header_at(model.path)))

    @cache
    def row(text):
        context.rollback(0)
        return deepcopy(context.decode(text, 1).rows[0])  # it is a view

    return row


@pytest.fixture(scope="module", params=["made", "trimmed"])
def world(request, tiny_gguf, tmp_path_factory):
    """A random target and its draft, which says every other token, as functions from a text to a row."""
    target, path = tiny_gguf(vocab_size=512, layers=4), tmp_path_factory.mktemp("distribution") / "draft.gguf"
    output_tokens = np.arange(0, 512, 2)
    if request.param == "made":
        made(target, path, [0, 1, 3], output_tokens)
    else:
        trim(target, path, output_tokens)
    with Model(target) as whole, Model(path) as draft:
        yield SimpleNamespace(target=rows_of(whole), draft=rows_of(draft))


@pytest.mark.parametrize("rule", RULES)
def test_the_distribution_of_the_text_is_exactly_the_targets(world, rule):
    drafted = accepted = 0

    def text(noise):
        nonlocal drafted, accepted
        target, draft = (Side(row, lambda width: 1.0) for row in (world.target, world.draft))
        target.tokens += PROMPT[:-1]
        now, made_rule = list(PROMPT), RULES[rule](Chain(FEW), noise)
        strategy = Fixed(ModelDrafter(draft, never), 2, made_rule)
        for cycle in speculate(target, strategy, now, rule=made_rule, room=3, is_end=never):
            drafted += cycle.drafted
            accepted += cycle.accepted
        return tuple(now[len(PROMPT) :])

    assert distance(distribution_of(text), plain_distribution(world, FEW, 3)) < 1e-12
    assert drafted > accepted > 0
