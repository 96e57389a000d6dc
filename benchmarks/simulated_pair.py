"""A simulated pair on a virtual clock: cost curves, texts, the draft, and passes that replies share."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from localspec.algorithm.protocols import Backlog, Proposal, Rule, Stopping, Strategy
from localspec.algorithm.verification import make_rule
from localspec.control.concurrent import ConcurrentReplies
from localspec.control.costs import CostsByContext
from localspec.control.depth import DepthControl
from localspec.drafters.model import AT_ONCE
from localspec.drafters.selection import DrafterSelection
from localspec.events import Cycle, Origin, Source
from localspec.sampler.passes import ForwardPass
from localspec.sampler.sampling import Sampling

ANY_RULE = make_rule("greedy", Sampling(temperature=0.0), 0)
PLAIN_SECONDS = 0.03  # a plain step of one reply
DOUBT = 0.7  # noise of the draft's confidence, on the logit


@dataclass(frozen=True, slots=True)
class Curve:
    """Costs in plain steps."""

    name: str
    verify: Callable[[int], float]  # by batch width
    draft: Callable[[int], float]  # by depth
    overhead: float  # per drafting cycle
    depths: tuple[int, ...]


def _gpu(width: int) -> float:
    return (1 + 0.02 * (width - 1)) * (1.8 if width > 8 else 1.0)


CURVES = (
    Curve("GPU, cliff at 8", _gpu, lambda k: 0.08 * k, 0.02, tuple(range(1, 13))),
    Curve("heavy draft", _gpu, lambda k: 0.30 * k, 0.02, tuple(range(1, 13))),
    Curve("CPU, 0.3 per token", lambda n: 1 + 0.3 * (n - 1), lambda k: 0.10 * k, 0.01, tuple(range(1, 13))),
    Curve(
        "MoE", lambda n: 1 + 1.6 * (1 - math.exp(-(n - 1) / 5)), lambda k: 0.06 * k, 0.02, tuple(range(1, 13))
    ),
    Curve("MTP", lambda n: 1 + 0.03 * (n - 1), lambda k: 0.03 + 0.05 * k, 0.02, tuple(range(1, 9))),
    Curve("n-gram", lambda n: 1 + 0.06 * (n - 1), lambda k: 0.0, 0.01, tuple(range(1, 17))),
)


@dataclass(frozen=True, slots=True)
class Text:
    """For each position of a text: would the draft have guessed it, and how sure was the draft."""

    agrees: tuple[bool, ...]
    confidence: tuple[float, ...]


Process = Callable[[random.Random, int], list[float]]  # the chance of agreement at each position


def iid(rate: float) -> Process:
    return lambda rng, n: [rate] * n


def switching(rng: random.Random, n: int) -> list[float]:
    """Stretches of about 60 tokens at 0.2 and at 0.9."""
    rates, rate = [], rng.choice((0.2, 0.9))
    for _ in range(n):
        if rng.random() < 1 / 60:
            rate = 1.1 - rate
        rates.append(rate)
    return rates


def drifting(rng: random.Random, n: int) -> list[float]:
    """Difficulty is an autoregressive process on the logit."""
    rates, logit = [], 1.0
    for _ in range(n):
        logit = 1.0 + 0.9 * (logit - 1.0) + rng.gauss(0, 0.8)
        rates.append(1 / (1 + math.exp(-logit)))
    return rates


def bait(rng: random.Random, n: int) -> list[float]:
    """Adversarial: perfect for long enough to be believed, then nothing."""
    return [0.97 if (i // 40) % 3 == 0 else 0.0 for i in range(n)]


PROCESSES: dict[str, Process] = {
    "iid 0": iid(0.0),
    "iid 0.3": iid(0.3),
    "iid 0.5": iid(0.5),
    "iid 0.7": iid(0.7),
    "iid 0.85": iid(0.85),
    "iid 0.95": iid(0.95),
    "switching 0.2/0.9": switching,
    "drifting": drifting,
    "bait": bait,
}


def make_text(process: Process, n: int, rng: random.Random, noise: float) -> Text:
    """`noise`: standard deviation, on the logit, of what the draft believes about its own chance."""
    rates = process(rng, n)
    agrees = tuple(rng.random() < rate for rate in rates)
    believed = tuple(_sigmoid(_logit(rate) + rng.gauss(0, noise)) for rate in rates)
    return Text(agrees, believed)


def _logit(p: float) -> float:
    p = min(max(p, 1e-3), 1 - 1e-3)
    return math.log(p / (1 - p))


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


class OneRunAToken:
    """What a depth control asks of a draft model."""

    source = Source.MODEL

    def model_runs(self, depth: int) -> int:
        return depth


class SimulatedDrafter:
    """A draft model whose guesses are a text's and whose time is a curve's; reading costs `reading` a token."""

    source = Source.MODEL
    hidden_rows_needed = failure = None

    def __init__(self, curve: Curve, text: Text, unread: int, reading: float) -> None:
        """`unread`: tokens of the prompt before the text."""
        self._curve = curve
        self._text = text
        self._reading = reading
        self._first = self._next = 0 if reading else unread  # what it has read of prompt and text
        self._prompt = unread
        self.busy_seconds = 0.0

    def model_runs(self, depth: int) -> int:
        return depth

    def begin(self) -> None:
        """Nothing fails here."""

    def observe(self, batch: ForwardPass, kept: int) -> None:
        """Of its own proposal it has read all but the last token."""
        if batch.tokens:
            self._next = min(self._next, batch.start + kept)

    def backlog(self, tokens: Sequence[int]) -> Backlog:
        unread, older = len(tokens) - 1 - self._next, self._first
        held = self._next - self._first
        return Backlog(unread if unread > AT_ONCE else 0, held, older if older > AT_ONCE else 0)

    def read(self, tokens: Sequence[int], most: int) -> int:
        count = min(most, len(tokens) - 1 - self._next)
        self._next += count
        self.busy_seconds += count * self._reading
        return count

    def restart(self, tokens: Sequence[int], window: int) -> None:
        self._first = self._next = len(tokens) - 1 - window

    def propose(
        self, tokens: Sequence[int], limit: int, rule: Rule, stopping: Stopping | None = None
    ) -> Proposal:
        sure = self._text.confidence[len(tokens) - 1 - self._prompt :]
        drafted = drawn = 0
        while drafted < limit:
            drawn = drafted + 1
            if stopping and not stopping.keeps(sure[drafted], drafted):
                break
            drafted += 1
            if stopping and not stopping.goes_on(drafted):
                break
        self.busy_seconds += self._curve.draft(drawn) if drawn else 0.0
        self._next = len(tokens) - 1 + max(drawn, 1)
        return Proposal(
            (1,) * drafted, (None,) * drafted, sure[:drafted], Source.MODEL, depth=limit, runs=drawn
        )


def accepted(agrees: Sequence[bool]) -> int:
    """How many draft tokens are kept, by whether each is what the target says."""
    return next((i for i, agreed in enumerate(agrees) if not agreed), len(agrees))


def cycle_of(
    proposal: Proposal,
    tokens: tuple[int, ...],
    *,
    verify_seconds: float,
    draft_seconds: float = 0.0,
    other_seconds: float = 0.0,
) -> Cycle:
    """A cycle that brought these tokens."""
    drafted, kept = len(proposal.tokens), len(tokens) - 1
    last = Origin.PLAIN if not drafted else Origin.BONUS if kept == drafted else Origin.FIX
    return Cycle(
        tokens=tokens,
        origins=(Origin.ACCEPTED,) * kept + (last,),
        proposal=proposal.tokens,
        accepted=kept,
        depth=proposal.depth,
        source=proposal.source if drafted else Source.PLAIN,
        width=drafted + 1,
        draft_seconds=draft_seconds,
        verify_seconds=verify_seconds,
        other_seconds=other_seconds,
        mode=proposal.mode,
        prefill_seconds=proposal.prefill_seconds,
    )


def noisy(cycle: Cycle, rng: random.Random) -> Cycle:
    """The cycle as a clock shows it: with 6 % noise, and one in a hundred far too long."""
    factor = max(1 + rng.gauss(0, 0.06), 0.5)
    if rng.random() < 0.01:
        factor *= 4.0
    return replace(
        cycle,
        draft_seconds=factor * cycle.draft_seconds,
        verify_seconds=factor * cycle.verify_seconds,
        other_seconds=factor * cycle.other_seconds,
        prefill_seconds=factor * cycle.prefill_seconds,
    )


class Reply(Protocol):
    """A simulated reply: its strategy, its text, and the target's verdicts."""

    strategy: Strategy

    @property
    def tokens(self) -> Sequence[int]: ...

    @property
    def left(self) -> int: ...

    def judge(self, proposal: Proposal) -> tuple[int, ...]:
        """The tokens that a pass with this proposal adds."""

    def write(self, tokens: tuple[int, ...]) -> None: ...


