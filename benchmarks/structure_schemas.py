"""JSON for 200 random schemas, greedy and sampled: how many replies are complete, and is every one valid?

    python -m benchmarks.structure_schemas [--count 200] [--limit 512]

Complete replies are judged by the jsonschema library; the others must be beginnings that the grammar accepts.
"""

import argparse
import json
from collections import Counter
from time import perf_counter

import jsonschema

import localspec
from localspec.events import FinishReason, Reply
from localspec.structure.constraint import GrammarTokens
from localspec.structure.grammar import json_grammar
from tests.structure.schemas import schema_of

TEMPERATURES = (0.0, 0.8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--limit", type=int, default=512)
    arguments = parser.parse_args()
    with localspec.load(threads=1) as session:
        tokens = GrammarTokens(session.pair.vocabulary)
        for temperature in TEMPERATURES:
            began = perf_counter()
            found: Counter[str] = Counter()
            emitted = forced = 0
            for seed in range(arguments.count):
                session.reset()
                schema = schema_of(seed)
                reply = session.run(
                    "Give me an example.",
                    json_schema=schema,
                    temperature=temperature,
                    seed=seed,
                    max_tokens=arguments.limit,
                )
                verdict = judge(reply, schema, tokens)
                found[verdict] += 1
                emitted += reply.stats.emitted
                forced += reply.stats.from_grammar
                if verdict not in ("valid", "cut"):
                    print(f"seed {seed}: {verdict}: {reply.text!r} for {json.dumps(schema)}")
            print(
                f"T={temperature}: {dict(found)} of {arguments.count}, {emitted} tokens, "
                f"{forced / emitted:.0%} forced, {perf_counter() - began:.0f} s"
            )


def judge(reply: Reply, schema: dict, tokens: GrammarTokens) -> str:
    """Whether a complete reply is valid, and a cut one the beginning of something valid."""
    if reply.finish_reason is FinishReason.STOP:
        try:
            jsonschema.Draft202012Validator(schema).validate(json.loads(reply.text))
        except (ValueError, jsonschema.ValidationError) as error:
            return f"invalid ({str(error).splitlines()[0]})"
        return "valid"
    accepted = tokens.matcher(json_grammar(schema)).try_consume_tokens(list(reply.tokens))
    return "cut" if accepted == len(reply.tokens) else "cut and not accepted"


if __name__ == "__main__":
    main()
