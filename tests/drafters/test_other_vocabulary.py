"""A draft of another vocabulary: the law of the text is the target's, and the draft reads what was written."""

import numpy as np
import pytest

from localspec.algorithm.loop import speculate
from localspec.algorithm.verification import make_rule
from localspec.drafters.arbiter import Fixed
from localspec.drafters.other_vocabulary import OtherVocabularyDrafter
from localspec.gguf.matching import SharedTokens
from localspec.sampler.chain import Chain
from localspec.sampler.passes import Candidates, Pass
from localspec.sampler.sampling import Sampling
from tests.algorithm.enumeration import distance, law
from tests.algorithm.random_pairs import OPEN, PROMPT, RULES, World, plain_law
from tests.algorithm.toys import Toy
from tests.drafters.test_law import TABLE, Side, never
from tests.drafters.test_translation import Pieces

TARGET = Pieces("a", "b", "c")
TARGET.pieces = TARGET.pieces[1:]  # 0 to 2, as the symbols of a world
TARGET.is_control = lambda token: False
DRAFT = Pieces("c", "bb", "a", "ab", "b")
SHARED = SharedTokens(np.array([1, 3, 5], np.int32), np.array([2, 0, 1], np.int32), 1.0)
WITHOUT_C = SharedTokens(np.array([3, 5], np.int32), np.array([0, 1], np.int32), 1.0)


def row_in_words(world, words):
    """The world's draft by the letters that the words spell, over the draft's own vocabulary."""
    letters = [TARGET.pieces.index(bytes([byte])) for byte in b"".join(map(DRAFT.piece, words))]
    row = world.draft(tuple(letters))
    found = np.full(len(DRAFT.pieces), 0.5, np.float32)
    for token, word in zip(SHARED.target_ids, SHARED.draft_ids, strict=True):
        found[word] = row[token] if np.isfinite(row[token]) else -30.0
    return found


def emitted(world, make_rule, shared, depth, length):
    def text(noise):
        target = Side(world.target, TABLE.verify)
        draft = Side(lambda words: row_in_words(world, words), lambda width: 1.0)
        target.tokens += PROMPT[:-1]
        rule, tokens = make_rule(Chain(OPEN), noise), list(PROMPT)
        strategy = Fixed(OtherVocabularyDrafter(draft, DRAFT, TARGET, shared, never), depth, rule)
        for _ in speculate(target, strategy, tokens, rule=rule, room=length, is_end=never):
            pass
        return tuple(tokens[len(PROMPT) :][:length])

    return law(text)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shared", [SHARED, WITHOUT_C], ids=["all shared", "some shared"])
@pytest.mark.parametrize("seed", range(3))
def test_the_law_of_the_text_is_the_targets(rule, shared, seed):
    world = World(seed)
    assert distance(emitted(world, RULES[rule], shared, 2, 3), plain_law(world, OPEN, 3)) < 1e-12


class Reader(Toy):
    """A draft whose every row says how many of its words it has read; it decodes what it is given."""

    def row(self):
        row = np.zeros(len(DRAFT.pieces), np.float32)
        row[1 + len(self.cache) % 5] = 9.0
        return row


def test_the_cache_holds_the_text_in_words_after_every_cycle():
    draft, rng = Reader(1), np.random.default_rng(3)
    drafter = OtherVocabularyDrafter(draft, DRAFT, TARGET, SHARED, never)
    rule = make_rule("greedy", Sampling(temperature=0.0), 1)
    text = [0, 1]
    for _ in range(200):
        proposal = drafter.propose(text, int(rng.integers(1, 5)), rule)
        kept = int(rng.integers(0, len(proposal.tokens) + 1))
        batch = Pass(len(text) - 1, [text[-1], *proposal.tokens])
        text = [*text, *proposal.tokens[:kept], int(rng.integers(0, 3))]
        drafter.observe(batch, kept + 1)
        drafter.backlog(text)
        spelled = b"".join(map(DRAFT.piece, draft.tokens))
        assert b"".join(map(TARGET.piece, text)).startswith(spelled)


def test_a_text_that_outgrows_the_cache_is_read_anew_from_its_middle():
    draft = Reader(1, capacity=40)
    drafter = OtherVocabularyDrafter(draft, DRAFT, TARGET, SHARED, never)
    rule = make_rule("greedy", Sampling(temperature=0.0), 1)
    text = [0, 2]
    for i in range(150):
        assert len(drafter.propose(text, 3, rule).tokens) > 0
        text.append(i % 3)
        drafter.observe(Pass(len(text) - 2, text[-2:-1]), 1)
    assert drafter.failure is None


def test_candidates_of_a_device_are_said_as_the_targets_tokens():
    drafter = OtherVocabularyDrafter(Reader(1), DRAFT, TARGET, WITHOUT_C, never)
    row = Candidates(np.array([5, 1, 2], np.int32), np.array([0.5, 3.0, 1.0], np.float32))
    output_tokens = drafter._output_tokens(row)
    assert (output_tokens.ids.tolist(), output_tokens.logits.tolist()) == ([1], [0.5])


def test_what_is_unread_is_read_in_pieces():
    draft = Reader(1)
    drafter = OtherVocabularyDrafter(draft, DRAFT, TARGET, SHARED, never)
    text = [0, 1, 2] * 30
    unread = drafter.backlog(text).unread
    assert unread == 89
    while (left := drafter.backlog(text).unread) > 0:
        assert drafter.read(text, 20) > 0
        assert drafter.backlog(text).unread < left
    assert 80 <= drafter.backlog(text).held <= 90