@dataclass(slots=True)
class Recorded:
    """A reply on the draws of a text, after a prompt of `unread` tokens."""

    text: Text
    strategy: Strategy
    unread: int = 0
    at: int = 0

    @property
    def tokens(self) -> range:
        return range(self.unread + self.at + 1)

    @property
    def left(self) -> int:
        return len(self.text.agrees) - self.at

    def judge(self, proposal: Proposal) -> tuple[int, ...]:
        return (1,) * (1 + accepted(self.text.agrees[self.at : self.at + len(proposal.tokens)]))

    def write(self, tokens: tuple[int, ...]) -> None:
        self.at += len(tokens)


def recorded(
    curve: Curve,
    texts: Sequence[Text],
    places: CostsByContext,
    controls: Sequence[DepthControl],
    *,
    unread: int = 0,
    reading: float = 0.0,
) -> list[Recorded]:
    """Replies with automatic depth; each draft has a prompt of `unread` tokens to read."""
    together = ConcurrentReplies(places)
    for control, text in zip(controls, texts, strict=True):
        control.drafter = SimulatedDrafter(curve, text, unread, reading)
    return [
        Recorded(text, DrafterSelection(together, [control], ANY_RULE), unread)
        for control, text in zip(controls, texts, strict=True)
    ]


def passes(
    replies: Sequence[Reply],
    verify: Callable[[int], float],
    rng: random.Random | None = None,
    overhead: float = 0.0,
) -> Iterator[list[Cycle]]:
    """The true cycles of replies that share passes; with `rng` they learn from noisy ones. The caller ends the run."""
    count = len(replies)
    order = list(range(count))
    while True:
        if rng:
            rng.shuffle(order)  # threads come in any order
        proposals, seconds = [Proposal()] * count, [0.0] * count
        for i in order:
            reply, busy = replies[i], replies[i].strategy.busy_seconds
            proposals[i] = reply.strategy.propose(reply.tokens, reply.left - 1)
            seconds[i] = reply.strategy.busy_seconds - busy
        width = whole([1 + len(proposal.tokens) for proposal in proposals])
        cycles = list[Cycle]()
        for i, proposal in enumerate(proposals):
            cycle = cycle_of(
                proposal,
                replies[i].judge(proposal),
                draft_seconds=seconds[i],
                verify_seconds=verify(width),
                other_seconds=overhead if seconds[i] else 0.0,
            )
            cycles.append(replace(cycle, replies=count, running=count, pass_width=width))
        yield cycles
        for i in order:
            reply, cycle = replies[i], cycles[i]
            batch = ForwardPass(len(reply.tokens) - 1, (reply.tokens[-1], *proposals[i].tokens))
            reply.strategy.observe(batch, len(cycle.tokens))
            reply.strategy.learn(noisy(cycle, rng) if rng else cycle)
            reply.write(cycle.tokens)


def whole(widths: Sequence[int]) -> int:
    """Tokens of a pass, which fills batches of these widths up to the widest."""
    return max(widths) * len(widths)
