"""Depths of replies that share passes, against the best fixed depths in hindsight and plain decoding, simulated.

    python -m benchmarks.shared_depths [--seeds N] [--passes N]

1, 2 and 4 replies of code, prose or both on the cost curves of a GPU with a cliff, a smooth one and a CPU, all on
the same recorded draws and simulated time. A run lasts as long as a number of plain passes; its result is tokens.
Hindsight knows the draws: for 1 and 2 replies it tries every combination of the depths 0 to 12, for 4 every depth of
all and 200 random mixtures. Clocks have 6 % noise and 1 % of rounds take four times as long.
"""

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import mean

from benchmarks.controller.engine import ANY_RULE, Noise, SimulatedDrafter, accepted, cycle_of, noisy
from benchmarks.controller.worlds import Curve, Process, Text, make_text
from localspec.control.acceptance import AcceptanceModel
from localspec.control.company import Company
from localspec.control.cost_table import CostTable
from localspec.control.costs import CostsByContext
from localspec.control.depth import DepthControl
from localspec.drafters.arbiter import Arbiter
from localspec.sampler.passes import Pass

PLAIN_SECONDS = 0.03  # a plain step of one reply
STEP = 0.08  # of it: a draft step
DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)
HINDSIGHT = range(13)
MIXTURES = 200
FIXED = (1, 2, 3, 5)
SPREAD = 3.0  # a + b of the Beta distribution of chances
NOISE = Noise()
DOUBT = 0.7  # noise of the confidence, on the logit


def cliff(width: int) -> float:
    return 1 + 0.07 * (width - 1) if width <= 8 else 2.6 + 0.01 * (width - 9)


CURVES: dict[str, Callable[[int], float]] = {
    "cliff": cliff,
    "smooth": lambda width: 1 + 0.04 * (width - 1),
    "CPU": lambda width: 1 + 0.45 * (width - 1),
}
TEXTS: dict[str, tuple[float, ...]] = {
    "code": (0.9,),
    "prose": (0.6,),
    "mix": (0.9, 0.6),
}  # mean chances, in turn


def beta(chance: float) -> Process:
    a, b = SPREAD * chance, SPREAD * (1 - chance)
    return lambda rng, n: [rng.betavariate(a, b) for _ in range(n)]


