"""Two replies choose their depths together, and the distribution of both texts is that of two plain decodings.

Everything that decides is the production code: the selection, the company, the stopper, the loop's parts.
"""

from itertools import product

import pytest

from localspec.algorithm.loop import emit
from localspec.control.acceptance import AcceptanceModel, ChanceWeights
from localspec.control.concurrent import ConcurrentReplies
from localspec.control.costs import CostsByContext, CostTable
from localspec.control.depth import DepthControl
from localspec.drafters.model import ModelDrafter
from localspec.drafters.selection import DrafterSelection
from localspec.sampler.chain import Chain
from tests.algorithm.enumeration import Forks, distance, distribution_of
from tests.algorithm.random_pairs import OPEN, PROMPT, RULES, World, plain_distribution
from tests.drafters.machine import cycle_of
from tests.drafters.test_lossless import CAUGHT, EXACT, Side, never

TABLE = CostTable((1, 2, 3, 4, 5, 12), (1.0, 1.02, 1.04, 1.06, 1.5, 1.6), {"model": 0.02})
LENGTH = 3


class Own(Forks):
    """The noise of one of several replies."""

    def __init__(self, forks, who):
        self.forks, self.who = forks, who

    def _fork(self, key, cells):
        return self.forks._fork((self.who, *key), cells)


class Reply:
    """One reply of a company, between its passes."""

    def __init__(self, world, rule, company, who):
        self.target = Side(world.target, TABLE.verify)
        draft = Side(world.draft, lambda width: TABLE.run_seconds["model"])
        self.target.tokens += PROMPT[:-1]
        self.tokens, self.rule = list(PROMPT), rule
        doubted = ChanceWeights((-3.0, 0.5, 1.5), (0.01, 0.01, 0.01))
        control = DepthControl(company.buckets.costs, ModelDrafter(draft, never), AcceptanceModel(doubted), 2)
        self.selection = DrafterSelection(company, [control], rule)

    def propose(self):
        self.busy = self.selection.busy_seconds
        room = LENGTH + len(PROMPT) - len(self.tokens)
        self.proposal = self.selection.propose(self.tokens, room - 1)

    def verify(self, replies, pass_width):
        drafted = self.proposal.tokens
        batch = self.target.decode([self.tokens[-1], *drafted], rows=len(drafted) + 1)
        emitted, _ = emit(self.proposal, self.rule.verify(batch.rows, self.proposal, self.tokens), never)
        self.tokens += emitted
        self.target.rollback(len(self.tokens) - 1)
        self.selection.observe(batch, kept=self.target.length - batch.start)
        drafting = self.selection.busy_seconds - self.busy
        cycle = cycle_of(
            self.proposal,
            len(emitted) - 1,
            verify=TABLE.verify(pass_width),
            draft=drafting,
            replies=replies,
            pass_width=pass_width,
        )
        self.selection.learn(cycle)

    @property
    def runs(self):
        return len(self.tokens) < LENGTH + len(PROMPT)


def texts(world, make_rule, noise, seen, cut):
    """Both texts; the replies take turns to propose first."""
    company = ConcurrentReplies(CostsByContext([TABLE]))
    replies = [Reply(world, make_rule(Chain(OPEN), Own(noise, who)), company, who) for who in range(2)]
    order = list(replies)
    while running := [reply for reply in order if reply.runs]:
        for reply in running:
            reply.propose()
            reply.proposal = cut(reply.proposal)
        widths = [1 + len(r.proposal.tokens) for r in running]
        width = max(widths) * len(widths)
        seen.add(tuple(len(reply.proposal.tokens) for reply in running))
        for reply in running:
            reply.verify(len(running), width)
        order.reverse()
    return tuple(tuple(reply.tokens[len(PROMPT) :]) for reply in replies)


def error(world, rule, *, seen=None, cut=lambda proposal: proposal):
    seen = set() if seen is None else seen
    plain = plain_distribution(world, OPEN, LENGTH)
    both = {(one, other): plain[one] * plain[other] for one, other in product(plain, plain)}
    return distance(distribution_of(lambda noise: texts(world, RULES[rule], noise, seen, cut)), both)


@pytest.mark.parametrize("rule", RULES)
def test_the_joint_choice_of_depths_biases_nothing(rule):
    seen = set()
    for seed in range(3):
        assert error(World(seed, symbols=2), rule, seen=seen) < EXACT
    assert {(1, 1), (0, 0)} < seen, "nothing was tried"


def test_a_choice_that_looks_at_tokens_is_caught():
    def cut(proposal):
        likely = [q.of(token) > 0.5 for q, token in zip(proposal.q, proposal.tokens, strict=True)]
        return proposal.first(sum(likely))

    assert max(error(World(seed, symbols=2), "block", cut=cut) for seed in range(3)) > CAUGHT
