"""Greedy replies with a draft against plain decoding in many random cases: any beginning of a text, any depth.

    python -m benchmarks.greedy_cases [--target FILE --draft FILE] [--cases 1000] [--seed 1]

A prompt is a random part of a built-in one, or, one in five, random tokens. Its plain reply of 12 to 24 tokens is
compared with three at random depths: 1 to 6, or automatic with lookup beside the draft. Where texts part,
the two likeliest tokens there are compared with what batch widths alone change of this text, by the rule of
`localspec verify`: a gap of at most twice that is a near-tie. Every token has to be the likeliest of the row that
decided it.
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
from localspec.measure.verify import case_of, greedy_text

LONGEST, ROOMS = 16, (12, 24)  # tokens of a prompt, of a reply
DEPTHS_EACH = 3  # for every prompt
DEPTHS = (*range(1, 7), None)


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
        while counts["cases"] < options.cases:
            counts += some_cases(session.engine, texts, chance)
            print(dict(counts), flush=True)


def some_cases(engine: LoadedPair, texts: list[list[int]], chance: random.Random) -> Counter[str]:
    """What the cases of a random prompt came to, and how much was drafted in them."""
    text, length = chance.choice(texts), chance.randint(1, LONGEST)
    end = chance.randint(1, len(text))
    prompt = text[max(end - length, 0) : end]
    if chance.random() < 0.2:
        prompt = [chance.randrange(engine.vocabulary.size) for _ in prompt]
    room, counts = chance.randint(*ROOMS), Counter[str]()
    plain = greedy_text(engine, prompt, 0, room, lambda: False)
    for depth in chance.sample(DEPTHS, DEPTHS_EACH):
        other = greedy_text(engine, prompt, depth, room, lambda: False)
        case = case_of(built_in_prompts()[0], plain, other, depth)
        counts.update(cases=1, tokens=case.tokens, drafted=case.drafted, accepted=case.accepted)
        gap = 0.0
        if case.divergence:
            read = [*prompt, *plain.tokens[: case.divergence.index]]
            gap = width_difference_on(engine, read)
            print(f"depth {depth}: {case.divergence}, widths change {gap:.3f}", flush=True)
        what = "equal" if not case.divergence else "near-tie"
        counts[what if case.explained(gap) else "different"] += 1
    return counts


if __name__ == "__main__":
    main()
