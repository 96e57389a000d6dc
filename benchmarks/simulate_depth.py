"""The depth controller in simulation, against the best fixed depth in hindsight and against plain decoding.

    python -m benchmarks.simulate_depth [--guess] [--unread N] [--seeds N]
    python -m benchmarks.simulate_depth --shared [--seeds N] [--passes N]

Time is virtual, so nothing here depends on the machine. Clocks have 6 % noise and 1 % of cycles take four times as
long.

Alone: 6 cost curves x 9 acceptance processes x texts of 100, 300 and 2,000 tokens, each from a cold start: nothing is
known about the draft. Every controller and every fixed depth meets the same texts. Regret is time against the fixed
depth that is best on average for that curve, process and length; 0 is one of the depths.

Shared: 1, 2 and 4 replies of code, prose or both on the cost curves of a GPU with a cliff, a smooth one and a CPU, all
on the same recorded draws. A run lasts as long as a number of plain passes; its result is tokens. Hindsight knows the
draws: for 1 and 2 replies it tries every combination of the depths 0 to 12, for 4 every depth of all and 200 random
mixtures.
"""

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import mean

from benchmarks.simulated_pair import (
    CURVES,
    DOUBT,
    PLAIN_SECONDS,
    PROCESSES,
    Curve,
    OneRunAToken,
    Process,
    Text,
    accepted,
    make_text,
    passes,
    recorded,
    whole,
)
from localspec.control.acceptance import AcceptanceModel
from localspec.control.costs import CostsByContext, CostTable
from localspec.control.depth import DepthControl

