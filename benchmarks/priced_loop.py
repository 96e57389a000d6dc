"""The real loop at the price of a larger pair: automatic depth, fixed depths and llama.cpp's way of drafting.

    python -m benchmarks.priced_loop [--temperature 0.8] [--tasks 5] [--seeds 4]

Tokens, draft tokens and verdicts are those of the demo pair; only the clock is not real. Every pass takes what it
takes in the pair enlarged to 1 B + 0.1 B parameters, as measured on two CPU cores, with 4 % noise, so nothing here
depends on how busy the machine is. The figures are speeds relative to plain decoding, geometric means of categories
that take turns in one run. llama.cpp drafts the likeliest token, stops where its probability is below p-min, keeps
what equals the target's own sample, and has the draft read every verified batch once more (counted as one step).
Automatic drafting is as users have it: with lookup, the table as its lessons, and what earlier replies taught.
"""

import argparse
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

import localspec
from benchmarks.server.prompts import Task, tasks
from localspec.algorithm.loop import speculate
from localspec.algorithm.noise import Keyed
from localspec.algorithm.protocols import Proposal, Rule, Strategy
from localspec.algorithm.verification import Coupled, Greedy, make_rule
from localspec.chat.request import Request
from localspec.control.costs import CostTable
from localspec.drafters.model import ModelDrafter
from localspec.drafters.selection import Fixed
from localspec.llama.context import Context
from localspec.loading.drafting import DEEPEST, Drafting
from localspec.sampler.chain import Chain
from localspec.sampler.passes import ForwardPass
from localspec.sampler.sampling import Sampling

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13)
TABLES = {
    "F16, 1 thread": CostTable(
        WIDTHS, (1.0, 1.58, 1.67, 1.76, 1.91, 2.02, 2.37, 2.55, 2.57, 2.82, 3.2), {"model": 0.092}
    ),
    "F16, 2 threads": CostTable(
        WIDTHS, (1.0, 1.21, 1.33, 1.35, 1.43, 1.46, 1.67, 1.81, 1.82, 1.93, 2.23), {"model": 0.11}
    ),
    "Q8_0, 2 threads": CostTable(
        WIDTHS, (1.0, 2.0, 2.12, 2.33, 3.5, 3.68, 4.14, 2.9, 4.33, 4.78, 4.94), {"model": 0.138}
    ),
}
NOISE = 0.04
READING = 0.1  # a draft token among many that are read / one that is drafted
MOST_TOKENS = 96
FIXED = (2, 4, 7, 8, 12)
LLAMA_CPP = ((3, 0.0), (6, 0.0), (7, 0.6), (8, 0.4), (8, 0.6), (12, 0.6))  # depth, p-min
Make = Callable[[Rule], Strategy]


class Drawn(Keyed):
    """Every choice is a fresh draw."""

    loudest = Keyed.chosen


class Compare(Coupled):
    """llama.cpp's rule: keep what equals the target's own draw; the draft offers its likeliest token."""

    draw = Greedy.draw


class Priced:
    """A decoder whose busy time is a price."""

    def __init__(self, inner: Context, price: Callable[[int], float], noise: random.Random) -> None:
        self._inner = inner
        self._price = price
        self._noise = noise
        self.busy_seconds = 0.0

    def decode(self, tokens: Sequence[int], rows: int) -> ForwardPass:
        self.busy_seconds += self._price(len(tokens)) * max(1 + self._noise.gauss(0, NOISE), 0.5)
        return self._inner.decode(tokens, rows)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


@dataclass(frozen=True, slots=True)
class SureOf:
    """llama.cpp's stopping: by the draft's own probability."""

    p_min: float

    def keeps(self, confidence: float, drafted: int) -> bool:
        return confidence >= self.p_min

    def goes_on(self, drafted: int) -> bool:
        return True


class LlamaCpp(Fixed):
    """A fixed depth that p-min ends early."""

    def __init__(
        self, drafter: ModelDrafter, depth: int, p_min: float, step_seconds: float, rule: Rule
    ) -> None:
        super().__init__(drafter, depth, rule)
        self._stopping = SureOf(p_min)
        self._step_seconds = step_seconds
        self._read_again = 0.0

    @property
    def busy_seconds(self) -> float:
        return super().busy_seconds + self._read_again

    def propose(self, tokens: Sequence[int], room: int) -> Proposal:
        self._read_again += self._step_seconds
        if not room:
            return Proposal()
        return self._drafter.propose(tokens, min(self._depth, room), self._rule, self._stopping)


