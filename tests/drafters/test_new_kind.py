"""A drafter of another kind is one class and one place in a list: here one that reads the target's hidden rows."""

import random
from dataclasses import replace

import numpy as np
import pytest

from localspec.algorithm.protocols import Drafter, Proposal
from localspec.control.acceptance import AcceptanceModel
from localspec.control.company import Company
from localspec.control.cost_table import CostTable
from localspec.control.costs import CostsByContext
from localspec.control.depth import DepthControl
from localspec.drafters.arbiter import Arbiter, Fixed
from localspec.events import Cycle, Source
from localspec.sampler.passes import HiddenRows
from tests.algorithm.random_pairs import PROMPT, RULES, World
from tests.algorithm.toys import following, logits_of
from tests.chat.letters import GREEDY, SYMBOLS, session_of
from tests.drafters.test_law import EXACT, error


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
        text, found = list(tokens), Proposal(source=Source.MODEL, depth=limit)
        while len(found.tokens) < limit:
            draw = rule.draw(self.row_of(self.hidden, text[self.end :]), text, len(tokens))
            if stopping and not stopping.keeps(draw.confidence, len(found.tokens)):
                break
            text.append(draw.token)
            found = longer(found, draw)
        return found


def longer(proposal, draw):
    return replace(
        proposal,
        tokens=(*proposal.tokens, draw.token),
        q=(*proposal.q, draw.q),
        confidences=(*proposal.confidences, draw.confidence),
    )


def nearly_right(hidden, newer, vocabulary):
    """The target's own logits, but for one position in four."""
    state = int(hidden[0])
    for token in newer:
        state = following(state, token)
    return logits_of(state + (state % 4 == 0), vocabulary)


def session_with_head():
    head = BlockHead(lambda hidden, newer: nearly_right(hidden, newer, len(SYMBOLS)))
    return session_of(draft=False, drafters=[head], end=False)[0]


def plain_reply(prompt, tokens):
    return session_of(draft=False, end=False)[0].complete(
        prompt, **GREEDY, max_tokens=tokens, speculate=False
    )


@pytest.mark.parametrize("depth", ["auto", 1, 4])
def test_its_greedy_text_is_the_targets_through_new_edited_and_repeated_prompts(depth):
    session, accepted = session_with_head(), 0
    for prompt in ("abc" * 9, "abc" * 9, "abcabd" * 5, "abc" * 9 + "de", "ab", "abc" * 40):
        reply = session.complete(prompt, **GREEDY, max_tokens=40, depth=depth)
        assert reply.tokens == plain_reply(prompt, 40).tokens
        accepted += reply.stats.from_model
    assert accepted > (60 if depth == 4 else 0)


def test_cancelled_at_any_cycle_it_goes_on_to_the_same_text():
    chance, session = random.Random(3), session_with_head()
    whole = plain_reply("abc" * 9, 60).text
    for _ in range(20):
        text, events = "abc" * 9, session.stream_complete("abc" * 9, **GREEDY, max_tokens=60, depth=4)
        cycles = 0
        for event in events:
            if isinstance(event, Cycle) and (cycles := cycles + 1) == chance.randint(1, 12):
                session.cancel()
        text = event.reply.text
        left = 60 - len(event.reply.tokens)
        if left:
            text += session.complete("abc" * 9 + text, **GREEDY, max_tokens=left, depth=4).text
        assert text == whole


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("depth", [3, None])
def test_its_sampled_text_has_the_law_of_the_target(rule, depth):
    table = CostTable((1, 2, 9), (1.0, 1.1, 1.5), {"model": 0.1})

    def strategy_of(world):
        def made(draft, rule, is_end):
            head = BlockHead(lambda hidden, newer: world.draft((*prompt, *newer[1:])))
            places = CostsByContext([table])
            control = DepthControl(places, head, AcceptanceModel(), (1, 2, 3))
            return Fixed(head, 3, rule) if depth else Arbiter(Company(places), [control], rule)

        return made

    prompt = PROMPT
    for world in map(World, range(2)):
        assert error(world, RULES[rule], strategy_of(world), 4) < EXACT