READING = 0.1  # of a draft step: reading a token among many
LENGTHS = (100, 300, 2000)
GUESS = CostTable(
    (1, 2, 16),
    (0.4 * PLAIN_SECONDS, 0.44 * PLAIN_SECONDS, PLAIN_SECONDS),
    {"model": 0.04 * PLAIN_SECONDS},
    measured=False,
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One curve, process and length; times relative to the alternatives, minus 1."""

    curve: str
    process: str
    length: int
    regret: float
    loss: float
    best: int
    runs: tuple[float, ...]  # regret of each run against the depth that was best for that very text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--guess", action="store_true", help="costs are a guess instead of a calibration")
    parser.add_argument(
        "--unread", type=int, default=0, help="tokens of a prompt that the draft has not read"
    )
    parser.add_argument("--shared", action="store_true", help="replies that share passes")
    parser.add_argument("--passes", type=int, default=600, help="length of a shared run, in plain passes")
    parser.add_argument(
        "--seeds", type=int, help="texts of 100 tokens for each cell (16), fewer longer ones; shared runs (3)"
    )
    options = parser.parse_args()
    if options.shared:
        report_shared(options)
        return
    most = options.seeds or 16
    seeds = {100: most, 300: max(most // 2, 1), 2000: max(most // 8, 1)}
    report(
        [
            simulate(curve, process, length, seeds[length], options)
            for curve in map(in_seconds, CURVES)
            for process in PROCESSES
            for length in LENGTHS
        ]
    )


def in_seconds(curve: Curve) -> Curve:
    """A curve whose costs are seconds: a drafter may read for so many of them in a cycle."""
    return replace(
        curve,
        verify=lambda width: PLAIN_SECONDS * curve.verify(width),
        draft=lambda depth: PLAIN_SECONDS * curve.draft(depth),
        overhead=PLAIN_SECONDS * curve.overhead,
    )


def simulate(curve: Curve, process: str, length: int, seeds: int, options: argparse.Namespace) -> Cell:
    autos, fixed = [], []
    reading = READING * curve.draft(1) if options.unread else 0.0
    for seed in range(seeds):
        rng = random.Random(f"{process}{length}{seed}")
        text = make_text(PROCESSES[process], length, rng, DOUBT)
        prompt = reading * options.unread
        fixed.append(
            {depth: run_fixed(curve, text, depth) + (prompt if depth else 0) for depth in (0, *curve.depths)}
        )
        table = GUESS if options.guess else calibrated(curve)
        places = CostsByContext([table])
        control = DepthControl(places.costs, OneRunAToken(), AcceptanceModel(), curve.depths[-1])
        rng, seconds, left = random.Random(seed), 0.0, length
        replies = recorded(curve, [text], places, [control], unread=options.unread, reading=reading)
        for (cycle,) in passes(replies, curve.verify, rng, curve.overhead):
            seconds += cycle.seconds
            left -= len(cycle.tokens)
            if left <= 0:
                break
        autos.append(seconds)
    means = {depth: mean(times[depth] for times in fixed) for depth in fixed[0]}
    best = min(means, key=lambda depth: means[depth])
    return Cell(
        curve.name,
        process,
        length,
        regret=mean(autos) / means[best] - 1,
        loss=mean(autos) / means[0] - 1,
        best=best,
        runs=tuple(auto / min(times.values()) - 1 for auto, times in zip(autos, fixed, strict=True)),
    )


def calibrated(curve: Curve) -> CostTable:
    """What a calibration of this curve would have found."""
    widths = tuple(range(1, curve.depths[-1] + 2))
    seconds = tuple(curve.verify(n) + (curve.overhead if n > 1 else 0.0) for n in widths)
    return CostTable(
        widths,
        seconds,
        {"model": curve.draft(4) / 4},
        prefill_seconds={"model": READING * curve.draft(1)},
    )


def run_fixed(curve: Curve, text: Text, depth: int) -> float:
    """True time of a text at one fixed depth."""
    seconds, at, n = 0.0, 0, len(text.agrees)
    while at < n:
        depth_now = min(depth, n - at - 1)
        kept = accepted(text.agrees[at : at + depth_now])
        if depth_now:
            seconds += curve.overhead + curve.draft(depth_now)
        seconds += curve.verify(depth_now + 1)
        at += kept + 1
    return seconds


def report(cells: list[Cell]) -> None:
    print(f"{'':>7}  {'against the best fixed depth':^31}  {'against plain':>13}  {'hindsight by text':^18}")
    names = f"{'mean':>7} {'median':>7} {'p95':>7} {'max':>7}  {'worst':>13}  {'median':>9} {'p95':>8}"
    print(f"{'tokens':>7}  {names}")
    for length in (*LENGTHS, None):
        chosen = [cell for cell in cells if length in (cell.length, None)]
        regrets, runs = [cell.regret for cell in chosen], [run for cell in chosen for run in cell.runs]
        middle, high = quantile(regrets, 0.5), quantile(regrets, 0.95)
        print(
            f"{length or 'all':>7}  {mean(regrets):+7.1%} {middle:+7.1%} {high:+7.1%} {max(regrets):+7.1%}"
            f"  {max(cell.loss for cell in chosen):+13.1%}"
            f"  {quantile(runs, 0.5):+9.1%} {quantile(runs, 0.95):+8.1%}"
        )


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


STEP = 0.08  # of a plain step: a draft step
SHARED_DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)
HINDSIGHT = range(13)
MIXTURES = 200
FIXED = (1, 2, 3, 5)
SPREAD = 3.0  # a + b of the Beta distribution of chances


def cliff(width: int) -> float:
    return 1 + 0.07 * (width - 1) if width <= 8 else 2.6 + 0.01 * (width - 9)


SHARED_CURVES: dict[str, Callable[[int], float]] = {
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


class Fixed:
    """What every fixed choice of depths brings, from the draws alone."""

    def __init__(self, verify: Callable[[int], float], texts: Sequence[Text], plain_passes: int) -> None:
        self._verify = verify
        self._seconds = plain_passes * verify(len(texts))
        self._written = [[written(text, depth, plain_passes) for depth in HINDSIGHT] for text in texts]

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


def automatic(verify: Callable[[int], float], texts: Sequence[Text], plain_passes: int, seed: int) -> Outcome:
    """The strategies of several replies, which together know what one reply's passes cost."""
    curve = Curve(
        "",
        lambda width: PLAIN_SECONDS * verify(width),
        lambda k: PLAIN_SECONDS * STEP * k,
        0.0,
        SHARED_DEPTHS,
    )
    widths = (*range(1, 17), 32)
    table = CostTable(widths, tuple(map(curve.verify, widths)), {"model": curve.draft(1)})
    places = CostsByContext([table])
    controls = [
        DepthControl(places.costs, OneRunAToken(), AcceptanceModel(), SHARED_DEPTHS[-1]) for _ in texts
    ]
    tokens, left = [0] * len(texts), plain_passes * curve.verify(len(texts))
    for cycles in passes(recorded(curve, texts, places, controls), curve.verify, random.Random(seed)):
        left -= max(cycle.draft_seconds for cycle in cycles) + cycles[0].verify_seconds
        if left < 0:
            break
        tokens = [count + len(cycle.tokens) for count, cycle in zip(tokens, cycles, strict=True)]
    return Outcome(tuple(tokens))


def report_shared(options: argparse.Namespace) -> None:
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
    for (name, verify), kind, replies in product(SHARED_CURVES.items(), TEXTS, (1, 2, 4)):
        if kind == "mix" and replies == 1:
            continue
        rows = [row(verify, kind, replies, options.passes, seed) for seed in range(options.seeds or 3)]
        means, least = ([each(column) for column in zip(*rows, strict=True)] for each in (mean, min))
        cells = (means[0], least[0], least[1], means[2], least[2], *means[3:])
        print(f"{name:8}{kind:7}{replies:5}" + "".join(f"{cell:9.3f}" for cell in cells), flush=True)


def row(
    verify: Callable[[int], float], kind: str, replies: int, plain_passes: int, seed: int
) -> tuple[float, ...]:
    """Speed of all and of the slowest reply / plain, shares of the best and the fair best, and other ways."""
    texts, plain = texts_of(kind, replies, 26 * plain_passes, seed), replies * plain_passes
    auto = automatic(verify, texts, plain_passes, seed)
    fixed = Fixed(verify, texts, plain_passes)
    best, fair = (fixed.best(random.Random(seed), share * plain_passes).all for share in (0.0, 0.9))
    together = verify(replies) / verify(1) / replies  # of a plain token, in plain steps of a reply alone
    turns = [automatic(verify, [text], plain_passes, seed).all / plain_passes * together for text in texts]
    return (
        auto.all / plain,
        min(auto.tokens) / plain_passes,
        auto.all / best,
        auto.all / fair,
        *(fixed.outcome((depth,) * replies).all / plain for depth in FIXED),
        len(turns) / sum(1 / turn for turn in turns),
    )


if __name__ == "__main__":
    main()
