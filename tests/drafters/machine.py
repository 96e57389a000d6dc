"""A simulated machine for the selection: every cycle costs what a table says, with or without noise."""

import random

from localspec.algorithm.protocols import Backlog, Proposal
from localspec.control.acceptance import AcceptanceModel
from localspec.control.concurrent import ConcurrentReplies
from localspec.control.costs import CostsByContext
from localspec.control.depth import DepthControl
from localspec.drafters.selection import DrafterSelection
from localspec.events import Cycle, Origin, Source


class Machine:
    """Turns the proposals of its own drafter into cycles; counts true time.

    `agrees(position)`: would the draft have guessed it. `reading`: seconds to read a token of the text.
    """

    source = Source.MODEL
    hidden_rows_needed = failure = None

    def __init__(
        self,
        verify,
        draft_step,
        agrees,
        *,
        noise=0.0,
        seed=0,
        confidence=lambda position: 0.8,
        reading=0.0,
        text=0,
    ):
        self.verify = verify
        self.draft_step = draft_step
        self.agrees = agrees
        self.confidence = confidence
        self.noise = noise
        self.random = random.Random(seed)
        self.prefill_seconds = reading
        self.first = self.held_to = 0  # what the drafter has read of the text
        self.before = text  # tokens of the text before position 0
        self.position = 0
        self.seconds = self.plain_seconds = 0.0
        self.busy_seconds = 0.0
        self.stalls = []  # seconds of each piece of reading

    def model_runs(self, depth):
        return depth

    def begin(self):
        pass

    def observe(self, batch, kept):
        pass

    def backlog(self, tokens):
        unread = len(tokens) - 1 - self.held_to
        held = self.held_to - self.first
        return Backlog(unread if unread > 8 else 0, held, self.first) if self.prefill_seconds else Backlog()

    def read(self, tokens, most):
        count = min(most, len(tokens) - 1 - self.held_to)
        self.held_to += count
        self.busy_seconds += count * self.prefill_seconds
        self.stalls.append(count * self.prefill_seconds)
        return count

    def restart(self, tokens, window):
        self.first = self.held_to = len(tokens) - 1 - window

    def propose(self, tokens, limit, rule, stopping=None):
        sure = [self.confidence(self.position + i) for i in range(limit)]
        drafted, drawn = propose(stopping, sure) if stopping else (limit, limit)
        self.busy_seconds += drawn * self.draft_step
        self.held_to = len(tokens) - 1
        return Proposal(
            (1,) * drafted, (None,) * drafted, tuple(sure[:drafted]), Source.MODEL, depth=limit, runs=drawn
        )

    def selection(self, table, most, control=None, places=None):
        places = places or CostsByContext([table])
        control = control or DepthControl(places.costs, self, AcceptanceModel(), most)
        control.drafter = self
        return DrafterSelection(ConcurrentReplies(places), [control], rule=None)

    def step(self, selection, room=10**6):
        """A cycle as the selection wants it, which it learns from."""
        busy = self.busy_seconds
        proposal = selection.propose(range(self.before + self.position + 1), room)
        cycle = self.cycle(proposal, self.busy_seconds - busy)
        selection.learn(cycle)
        return cycle

    def cycle(self, proposal, draft_seconds=0.0):
        drafted, kept = len(proposal.tokens), 0
        while kept < drafted and self.agrees(self.position + kept):
            kept += 1
        verify = self.verify(drafted + 1)
        self.seconds += verify + draft_seconds
        self.plain_seconds += (kept + 1) * self.verify(1)
        if drafted:
            self.held_to = self.before + self.position + min(kept + 1, drafted)
        self.position += kept + 1
        factor = max(1 + self.random.gauss(0, self.noise), 0.3)
        return cycle_of(proposal, kept, verify=verify * factor, draft=draft_seconds * factor)


def propose(stopping, confidences):
    """How many tokens of such confidences a drafter would propose, and how many it would draw for that."""
    for drafted, confidence in enumerate(confidences):
        if not stopping.keeps(confidence, drafted):
            return drafted, drafted + 1
        if not stopping.goes_on(drafted + 1):
            return drafted + 1, drafted + 1
    return len(confidences), len(confidences)


def cycle_of(proposal, kept, *, verify=1.0, draft=0.0, replies=1, running=0, pass_width=0):
    drafted = len(proposal.tokens)
    last = Origin.PLAIN if not drafted else Origin.BONUS if kept == drafted else Origin.FIX
    return Cycle(
        tokens=(1,) * (kept + 1),
        origins=(Origin.ACCEPTED,) * kept + (last,),
        proposal=proposal.tokens,
        accepted=kept,
        depth=proposal.depth,
        source=proposal.source if drafted else Source.PLAIN,
        width=drafted + 1,
        draft_seconds=draft,
        verify_seconds=verify,
        other_seconds=0.0,
        mode=proposal.mode,
        replies=replies,
        running=running or replies,
        pass_width=pass_width,
    )
