"""The scores of a reply's tokens are the target's, whoever drafted them."""

import numpy as np
import pytest

from localspec.chat.scoring import log_softmax, top
from localspec.errors import BadSetting
from localspec.events import Finished, Scores
from tests.chat.letters import GREEDY, session_of


def scored(**options):
    session, *_ = session_of(end=False)
    events = list(session.stream("hello there", **GREEDY, max_tokens=30, **options))
    (reply,) = (event.reply for event in events if isinstance(event, Finished))
    return reply, [token for event in events if isinstance(event, Scores) for token in event.tokens]


def test_drafted_and_plain_replies_have_the_same_scores():
    drafted, its_scores = scored(logprobs=3)
    _, plain_scores = scored(logprobs=3, speculate=False)
    assert drafted.stats.accepted > 0
    assert len(its_scores) == len(drafted.tokens) == 30
    assert its_scores == plain_scores


def test_a_greedy_token_is_the_likeliest_and_the_others_follow_in_order():
    reply, scores = scored(logprobs=3)
    assert "".join(bytes(score.chosen.piece).decode() for score in scores) == reply.text
    for score in scores:
        found = [likelihood.logprob for likelihood in score.alternatives]
        assert score.alternatives[0] == score.chosen
        assert found == sorted(found, reverse=True)
        assert max(found) <= 0


def test_nothing_is_scored_unasked_and_no_more_than_can_be():
    assert scored()[1] == []
    assert scored(logprobs=0)[1][0].alternatives == ()
    with pytest.raises(BadSetting, match="logprobs is 21"):
        scored(logprobs=21)


def test_log_softmax_and_the_largest():
    logits = np.array([1.0, 3.0, 3.0, -np.inf], dtype=np.float32)
    assert np.exp(log_softmax(logits)).sum() == pytest.approx(1.0)
    assert top(logits, 3) == [1, 2, 0]
    assert top(logits, 0) == []
