"""Replies together against the same in turn, in simulation: real decisions and threads, passes at known prices.

    python -m benchmarks.simulate_together --texts FILE [--replies 2] [--rounds 12] [--seeds 3] [--pair NAME] [--best]

The texts are what the demo pair writes to the prompts of `benchmarks.server`, and where its draft agrees; FILE is made
at first use. Each round writes other texts, together and in turn. A ratio is the time together divided by the time in
turn. Both sides learn as a session does, from a cold start; the first round is left out.

`--best`: the least time of all orders of passes that share or not, with one depth for those that share. It knows what
the target accepts. In turn then has the best depth of each cycle, too, so the ratio says what the prices allow.
"""

import argparse
import json
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations, product
from math import inf
from pathlib import Path
from statistics import mean

import numpy as np

import localspec
from benchmarks.server.prompts import tasks
from benchmarks.simulated_pair import Text, accepted
from localspec import demo
from localspec.algorithm.batcher import Batcher
from localspec.algorithm.loop import speculate
from localspec.algorithm.pass_order import Part
from localspec.algorithm.protocols import Backlog, Drafter, Proposal, Rule, Stopping, Strategy, Verdict
from localspec.control.acceptance import AcceptanceModel
from localspec.control.concurrent import ConcurrentReplies
from localspec.control.costs import CostsByContext
from localspec.control.depth import DepthControl
from localspec.drafters.selection import DrafterSelection, Fixed
from localspec.events import Origin, Source
from localspec.loading.drafting import estimated_costs
from localspec.sampler.passes import ForwardPass

DEEPEST = 12
TEXTS, LENGTH = 40, 128
FIXED = (1, 2, 3, 5)


@dataclass(frozen=True, slots=True)
class Prices:
    """Milliseconds of passes by their tokens, as measured, or of a made-up machine: points of a line."""

    target: dict[int, float]
    draft: dict[int, float] = field(default_factory=dict)


def line(points: dict[int, float]) -> Callable[[int], float]:
    """The seconds of a pass by its tokens; after the last point its slope goes on."""
    widths = sorted(points)
    found = [points[width] / 1000 for width in widths]
    slope = (found[-1] - found[-2]) / (widths[-1] - widths[-2])
    return cache(lambda width: float(np.interp(width, widths, found)) + max(width - widths[-1], 0) * slope)


PAIRS = {
    "enlarged, one thread": Prices(
        {1: 84, 2: 141, 3: 146, 4: 156, 5: 162, 6: 165, 7: 187, 8: 229, 9: 203, 10: 249, 12: 270, 14: 286, 15: 308,
            16: 285, 18: 344, 20: 375, 24: 415, 28: 463, 32: 511, 36: 560, 48: 701},
        {1: 8.5, 2: 13.2, 3: 13.8, 4: 14.5, 6: 15.5, 8: 30, 9: 20, 16: 30, 32: 64},
    ),
    "qwen2.5-coder, two threads": Prices(
        {1: 26.2, 2: 51, 3: 67, 4: 81, 5: 103, 6: 113, 7: 127, 8: 128, 9: 138, 10: 148, 12: 155, 14: 176, 16: 148,
            18: 192, 20: 199, 24: 229, 32: 264, 48: 355},
        {1: 17, 2: 38, 3: 47, 4: 51, 6: 75, 8: 68, 9: 88, 16: 82, 32: 163},
    ),
    "qwen2.5-coder, one thread": Prices(
        {1: 39.5, 2: 76, 3: 107, 4: 136, 5: 170, 6: 200, 7: 225, 8: 250, 9: 270, 10: 295, 12: 315, 14: 360,
            16: 277, 18: 357, 20: 385, 24: 444, 32: 499, 48: 695},
        {1: 20.6, 2: 75, 3: 95, 4: 102, 6: 150, 8: 135, 9: 175, 16: 161, 32: 317},
    ),
    "SmolLM2, one thread": Prices(
        {1: 7.1, 2: 16.8, 3: 23.7, 4: 28.7, 5: 38.5, 6: 43, 8: 48, 10: 61, 12: 66, 16: 81, 24: 119, 32: 155, 48: 231}
    ),
    "SmolLM2, two threads": Prices(
        {1: 6.2, 2: 12.4, 3: 15, 4: 17.2, 5: 21.4, 6: 23.8, 8: 26.5, 10: 33, 12: 35, 16: 42.5, 24: 61.7, 32: 79,
            48: 116}
    ),
    "a device, kernels of 8": Prices({1: 30, 8: 34, 9: 54, 64: 75}, {1: 2.4, 8: 2.7, 64: 4}),
    "a device, smooth": Prices({1: 30, 64: 70}, {1: 2.4, 64: 4}),
    "a CPU, dear tokens": Prices({1: 30, 16: 230, 48: 660}, {1: 3, 16: 23}),
}  # fmt: skip


