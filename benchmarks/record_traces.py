"""Records, for every token of greedy replies, whether the draft would have guessed it and how sure it was.

    python -m benchmarks.record_traces [--tokens 800] [--out benchmarks/traces/demo.jsonl]

The demo pair answers questions on its own topics and continues library code. One line of JSON for each reply:
category, prompt tokens, reply tokens, and for each reply token what the draft would have chosen after the
same text and with what confidence. Replaying needs no model.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import localspec
from localspec.algorithm.verification import make_rule
from localspec.sampler.sampling import Sampling

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "tools" / "demo"))

from corpus.mix import SHARES, exchange, library_text  # noqa: E402

LIBRARY = "library code"
LONGEST_REPLY = 256  # tokens


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=800, help="of replies in each category")
    parser.add_argument("--out", type=Path, default=HERE / "traces" / "demo.jsonl")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with localspec.load() as session, options.out.open("w", encoding="utf-8") as out:
        for category in (*SHARES, LIBRARY):
            lines = list(until(replies(session, category), options.tokens))
            for line in lines:
                out.write(json.dumps(line, separators=(",", ":")) + "\n")
            count = sum(len(line["reply"]) for line in lines)
            guessed = sum(a == b for line in lines for a, b in zip(line["reply"], line["draft"], strict=True))
            print(f"{category:14} {len(lines):3} replies {count:5} tokens, {guessed / count:.0%} guessed")


def until(lines: Iterator[dict], tokens: int) -> Iterator[dict]:
    for line in lines:
        yield line
        tokens -= len(line["reply"])
        if tokens <= 0:
            return


def replies(session: localspec.Session, category: str) -> Iterator[dict]:
    rng = Random(f"traces/{category}")
    settings = {"temperature": 0, "speculate": False, "max_tokens": LONGEST_REPLY}
    while True:
        session.reset()
        if category == LIBRARY:
            reply = session.complete(library_text(rng)[:200], **settings)
        else:
            reply = session.run(exchange(category, rng)[0].asks, **settings)
        yield record(session, category, reply)


def record(session: localspec.Session, category: str, reply: localspec.Reply) -> dict:
    target, draft = session.engine.target, session.engine.drafters[0].decoder
    text = [*target.tokens, reply.tokens[-1]]
    start = len(text) - len(reply.tokens)
    rule = make_rule("greedy", Sampling(temperature=0), 0)
    draft.rollback(0)
    for _ in draft.prefill(text[: start - 1]):
        pass
    draws = []
    for position in range(start, len(text)):
        (row,) = draft.decode([text[position - 1]], rows=1).rows
        draws.append(rule.draw(row, text[:position], position))
    return {
        "category": category,
        "prompt": text[:start],
        "reply": text[start:],
        "draft": [draw.token for draw in draws],
        "confidence": [round(draw.confidence, 3) for draw in draws],
    }


if __name__ == "__main__":
    main()
