"""JSON for 200 random schemas, greedy and sampled: how many replies are complete, and is every one valid?

    python -m benchmarks.structure_schemas [--count 200] [--limit 512]

Complete replies are judged by the jsonschema library; the others must be beginnings that the grammar accepts.
"""

import argparse

import localspec
from tests.structure.schemas import judged

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


if __name__ == "__main__":
    main()
