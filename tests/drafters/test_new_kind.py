"""A drafter of another kind is one class and one place in a list: here one that reads the target's hidden rows."""

import numpy as np
import pytest

from localspec.algorithm.protocols import Drafter, Proposal
from localspec.events import Source
from localspec.sampler.passes import HiddenRows
from tests.algorithm.exact_models import following, logits_of
from tests.chat.letters import GREEDY, SYMBOLS, session_of


class BlockHead(Drafter):
    """Drafts a whole block in one run, from the hidden row of the text's last token but one."""

    source = Source.MODEL
    hidden_rows_needed = HiddenRows(output=True)
    busy_seconds = 0.0

    def __init__(self, row_of):
        """`row_of(hidden, newer)`: its logits after some tokens that are newer than a hidden row."""
        self.row_of = row_of
        self.hidden, self.end = None, 0

    def model_runs(self, depth):
        return 1

    def observe(self, batch, kept):
        end = batch.start + kept
        if kept and batch.hidden is not None:
            self.hidden = np.array(batch.hidden[kept - 1])
        elif end != self.end:
            self.hidden = None
        self.end = end

    def propose(self, tokens, limit, rule, stopping=None):
        if self.hidden is None or self.end != len(tokens) - 1:
            return Proposal(depth=limit)
        self.busy_seconds += 0.0001
        text, draws = list(tokens), []
        while len(draws) < limit:
            draw = rule.draw(self.row_of(self.hidden, text[self.end :]), text, len(tokens))
            if stopping and not stopping.keeps(draw.confidence, len(draws)):
                break
            text.append(draw.token)
            draws.append(draw)
        return Proposal.drawn(draws, Source.MODEL, depth=limit, runs=1)


def nearly_right(hidden, newer, vocabulary):
    """The target's own logits, but for one position in four."""
    state = int(hidden[0])
    for token in newer:
        state = following(state, token)
    return logits_of(state + (state % 4 == 0), vocabulary)


@pytest.mark.parametrize("depth", ["auto", 1, 4])
def test_its_greedy_text_is_the_targets_through_new_edited_and_repeated_prompts(depth):
    head = BlockHead(lambda hidden, newer: nearly_right(hidden, newer, len(SYMBOLS)))
    (session, *_), accepted = session_of(draft=False, drafters=[head], end=False), 0
    for prompt in ("abc" * 9, "abc" * 9, "abcabd" * 5, "abc" * 9 + "de", "ab", "abc" * 40):
        reply = session.complete(prompt, **GREEDY, max_tokens=40, depth=depth)
        alone, *_ = session_of(draft=False, end=False)
        assert reply.tokens == alone.complete(prompt, **GREEDY, max_tokens=40, speculate=False).tokens
        accepted += reply.stats.from_model
    assert accepted > (60 if depth == 4 else 0)
