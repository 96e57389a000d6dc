"""A draft of another vocabulary: the distribution of the text is the target's, and its words have the same bytes."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.algorithm.loop import speculate
from localspec.algorithm.verification import make_rule
from localspec.drafters.model import OtherVocabularyDrafter, Translation
from localspec.drafters.selection import Fixed
from localspec.gguf.matching import SharedTokens
from localspec.sampler.chain import Chain
from localspec.sampler.passes import Candidates, ForwardPass
from localspec.sampler.sampling import Sampling
from tests.algorithm.enumeration import distance, distribution_of
from tests.algorithm.exact_models import ExactModel
from tests.algorithm.random_pairs import OPEN, PROMPT, RULES, World, plain_distribution
from tests.drafters.test_lossless import TABLE, Side, never


class Pieces:
    """A vocabulary of these pieces; a text is cut into the longest ones. Token 0 is a control token."""

    def __init__(self, *pieces, add_bos=False):
        self.pieces = [b"", *(piece.encode() if isinstance(piece, str) else piece for piece in pieces)]
        self.bos, self.add_bos = 0, add_bos

    def tokenize(self, text, *, parse_special, add_special=False):
        raw, found = text.encode(), []
        while raw:
            fitting = [i for i, piece in enumerate(self.pieces) if piece and raw.startswith(piece)]
            found.append(max(fitting, key=lambda i: len(self.pieces[i])))
            raw = raw[len(self.pieces[found[-1]]) :]
        return found

    def piece(self, token):
        return self.pieces[token]

    def is_special(self, token):
        return token == 0


EURO = "€".encode()
BYTES = [EURO[i : i + 1] for i in range(3)]
ANY_BYTE = [bytes([byte]) for byte in range(256)]
OURS = Pieces("a", "b", "ab", " ", " a", " b", " ab", "  ", "ba", *BYTES)
THEIRS = Pieces("a", "b", " ", "bb", "a b", " abb", "aa", " b", "€", "\ufffd", *ANY_BYTE)
TOKENS = st.lists(st.integers(0, len(OURS.pieces) - 1), max_size=120)


def translated(*parts, draft=THEIRS, shared=()):
    translation = Translation(draft, OURS, dict(shared))
    for part in parts:
        translation.extend(part)
    return translation


def target_count(translation, count=None):
    draft_tokens = (
        translation.draft_tokens
        if count is None
        else translation.draft_tokens[: translation.draft_count(count)]
    )
    return b"".join(map(THEIRS.piece, draft_tokens))


def text_of(tokens):
    return b"".join(map(OURS.piece, tokens))


@given(TOKENS, st.lists(st.integers(1, 9), max_size=30))
def test_the_words_say_what_the_tokens_say_however_the_text_grew(tokens, steps):
    translation, at = translated(), 0
    for step in [*steps, len(tokens)]:
        whole = translation.extend(tokens[at : at + step]) if tokens[at : at + step] else True
        at = min(at + step, len(tokens))
        assert translation.tokens == tokens[:at]
        text = text_of(tokens[:at]).decode("utf-8", "replace")
        if whole:
            assert target_count(translation).decode().replace("\ufffd", "") == text.replace("\ufffd", "")


@given(TOKENS, TOKENS, st.integers(0, 120))
def test_a_text_that_was_cut_and_goes_on_otherwise_says_what_it_is_now(before, after, keep):
    tokens = [token for token in before if token < 10]
    after = [token for token in after if token < 10] + [1]
    translation = translated(tokens)
    translation.cut(keep)
    translation.extend([*tokens[:keep], *after][len(translation.tokens) :])
    assert target_count(translation) == text_of([*tokens[:keep], *after])
    for count in range(len(translation.tokens) + 1):
        assert target_count(translation, count).startswith(text_of(translation.tokens[:count]))


@given(TOKENS, st.integers(0, 200))
def test_tokens_of_one_vocabulary_become_as_many_words_of_the_other(tokens, draft_tokens):
    translation = translated([token for token in tokens if token < 10])
    count = translation.target_count(draft_tokens)
    assert translation.draft_count(count) <= draft_tokens
    assert count == len(translation.tokens) or translation.draft_count(count + 1) > draft_tokens


def test_only_the_end_is_tokenised_anew():
    translation = translated([5, 6, 7] * 40)
    calls = []
    counted = lambda text, **kind: calls.append(text) or THEIRS.tokenize(text, **kind)  # noqa: E731
    translation._draft = SimpleNamespace(tokenize=counted, piece=THEIRS.piece, add_bos=False, bos=None)
    before = list(translation.draft_tokens)
    translation.extend([2])
    assert [len(text) < 12 for text in calls] == [True]
    assert translation.draft_tokens[: translation.stable] == before[: translation.stable]
    assert translation.stable >= len(before) - 4


@pytest.mark.parametrize(
    ("parts", "whole"), [([BYTES], True), ([BYTES[:2]], False), ([BYTES[:1], BYTES[1:]], True)]
)
def test_a_text_inside_a_character_says_nothing_of_it(parts, whole):
    translation = translated([1])
    for part in parts:
        is_whole = translation.extend([OURS.pieces.index(byte) for byte in part])
    assert is_whole == whole
    assert target_count(translation) == (b"a" + EURO if whole else b"a")


def test_control_tokens_become_the_drafts_own_or_passed_over():
    assert translated([1, 0, 2]).draft_tokens == [1, 2]
    assert translated([1, 0, 2], shared={0: 0}.items()).draft_tokens == [1, 0, 2]


def test_a_draft_that_wants_a_beginning_gets_one():
    draft = Pieces("a", "b", " ", add_bos=True)
    assert translated([1, 2], draft=draft).draft_tokens == [0, 1, 2]
    assert translated([0, 1, 2], draft=draft, shared={0: 0}.items()).draft_tokens == [0, 1, 2]
    assert translated([1], [2], draft=draft).draft_tokens == [0, 1, 2]


TARGET = Pieces("a", "b", "c")
TARGET.pieces = TARGET.pieces[1:]  # 0 to 2, as the symbols of a world
TARGET.is_special = lambda token: False
DRAFT = Pieces("c", "bb", "a", "ab", "b")
SHARED = SharedTokens(np.array([1, 3, 5], np.int32), np.array([2, 0, 1], np.int32), 1.0)
WITHOUT_C = SharedTokens(np.array([3, 5], np.int32), np.array([0, 1], np.int32), 1.0)


def row_in_words(world, draft_tokens):
    """The world's draft by the letters that the words spell, over the draft's own vocabulary."""
    letters = [TARGET.pieces.index(bytes([byte])) for byte in b"".join(map(DRAFT.piece, draft_tokens))]
    row = world.draft(tuple(letters))
    found = np.full(len(DRAFT.pieces), 0.5, np.float32)
    for token, word in zip(SHARED.target_ids, SHARED.draft_ids, strict=True):
        found[word] = row[token] if np.isfinite(row[token]) else -30.0
    return found


def emitted(world, make_rule, shared, depth, length):
    def text(noise):
        target = Side(world.target, TABLE.verify)
        draft = Side(lambda draft_tokens: row_in_words(world, draft_tokens), lambda width: 1.0)
        target.tokens += PROMPT[:-1]
        rule, tokens = make_rule(Chain(OPEN), noise), list(PROMPT)
        strategy = Fixed(OtherVocabularyDrafter(draft, DRAFT, TARGET, shared, never), depth, rule)
        for _ in speculate(target, strategy, tokens, rule=rule, room=length, is_end=never):
            pass
        return tuple(tokens[len(PROMPT) :][:length])

    return distribution_of(text)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shared", [SHARED, WITHOUT_C], ids=["all shared", "some shared"])
@pytest.mark.parametrize("seed", range(3))
def test_the_distribution_of_the_text_is_the_targets(rule, shared, seed):
    world = World(seed)
    assert distance(emitted(world, RULES[rule], shared, 2, 3), plain_distribution(world, OPEN, 3)) < 1e-12


class Reader(ExactModel):
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
        batch = ForwardPass(len(text) - 1, [text[-1], *proposal.tokens])
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
        drafter.observe(ForwardPass(len(text) - 2, text[-2:-1]), 1)
    assert drafter.failure is None


def test_candidates_of_a_device_become_the_targets_tokens():
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
