"""A record of ten named fields: plain constrained decoding against speculation, and what the grammar itself costs.

    python -m benchmarks.structure_speed --target BIG.gguf --draft SMALL.gguf [--threads 2] [--rounds 3]

BIG and SMALL come from tools/enlarge.py: the demo pair at a real shape and a vocabulary of 128,256. Every round
runs all in turn; the medians count. The grammar's time is what `Constrained` and applying its masks take. No seed
is given at T > 0: it would fix the depth (docs/lossless.md).
"""

import argparse
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import localspec
from localspec.events import Reply
from localspec.structure.constraint import Constrained

WORDS = {"type": "string", "maxLength": 16}
RECORD = {
    "type": "object",
    "properties": {
        "customer_name": WORDS,
        "email_address": WORDS,
        "street_address": WORDS,
        "city_of_residence": WORDS,
        "postal_code": {"type": "string", "pattern": "^[0-9]{5}$"},
        "age_in_years": {"type": "integer", "minimum": 18, "maximum": 99},
        "preferred_language": {"enum": ["English", "German", "French"]},
        "newsletter_subscription": {"type": "boolean"},
        "number_of_orders": {"type": "integer", "minimum": 0, "maximum": 500},
        "account_status": {"enum": ["active", "suspended", "closed"]},
    },
    "additionalProperties": False,
}
RECORD["required"] = list(RECORD["properties"])
PROMPT = "Give me the record of a customer as JSON."


class Clock:
    """Seconds spent in the grammar, outermost calls only."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._inside = False

    def timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: object) -> object:
            if self._inside:
                return method(*arguments)
            self._inside, began = True, perf_counter()
            try:
                return method(*arguments)
            finally:
                self._inside = False
                self.seconds += perf_counter() - began

        return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    clock = Clock()
    for name in ("permitted", "forced", "valid", "settle"):
        setattr(Constrained, name, clock.timed(getattr(Constrained, name)))
    with localspec.load(
        target=arguments.target, draft=arguments.draft, threads=arguments.threads, context_length=1024
    ) as session:
        for temperature in (0.0, 0.8):
            speeds: dict[str, list[float]] = {}
            texts = {}
            for _ in range(arguments.rounds):
                for name, options in (
                    ("plain", {"speculate": False}),
                    ("drafts", {}),
                    ("depth 3", {"depth": 3}),
                ):
                    session.reset()
                    clock.seconds, began = 0.0, perf_counter()
                    reply = session.run(
                        PROMPT, json_schema=RECORD, temperature=temperature, max_tokens=300, **options
                    )
                    report(name, temperature, reply, clock.seconds, perf_counter() - began)
                    speeds.setdefault(name, []).append(reply.stats.tokens_per_second)
                    texts[name] = reply.text
            plain = median(speeds["plain"])
            ratios = ", ".join(f"{name} {median(found) / plain:.2f}x" for name, found in speeds.items())
            same = f"; same text: {len(set(texts.values())) == 1}" if temperature == 0 else ""
            print(f"T={temperature}: {ratios}{same}\n")


def report(name: str, temperature: float, reply: Reply, grammar_seconds: float, seconds: float) -> None:
    stats = reply.stats
    print(
        f"{name:8} T={temperature} {stats.emitted:4} tokens, {stats.from_grammar / stats.emitted:4.0%} forced, "
        f"{stats.cycles:4} passes, {stats.tokens_per_second:6.2f} tokens/s, grammar "
        f"{grammar_seconds / stats.decode_seconds:5.2%} of {stats.decode_seconds:.2f} s decoding "
        f"({grammar_seconds / stats.emitted * 1e3:.3f} ms a token), {seconds:.1f} s in all, {reply.finish_reason}"
    )


if __name__ == "__main__":
    main()
