"""Predicted Outputs: a file is written again with three changed lines, by a scripted target at measured costs.

    python -m benchmarks.prediction_cost

The target's costs are those of a 1.5 B model in F16 on two CPU cores. Tokens are words, signs and runs of spaces.
"""

import difflib
import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.controller.engine import ANY_RULE
from benchmarks.replay_traces import TABLES
from localspec.drafters.drafting import Drafting
from localspec.events import Cycle, Origin, Source

LINES = 300
CHANGES = 3
SEEDS = 20
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
    slowest_return: int  # most tokens after a change until one came from the prediction again


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
    old, new = (
        [numbers.setdefault(sign, len(numbers)) for sign in SIGNS.findall("".join(text))]
        for text in (lines, edited)
    )
    return written(old, new)


def written(predicted: list[int], answer: list[int]) -> Result:
    """The answer as a target writes it that is certain of every token."""
    table = TABLES["F16"]
    drafting = Drafting([], table, (1,), most=32)
    strategy = drafting.strategy(ANY_RULE, depth=None, sampled=False, predicted=predicted)
    tokens, done, seconds, sources, proposed, passes = [*predicted, -1, -2], 0, 0.0, [], 0, 0
    while done < len(answer):
        proposal = strategy.propose(tokens, len(answer) - done - 1)
        kept = 0
        while kept < len(proposal.tokens) and proposal.tokens[kept] == answer[done + kept]:
            kept += 1
        emitted = answer[done : done + kept + 1]
        tokens += emitted
        cost = table.verify(len(proposal.tokens) + 1)
        source = proposal.source if proposal.tokens else Source.PLAIN
        cycle = Cycle(
            tokens=tuple(emitted),
            origins=(*(Origin.ACCEPTED,) * kept, Origin.FIX if proposal.tokens else Origin.PLAIN),
            proposal=proposal.tokens,
            accepted=kept,
            depth=proposal.depth,
            source=source,
            width=len(proposal.tokens) + 1,
            draft_seconds=0.0,
            verify_seconds=cost,
            other_seconds=0.0,
            mode=proposal.mode,
        )
        strategy.learn(cycle)
        sources += [source] * kept + [Source.PLAIN] * (len(emitted) - kept)
        proposed += len(proposal.tokens) if source is Source.PREDICTION else 0
        done, passes, seconds = done + len(emitted), passes + 1, seconds + cost
    taken = [s is Source.PREDICTION for s in sources]
    return Result(
        len(answer),
        sum(taken),
        proposed,
        passes,
        len(answer) / seconds,
        slowest_return(predicted, answer, taken),
    )


def slowest_return(predicted: list[int], answer: list[int], taken: list[bool]) -> int:
    """Most tokens in a row behind a change that did not come from the prediction."""
    blocks = difflib.SequenceMatcher(None, predicted, answer, autojunk=False).get_matching_blocks()
    worst = 0
    for block in blocks[1:-1]:
        own = next((n for n, yes in enumerate(taken[block.b : block.b + block.size]) if yes), block.size)
        worst = max(worst, own)
    return worst


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