def texts_of(kind: str, replies: int, length: int, seed: int) -> list[Text]:
    chances = TEXTS[kind]
    return [
        make_text(beta(chances[i % len(chances)]), length, random.Random(f"{kind}{i}{seed}"), DOUBT)
        for i in range(replies)
    ]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Tokens of each reply in the time of a run."""

    tokens: tuple[int, ...]

    @property
    def all(self) -> int:
        return sum(self.tokens)


def written(text: Text, depth: int, rounds: int) -> list[int]:
    """Tokens after 0, 1, ... rounds at a fixed depth."""
    found = [0]
    for _ in range(rounds):
        at = found[-1]
        found.append(at + accepted(text.agrees[at : at + depth]) + 1)
    return found


def whole(widths: Sequence[int]) -> int:
    """Tokens of a pass, which fills batches of these widths up to the widest."""
    return max(widths) * len(widths)


class Fixed:
    """What every fixed choice of depths brings, from the draws alone."""

    def __init__(self, verify: Callable[[int], float], texts: Sequence[Text], passes: int) -> None:
        self._verify = verify
        self._seconds = passes * verify(len(texts))
        self._written = [[written(text, depth, passes) for depth in HINDSIGHT] for text in texts]

    def outcome(self, depths: Sequence[int]) -> Outcome:
        seconds = STEP * max(depths) + self._verify(whole([1 + depth for depth in depths]))
        rounds = int(self._seconds / seconds)
        return Outcome(tuple(of[depth][rounds] for of, depth in zip(self._written, depths, strict=True)))

    def best(self, rng: random.Random, least: float = 0.0) -> Outcome:
        """The most tokens of all, where each reply writes as many as `least`."""
        replies = len(self._written)
        tried = list(product(HINDSIGHT, repeat=replies)) if replies < 3 else []
        if not tried:
            tried = [(depth,) * replies for depth in HINDSIGHT]
            tried += [tuple(rng.choices(HINDSIGHT, k=replies)) for _ in range(MIXTURES)]
        found = [outcome for outcome in map(self.outcome, tried) if min(outcome.tokens) >= least]
        return max(found, key=lambda outcome: outcome.all)


def automatic(
    verify: Callable[[int], float],
    texts: Sequence[Text],
    passes: int,
    seed: int,
    *,
    noise: Noise = NOISE,
    watch: Callable[..., None] | None = None,
) -> Outcome:
    """The user's strategies, each of its own reply, in one company that knows what one reply's passes cost."""
    rng, replies = random.Random(seed), len(texts)
    curve = Curve(
        "", lambda width: PLAIN_SECONDS * verify(width), lambda k: PLAIN_SECONDS * STEP * k, 0.0, DEPTHS
    )
    widths = (*range(1, 17), 32)
    table = CostTable(widths, tuple(map(curve.verify, widths)), {"model": curve.draft(1)})
    places = CostsByContext([table])
    company = Company(places)
    drafters = [SimulatedDrafter(curve, text, 0, 0.0) for text in texts]
    seats = [
        Arbiter(company, [DepthControl(places, drafter, AcceptanceModel(), DEPTHS)], ANY_RULE)
        for drafter in drafters
    ]
    at, left = [0] * replies, passes * curve.verify(replies)
    order = list(range(replies))
    while True:
        rng.shuffle(order)  # of their threads
        proposals = {}
        for i in order:
            busy = drafters[i].busy_seconds
            proposal = seats[i].propose(range(at[i] + 1), DEPTHS[-1])
            proposals[i] = proposal, drafters[i].busy_seconds - busy
        width = whole([1 + len(proposal.tokens) for proposal, _ in proposals.values()])
        drafting = max(seconds for _, seconds in proposals.values())
        verify_seconds = curve.verify(width)
        left -= drafting + verify_seconds
        if left < 0:
            return Outcome(tuple(at))
        if watch:
            watch(
                [len(proposals[i][0].tokens) for i in range(replies)],
                [proposals[i][0].mode for i in range(replies)],
            )
        clock = random.Random(rng.random())
        for i in order:
            proposal, seconds = proposals[i]
            kept = accepted(texts[i].agrees[at[i] : at[i] + len(proposal.tokens)])
            seats[i].observe(Pass(at[i], (0, *proposal.tokens)), kept + 1)
            cycle = cycle_of(
                proposal,
                (1,) * (kept + 1),
                verify_seconds=verify_seconds,
                draft_seconds=seconds,
                other_seconds=drafting - seconds,
            )
            cycle = replace(noisy(cycle, clock, noise), replies=replies, pass_width=width)
            seats[i].learn(cycle)
            at[i] += kept + 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--passes", type=int, default=600, help="length of a run, in plain passes")
    options = parser.parse_args()
    print(
        "tokens in the time of plain decoding with as many replies; of the best fixed depths; of the fair ones"
    )
    columns = (
        "auto",
        "least",
        "slowest",
        "of best",
        "least",
        "of fair",
        *(f"depth {d}" for d in FIXED),
        "in turn",
    )
    print(f"{'':20}" + "".join(f"{column:>9}" for column in columns))
    for (name, verify), kind, replies in product(CURVES.items(), TEXTS, (1, 2, 4)):
        if kind == "mix" and replies == 1:
            continue
        rows = [row(verify, kind, replies, options.passes, seed) for seed in range(options.seeds)]
        means, least = ([each(column) for column in zip(*rows, strict=True)] for each in (mean, min))
        cells = (means[0], least[0], least[1], means[2], least[2], *means[3:])
        print(f"{name:8}{kind:7}{replies:5}" + "".join(f"{cell:9.3f}" for cell in cells), flush=True)


def row(verify: Callable[[int], float], kind: str, replies: int, passes: int, seed: int) -> tuple[float, ...]:
    """Speed of all and of the slowest reply / plain, shares of the best and the fair best, and other ways."""
    texts, plain = texts_of(kind, replies, 26 * passes, seed), replies * passes
    auto = automatic(verify, texts, passes, seed)
    fixed = Fixed(verify, texts, passes)
    best, fair = (fixed.best(random.Random(seed), share * passes).all for share in (0.0, 0.9))
    together = verify(replies) / verify(1) / replies  # of a plain token, in plain steps of a reply alone
    turns = [automatic(verify, [text], passes, seed).all / passes * together for text in texts]
    return (
        auto.all / plain,
        min(auto.tokens) / passes,
        auto.all / best,
        auto.all / fair,
        *(fixed.outcome((depth,) * replies).all / plain for depth in FIXED),
        len(turns) / sum(1 / turn for turn in turns),
    )


if __name__ == "__main__":
    main()