@dataclass(slots=True)
class Clock:
    random: random.Random
    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> float:
        seconds *= max(1 + self.random.gauss(0, NOISE), 0.5)
        self.now += seconds
        return seconds


NOISE = 0.03


class Priced:
    """A model whose passes take their price."""

    def __init__(self, clock: Clock, price: Callable[[int], float], slots: int) -> None:
        self.clock, self.price = clock, price
        self.busy, self.lengths = [0.0] * slots, [0] * slots

    def decode(self, parts: Sequence[Part]) -> list[ForwardPass]:
        width = len(parts) * max(len(part.tokens) for part in parts)  # all are padded to the widest
        seconds, found = self.clock.spend(self.price(width)), []
        for part in parts:
            self.busy[part.slot] += seconds
            start = self.lengths[part.slot]
            self.lengths[part.slot] += len(part.tokens)
            rows = (np.zeros(1, np.float32),) * part.rows
            found.append(ForwardPass(start, part.tokens, rows, pass_width=width if len(parts) > 1 else 0))
        return found


@dataclass(slots=True)
class PricedSlot:
    """A decoder of one slot."""

    model: Priced
    slot: int
    batcher: Batcher | None

    @property
    def length(self) -> int:
        return self.model.lengths[self.slot]

    @property
    def busy_seconds(self) -> float:
        return self.model.busy[self.slot]

    def decode(self, tokens: Sequence[int], rows: int) -> ForwardPass:
        part = Part(self.slot, tokens, rows)
        return self.batcher.decode(self.model, part) if self.batcher else self.model.decode([part])[0]

    def rollback(self, keep: int) -> None:
        self.model.lengths[self.slot] = keep


class Draft(Drafter):
    """A draft model that agrees with the target where the text says so."""

    source = Source.MODEL

    def __init__(self, decoder: PricedSlot) -> None:
        self.decoder, self.text, self.prompt, self.unread = decoder, Text((), ()), 0, 1

    @property
    def busy_seconds(self) -> float:
        return self.decoder.busy_seconds

    def model_runs(self, depth: int) -> int:
        return depth

    def begin(self) -> None:
        """Nothing fails here."""

    def observe(self, batch: ForwardPass, kept: int) -> None:
        self.unread = 2 if 1 < len(batch.tokens) == kept else 1  # it has not read its last token

    def backlog(self, tokens: Sequence[int]) -> Backlog:
        return Backlog()

    def propose(
        self, tokens: Sequence[int], limit: int, rule: Rule, stopping: Stopping | None = None
    ) -> Proposal:
        sure, drafted, drawn = self.text.confidence[len(tokens) - self.prompt :], 0, 0
        while drafted < min(limit, len(sure)):
            self.decoder.decode([1] * self.unread, 1)
            self.unread, drawn = 1, drawn + 1
            if stopping and not stopping.keeps(sure[drafted], drafted):
                break
            drafted += 1
            if drafted == limit or (stopping and not stopping.goes_on(drafted)):
                break
        return Proposal(
            (1,) * drafted, (None,) * drafted, sure[:drafted], self.source, depth=limit, runs=drawn
        )