class Pair:
    """The demo pair at the price of a table."""

    def __init__(self, session: localspec.Session, table: CostTable) -> None:
        engine, noise = session.pair, random.Random(1)
        self._vocabulary = engine.vocabulary
        self._target = Priced(engine.target, table.verify, noise)
        self._draft = Priced(
            engine.drafters[0].decoder,
            lambda tokens: table.run_seconds["model"] * max(1, READING * tokens),
            noise,
        )
        ends = (token for token in range(engine.vocabulary.size) if engine.vocabulary.is_end(token))
        self._no_end = tuple((token, -math.inf) for token in ends)

        self.drafter = ModelDrafter(self._draft, engine.vocabulary.is_end)

    def speed(self, task: Task, temperature: float, seed: int, rule_name: str, make: Make) -> float:
        """Relative to plain decoding."""
        sampling = Sampling(temperature=temperature, logit_bias=self._no_end)
        llama_cpp = rule_name == "llama.cpp"
        rule = Compare(Chain(sampling), Drawn(seed)) if llama_cpp else make_rule(rule_name, sampling, seed)
        tokens = list(self._vocabulary.tokenize(task.text, parse_special=True, add_special=True))
        room = min(len(self._vocabulary.tokenize(task.answer, parse_special=False)), MOST_TOKENS)
        for model in (self._target, self._draft):
            model.rollback(0)
            list(model.prefill(tokens[:-1]))
        strategy = make(rule)
        strategy.observe(ForwardPass(0, tokens[:-1]), len(tokens) - 1)
        cycles = speculate(
            self._target,
            strategy,
            tokens,
            rule=rule,
            room=room,
            is_end=self._vocabulary.is_end,
            clock=lambda: self._target.busy_seconds + self._draft.busy_seconds,
        )
        seconds = sum(cycle.verify_seconds + cycle.draft_seconds for cycle in cycles)
        return room / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--tasks", type=int, default=5, help="prompts of each category")
    parser.add_argument("--seeds", type=int, default=4, help="replies to each prompt")
    options = parser.parse_args()
    with localspec.load("demo", threads=1) as session:
        for name, table in TABLES.items():
            print(f"\n{name}, T={options.temperature:g}: speed relative to plain decoding")
            pair = Pair(session, table)
            for label, rule, make in ways(pair, table, sampled=options.temperature > 0):
                speeds: dict[str, list[float]] = {}
                for seed in range(options.seeds):
                    for task in tasks(options.tasks):
                        found = pair.speed(task, options.temperature, seed, rule, make)
                        speeds.setdefault(task.category, []).append(math.log(found))
                print(line(label, speeds), flush=True)


def ways(pair: Pair, table: CostTable, *, sampled: bool) -> Iterator[tuple[str, str, Make]]:
    """Label, rule, and how the strategy of a reply is made."""
    drafting = Drafting([pair.drafter], table, most=DEEPEST)
    request = Request(Sampling(temperature=float(sampled)))
    yield "auto", "auto", lambda rule: drafting.strategy(rule, request)
    for depth in FIXED:
        yield f"depth {depth}", "auto", lambda rule, depth=depth: Fixed(pair.drafter, depth, rule)
    for depth, p_min in LLAMA_CPP:

        def llama_cpp(rule: Rule, depth: int = depth, p_min: float = p_min) -> Strategy:
            return LlamaCpp(pair.drafter, depth, p_min, table.run_seconds["model"], rule)

        yield f"llama.cpp {depth}/{p_min:g}", "llama.cpp" if sampled else "auto", llama_cpp


def line(label: str, speeds: dict[str, list[float]]) -> str:
    overall = math.exp(mean(mean(logs) for logs in speeds.values()))
    parts = " ".join(f"{category} {math.exp(mean(logs)):.2f}" for category, logs in speeds.items())
    return f"{label:16} {overall:5.2f}   {parts}"


if __name__ == "__main__":
    main()
