"""How likely are replies within a schema under the model itself, by layout, beside its unrestricted replies?

    python -m benchmarks.restricted_replies TARGET [--temperature 0]

Prints the mean log-probability of a token, without the grammar, for each of the 15 questions.
"""

import argparse

import localspec
from tests.structure.judged_schemas import QUESTIONS, judged

WAYS = {"unrestricted": {"restricted": False, "max_tokens": 100}, "chosen": {}, "compact": {"compact_json": True},
        "anywhere": {"compact_json": False}}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target")
    parser.add_argument("--temperature", type=float, default=0.0)
    options = parser.parse_args()
    means: dict[str, list[float]] = {way: [] for way in WAYS}
    cut: dict[str, int] = dict.fromkeys(WAYS, 0)
    with localspec.load(target=options.target, draft="lookup", context_length=2048, threads=1) as session:
        for question in QUESTIONS:
            for way, given in WAYS.items():
                _, mean, ended = judged(session, question, temperature=options.temperature, **given)
                means[way].append(mean)
                cut[way] += not ended
            print(*(f"{way} {found[-1]:6.3f}" for way, found in means.items()), question, flush=True)
    for way, found in means.items():
        print(f"{way}: mean {sum(found) / len(found):.3f}, {cut[way]} cut of {len(found)}")


if __name__ == "__main__":
    main()
