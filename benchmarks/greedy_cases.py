"""Greedy replies with a draft against plain decoding in many random cases: any beginning of a text, any depth.

    python -m benchmarks.greedy_cases [--target FILE --draft FILE] [--cases 1000] [--seed 1]

A case is the end of a random beginning of a built-in prompt, or, one in five, random tokens; a depth from 1 to 8, or
one in nine automatic with lookup beside the draft; and 12 to 24 tokens of reply. Where texts part, the two likeliest
tokens there are compared with what batch widths alone change of this text, by the rule of `localspec verify`: a gap of
at most twice that is a near-tie. Every token has to be the likeliest of the row that decided it.
"""

import argparse
import random
from collections import Counter
from pathlib import Path

import localspec
from localspec import demo
from localspec.chat.loaded_pair import LoadedPair
from localspec.measure.divergence import width_difference_on
from localspec.measure.prompts import built_in_prompts
from localspec.measure.verify.greedy import case_of, greedy_text

LONGEST, ROOMS = 48, (12, 24)  # tokens of a prompt, of a reply
DEPTHS = (*range(1, 9), None)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, default=demo.target_path())
    parser.add_argument("--draft", type=Path, default=demo.draft_path())
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with localspec.load(
        target=options.target, draft=options.draft, threads=1, context_length=512, remember_replies=False
    ) as session:
        chance, counts = random.Random(options.seed), Counter[str]()
        texts = [session.engine.vocabulary.tokenize(p.text, parse_special=False) for p in built_in_prompts()]
        for number in range(1, options.cases + 1):
            counts += one_case(session.engine, texts, chance)
            if number % 50 == 0 or number == options.cases:
                print(number, dict(counts), flush=True)


def one_case(engine: LoadedPair, texts: list[list[int]], chance: random.Random) -> Counter[str]:
    """What a random case came to, and how much was drafted in it."""
    text, length, depth = chance.choice(texts), chance.randint(1, LONGEST), chance.choice(DEPTHS)
    end = chance.randint(1, len(text))
    prompt = text[max(end - length, 0) : end]
    if chance.random() < 0.2:
        prompt = [chance.randrange(engine.vocabulary.size) for _ in prompt]
    room = chance.randint(*ROOMS)
    plain, other = (greedy_text(engine, prompt, d, room, lambda: False) for d in (0, depth))
    case = case_of(built_in_prompts()[0], plain, other, depth)
    counts = Counter(tokens=case.tokens, drafted=case.drafted, accepted=case.accepted)
    if case.divergence is None:
        counts["equal" if case.explained(0.0) else "different"] += 1
        return counts
    gap = width_difference_on(engine, [*prompt, *plain.tokens][: len(prompt) + case.divergence.index])
    counts["near-tie" if case.explained(gap) else "different"] += 1
    print(f"  depth {depth}: {case.divergence}, widths change {gap:.3f}", flush=True)
    return counts


if __name__ == "__main__":
    main()
