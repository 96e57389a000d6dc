"""Predicted Outputs: a file is written again with three changed lines, by a scripted target at measured costs.

    python -m benchmarks.prediction_cost

The target's costs are those of a 1.5 B model in F16 on two CPU cores. Tokens are words, signs and runs of spaces.
"""

import difflib
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from benchmarks.simulated_pair import ANY_RULE, accepted, passes
from localspec.algorithm.protocols import Proposal, Strategy
from localspec.chat.request import Request
from localspec.control.costs import CostTable
from localspec.events import Cycle, Source
from localspec.loading.drafting import Drafting
from localspec.sampler.sampling import Sampling

F16 = CostTable((1, 2, 3, 4, 5, 6, 8), (1, 1.27, 1.33, 1.40, 1.50, 1.63, 2.03), {"model": 0.07})
LINES = 300
CHANGES = 3
SEEDS = 6
SIGNS = re.compile(r"\w+|[^\w\s]|\s+")
Change = Callable[[random.Random, list[str], int], None]


@dataclass(frozen=True, slots=True)
class Result:
    """How one file was written."""

    tokens: int
    from_prediction: int
    proposed: int  # from the prediction
    passes: int
    speedup: float  # relative to plain decoding
    slowest_return: int = 0  # most tokens after a change until one came from the prediction again


def main() -> None:
    print("change      from the prediction  rejected  tokens a pass  times plain  back within (most)")
    for name, change in CHANGES_BY_NAME.items():
        found = [written_again(seed, change) for seed in range(SEEDS)]
        tokens = sum(r.tokens for r in found)
        taken = sum(r.from_prediction for r in found)
        print(
            f"{name:10}  {taken / tokens:18.1%}  {1 - taken / sum(r.proposed for r in found):8.1%}"
            f"  {tokens / sum(r.passes for r in found):13.1f}  {min(r.speedup for r in found):6.2f} least"
            f"  {max(r.slowest_return for r in found):4} tokens"
        )


def written_again(seed: int, change: Change) -> Result:
    chance = random.Random(seed)
    lines = source(chance)
    edited = list(lines)
    for number in sorted(chance.sample(range(10, LINES - 10), CHANGES), reverse=True):
        change(chance, edited, number)
    numbers: dict[str, int] = {}
    old, new = ([tokens_of(line, numbers) for line in text] for text in (lines, edited))
    result, taken = predicted_from(list(chain(*old)), list(chain(*new)))
    blocks = difflib.SequenceMatcher(None, lines, edited, autojunk=False).get_matching_blocks()
    returns = [returned(new, taken, block.b, block.size) for block in blocks[1:-1]]
    return replace(result, slowest_return=max(returns))


def tokens_of(line: str, numbers: dict[str, int]) -> list[int]:
    return [numbers.setdefault(sign, len(numbers)) for sign in SIGNS.findall(line)]


def returned(new: list[list[int]], taken: list[bool], line: int, lines: int) -> int:
    """How many tokens after a change did not come from the prediction before the first one that did."""
    begin = sum(map(len, new[:line]))
    behind = taken[begin : begin + sum(map(len, new[line : line + lines]))]
    return behind.index(True) if True in behind else len(behind)


def predicted_from(predicted: list[int], answer: list[int]) -> tuple[Result, list[bool]]:
    """How an answer is written, and which of its tokens were predicted."""
    drafting = Drafting([], F16, most=32)
    strategy = drafting.strategy(ANY_RULE, Request(Sampling(temperature=0.0)), predicted)
    reply, cycles = Scripted(strategy, [*predicted, -1, -2], answer), list[Cycle]()
    for (cycle,) in passes([reply], F16.verify):
        cycles.append(cycle)
        if len(cycle.tokens) == reply.left:
            break
    taken = [
        cycle.source is Source.PREDICTION and i < cycle.accepted
        for cycle in cycles
        for i in range(len(cycle.tokens))
    ]
    proposed = sum(cycle.drafted for cycle in cycles if cycle.source is Source.PREDICTION)
    seconds = sum(cycle.verify_seconds for cycle in cycles)
    return Result(len(answer), sum(taken), proposed, len(cycles), len(answer) / seconds), taken


@dataclass(slots=True)
class Scripted:
    """A reply of a target that is certain of every token of an answer."""

    strategy: Strategy
    tokens: list[int]
    answer: Sequence[int]

    @property
    def left(self) -> int:
        return len(self.answer)

    def judge(self, proposal: Proposal) -> tuple[int, ...]:
        kept = accepted([a == b for a, b in zip(proposal.tokens, self.answer, strict=False)])
        return tuple(self.answer[: kept + 1])

    def write(self, tokens: tuple[int, ...]) -> None:
        self.tokens += tokens
        self.answer = self.answer[len(tokens) :]


def source(chance: random.Random) -> list[str]:
    """A program of 300 lines, as repetitive as programs are."""
    names = [
        f"{a}_{b}"
        for a in ("user", "file", "total", "index", "row", "size")
        for b in ("count", "name", "map")
    ]
    lines: list[str] = []
    while len(lines) < LINES:
        function = chance.choice(names)
        verb = chance.choice(("get", "set", "make", "drop"))
        lines.append(f"def {verb}_{function}({chance.choice(names)}, {chance.choice(names)}):\n")
        for _ in range(chance.randint(3, 9)):
            a, b, c = (chance.choice(names) for _ in range(3))
            lines.append(
                chance.choice(
                    (
                        f"    {a} = {b} + {chance.randrange(100)}\n",
                        f"    if {a} > {b}:\n        return {c}\n",
                        f"    {a}.append({b}[{c}])\n",
                        f'    print("{a} is", {b})\n',
                    )
                )
            )
        lines.append(f"    return {chance.choice(names)}\n\n")
    return lines[:LINES]


def value(chance: random.Random, lines: list[str], number: int) -> None:
    """One word becomes another one."""
    words = re.findall(r"\w+", lines[number])
    lines[number] = lines[number].replace(chance.choice(words), f"changed_{number}", 1)


def line(chance: random.Random, lines: list[str], number: int) -> None:
    lines[number] = f"    other_{number} = compute({chance.randrange(100)}, key=None)\n"


def inserted(chance: random.Random, lines: list[str], number: int) -> None:
    lines.insert(number, f"    log.debug({chance.randrange(100)}, extra_{number})\n")


def deleted(chance: random.Random, lines: list[str], number: int) -> None:
    del lines[number]


CHANGES_BY_NAME: dict[str, Change] = {"word": value, "line": line, "inserted": inserted, "deleted": deleted}

if __name__ == "__main__":
    main()