@dataclass(slots=True)
class RecordedRule:
    """The rule that accepts what the text says."""

    text: Text
    prompt: int
    name: str = "recorded"

    def verify(self, rows: Sequence[object], proposal: Proposal, tokens: Sequence[int]) -> Verdict:
        at, drafted = len(tokens) - self.prompt, len(proposal.tokens)
        kept = accepted(self.text.agrees[at : at + drafted])
        return Verdict(
            kept, 1, Origin.PLAIN if not drafted else Origin.BONUS if kept == drafted else Origin.FIX
        )


Prompted = tuple[Text, int]  # a text, and the tokens of its prompt


class Side:
    """A session with some slots, which learns from reply to reply."""

    def __init__(self, prices: Prices, slots: int, seed: int, depth: int | None = None) -> None:
        """`depth`: fixed, or None for automatic."""
        self.clock, self.depth = Clock(random.Random(seed)), depth
        self.target = Priced(self.clock, line(prices.target), slots)
        self.batcher = Batcher(self.target, threading.Condition(), self.clock) if slots > 1 else None
        share = prices.draft[1] / prices.target[1] if prices.draft else 0.0
        costs = CostsByContext([estimated_costs("cpu", {Source.MODEL: share})])
        self.together = ConcurrentReplies(costs, lock=self.batcher.calling if self.batcher else nullcontext())
        draft = Priced(self.clock, line(prices.draft), slots) if prices.draft else None
        self.controls = [
            DepthControl(
                costs.costs, Draft(PricedSlot(draft, slot, self.batcher)), AcceptanceModel(), DEEPEST
            )
            for slot in range(slots if draft else 0)
        ]

    def write(self, texts: Sequence[Prompted]) -> float:
        """Return the seconds of these replies, as many at once as there are slots."""
        began = self.clock.now
        if self.batcher is None:
            for text in texts:
                self.reply(0, *text)
            return self.clock.now - began
        ends = [self.batcher.running(slot) for slot in range(len(texts))]
        for end in ends:  # all count as running from the beginning, so a seed has the same passes each time
            end.__enter__()

        def reply(slot: int) -> None:
            try:
                self.reply(slot, *texts[slot])
            finally:
                ends[slot].__exit__(None, None, None)

        with ThreadPoolExecutor(len(texts)) as pool:
            list(pool.map(reply, range(len(texts))))
        return self.clock.now - began

    def reply(self, slot: int, text: Text, prompt: int) -> None:
        target, rule = PricedSlot(self.target, slot, self.batcher), RecordedRule(text, prompt)
        controls = self.controls[slot : slot + 1]
        for control in controls:
            control.drafter.text, control.drafter.prompt, control.drafter.unread = text, prompt, 1
        strategy: Strategy = DrafterSelection(self.together, controls, rule)
        if self.depth is not None:
            strategy = Fixed(controls[0].drafter, self.depth, rule)
        target.rollback(0)
        target.decode([1] * (prompt - 1), 0)  # replies that begin together read whole prompts
        cycles = speculate(
            target,
            strategy,
            [1] * prompt,
            rule=rule,
            room=len(text.agrees),
            is_end=lambda _: False,
            clock=self.clock,
        )
        for _ in cycles:
            pass


def best(prices: Prices, texts: Sequence[Prompted], *, shared: bool) -> float:
    """Return the least seconds of all orders of passes; every acceptance is known. In turn, each text is for itself."""
    if not shared and len(texts) > 1:
        return sum(best(prices, [text], shared=True) for text in texts)
    target, draft = line(prices.target), line(prices.draft) if prices.draft else lambda width: 0.0
    agrees = [text.agrees for text, _ in texts]
    known: dict[tuple[int, ...], float] = {}
    for state in sorted(product(*(range(len(each) + 1) for each in agrees)), key=sum, reverse=True):
        known[state], left = inf, [i for i, at in enumerate(state) if at < len(agrees[i])]
        if not left:
            known[state] = 0.0
        for size in range(1, len(left) + 1):
            for group, depth in product(combinations(left, size), range(DEEPEST + 1 if prices.draft else 1)):
                then = list(state)
                for i in group:
                    kept = accepted(agrees[i][state[i] : state[i] + depth])
                    then[i] = min(state[i] + kept + 1, len(agrees[i]))
                seconds = target(size * (depth + 1)) + depth * draft(size)
                known[state] = min(known[state], seconds + known[tuple(then)])
    return sum(target(prompt - 1) for _, prompt in texts) + known[(0,) * len(texts)]


