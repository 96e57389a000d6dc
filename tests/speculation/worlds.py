"""A simulated machine for depth controllers: every cycle costs what a table says, with or without noise."""

import random

from localspec.events import Cycle, Mode, Origin, Source


class Machine:
    """Turns plans into cycles; counts true time. `agrees(position)`: would the draft have guessed it."""

    def __init__(self, verify, draft_step, agrees, *, noise=0.0, seed=0, confidence=lambda position: 0.8):
        self.verify = verify
        self.draft_step = draft_step
        self.agrees = agrees
        self.confidence = confidence
        self.noise = noise
        self.random = random.Random(seed)
        self.position = 0
        self.seconds = 0.0
        self.plain_seconds = 0.0

    def step(self, auto, room=10**6):
        """A cycle as the controller wants it, which it learns from."""
        plan = auto.plan(room)
        sure = [self.confidence(self.position + i) for i in range(plan.depth)]
        drafted, drawn = propose(auto.stopping(plan), sure) if plan.depth else (0, 0)
        cycle = self.cycle(plan.depth, plan.mode, drafted, drawn)
        auto.learn(cycle, tuple(sure[:drafted]))
        return cycle

    def cycle(self, depth, mode, drafted, drawn):
        kept = 0
        while kept < drafted and self.agrees(self.position + kept):
            kept += 1
        verify, draft = self.verify(drafted + 1), self.draft_step * drawn
        self.seconds += verify + draft
        self.plain_seconds += (kept + 1) * self.verify(1)
        self.position += kept + 1
        factor = max(1 + self.random.gauss(0, self.noise), 0.3)
        verify, draft = verify * factor, draft * factor
        return cycle_of(depth, kept, mode=mode, verify=verify, draft=draft, drafted=drafted)


def propose(stopping, confidences):
    """How many tokens of such confidences a drafter would propose, and how many it would draw for that."""
    for drafted, confidence in enumerate(confidences):
        if not stopping.keeps(confidence, drafted):
            return drafted, drafted + 1
        if not stopping.goes_on(drafted + 1):
            return drafted + 1, drafted + 1
    return len(confidences), len(confidences)


def cycle_of(depth, kept, *, mode=Mode.DRAFTING, verify=1.0, draft=0.0, source=Source.MODEL, drafted=None):
    drafted = depth if drafted is None else drafted
    last = Origin.PLAIN if not drafted else Origin.BONUS if kept == drafted else Origin.FIX
    return Cycle(
        tokens=(1,) * (kept + 1),
        origins=(Origin.ACCEPTED,) * kept + (last,),
        proposal=(1,) * drafted,
        accepted=kept,
        depth=depth,
        source=source if drafted else Source.PLAIN,
        width=drafted + 1,
        draft_seconds=draft,
        verify_seconds=verify,
        other_seconds=0.0,
        mode=mode,
    )
