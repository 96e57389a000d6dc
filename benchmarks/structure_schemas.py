"""JSON for 200 random schemas, greedy and sampled: how many replies are complete, and is every one valid?

    python -m benchmarks.structure_schemas [--count 200] [--limit 512]

Complete replies are judged by the jsonschema library; the others must be beginnings that the grammar accepts.
"""

import argparse
import json
from collections import Counter

import jsonschema

import localspec
from localspec.events import FinishReason, Reply
from localspec.structure.constraint import GrammarTokens
from localspec.structure.grammar import json_grammar
from tests.structure.schemas import schema_of

TEMPERATURES = (0.0, 0.8)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--limit", type=int, default=512)
    options = parser.parse_args()
    with localspec.load(threads=1) as session:
        for temperature in TEMPERATURES:
            found, emitted, forced = judged(session, temperature, options.count, options.limit)
            share = f"{forced / emitted:.0%}"
            print(f"T={temperature}: {dict(found)} of {options.count}, {emitted} tokens, {share} forced")


def judged(
    session: localspec.Session, temperature: float, count: int, limit: int
) -> tuple[Counter[str], int, int]:
    """Replies by verdict, their tokens, and how many of these the grammar forced."""
    tokens = GrammarTokens(session.pair.vocabulary)
    found, emitted, forced = Counter[str](), 0, 0
    for seed in range(count):
        session.reset()
        schema = schema_of(seed)
        options = {"json_schema": schema, "temperature": temperature, "seed": seed, "max_tokens": limit}
        reply = session.run("Give me an example.", **options)
        found[verdict(reply, schema, tokens)] += 1
        emitted += reply.stats.emitted
        forced += reply.stats.from_grammar
    return found, emitted, forced


def verdict(reply: Reply, schema: dict, tokens: GrammarTokens) -> str:
    """Whether a complete reply is valid, and a cut one the beginning of something valid."""
    if reply.finish_reason is FinishReason.STOP:
        try:
            jsonschema.Draft202012Validator(schema).validate(json.loads(reply.text))
        except (ValueError, jsonschema.ValidationError) as error:
            return f"invalid ({str(error).splitlines()[0]}): {reply.text!r} for {json.dumps(schema)}"
        return "valid"
    accepted = tokens.matcher(json_grammar(schema)).try_consume_tokens(list(reply.tokens))
    return (
        "cut" if accepted == len(reply.tokens) else f"not accepted: {reply.text!r} for {json.dumps(schema)}"
    )


if __name__ == "__main__":
    main()