def recorded(path: Path) -> list[Prompted]:
    if not path.exists():
        path.write_text(json.dumps([written(task.text) for task in tasks(TEXTS // 5)]))
    found = json.loads(path.read_text())
    return [(Text(tuple(one["agrees"]), tuple(one["confidence"])), one["prompt"]) for one in found]


@cache
def demo_session() -> localspec.Session:
    return localspec.load(target=demo.target_path(), draft=demo.draft_path(), threads=1, gpu_layers=0)


def written(prompt: str) -> dict[str, object]:
    """Where the demo pair's draft agrees with its target, greedily and without an end."""
    pair = demo_session().pair
    models, words = [pair.target, pair.drafters[0].decoder], pair.vocabulary
    ends = [token for token in range(words.size) if words.is_end(token)]
    tokens, agrees, confidence = words.tokenize(prompt, parse_special=True), [], []
    last = list(tokens)
    for model in models:
        model.rollback(0)
    for _ in range(LENGTH):
        own, guess = (np.array(model.decode(last, 1).rows[0], np.float64) for model in models)
        own[ends] = guess[ends] = -inf
        agrees.append(bool(own.argmax() == guess.argmax()))
        confidence.append(float(1 / np.exp(guess - guess.max()).sum()))
        last = [int(own.argmax())]
    return {"prompt": len(tokens), "agrees": agrees, "confidence": confidence}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--pair", default="", help="the beginning of its name")
    parser.add_argument("--best", action="store_true")
    for name, usual in (("replies", 2), ("rounds", 12), ("seeds", 3), ("tokens", 64)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    options = parser.parse_args()
    texts = [
        (Text(text.agrees[: options.tokens], text.confidence[: options.tokens]), prompt)
        for text, prompt in recorded(options.texts)
    ]
    print(f"{'':28}{'auto':>7}{'worst':>7}" + "".join(f"{f'depth {depth}':>9}" for depth in FIXED))
    for name, prices in PAIRS.items():
        if not name.startswith(options.pair):
            continue
        ratios: dict[str, list[float]] = {}
        for seed in range(options.seeds):
            for each, found in simulate(prices, texts, seed, options).items():
                ratios.setdefault(each, []).extend(found)
        bound = ratios.pop("best", None)
        cells = [mean(ratios["auto"]), max(ratios["auto"])]
        print(f"{name:28}" + "".join(f"{cell:7.3f}" for cell in cells), end="")
        print("".join(f"{mean(ratios[str(depth)]):9.3f}" for depth in FIXED if str(depth) in ratios), end="")
        print(f"  the prices allow {mean(bound):.3f}" if bound else "", flush=True)


def simulate(
    prices: Prices, texts: Sequence[Prompted], seed: int, options: argparse.Namespace
) -> dict[str, list[float]]:
    """Return the ratios of all rounds but the first, by kind."""
    order, count = list(texts), options.replies
    if seed:
        random.Random(seed).shuffle(order)
    sides = {"auto": Side(prices, count, seed)}
    sides |= {str(depth): Side(prices, count, seed, depth) for depth in FIXED if prices.draft}
    alone, found = Side(prices, 1, seed), dict[str, list[float]]()
    for turn in range(options.rounds + 1):
        now = [order[(turn * count + i) % len(order)] for i in range(count)]
        seconds = alone.write(now)
        for name, side in sides.items():
            found.setdefault(name, []).append(side.write(now) / seconds)
        if options.best and turn < 4:
            allowed = best(prices, now, shared=True) / best(prices, now, shared=False)
            found.setdefault("best", [1.0]).append(allowed)
    return {name: each[1:] for name, each in found.items()}


if __name__ == "__main__":
    main()
