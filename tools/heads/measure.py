"""Answer prompts that training has not seen, and print a line for each kind of text.

    python -m tools.heads.measure --target target.gguf --draft head.gguf [--depth 3] [--prompts demo]

Any draft that localspec loads is measured in the same way. Temperature 0 unless told otherwise, nothing truncated.
"""

import argparse
from collections import defaultdict
from pathlib import Path

import localspec
from tools.heads import prompts


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--prompts", choices=prompts.MEASURED, default="mixed")
    parser.add_argument("--each", type=int, default=60, help="prompts of each kind at most")
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=160, help="of a reply")
    parser.add_argument("--temperature", type=float, default=0.0)
    return parser.parse_args()


def main() -> None:
    """Print drafted, accepted and tokens a pass by kind."""
    options, by_kind = parse(), defaultdict[str, list[localspec.Stats]](list)
    with localspec.load(target=options.target, draft=options.draft, context_length=1024) as session:
        settings = {"temperature": options.temperature, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        settings |= {"depth": options.depth, "max_tokens": options.tokens}
        for seed, (kind, prompt) in enumerate(prompts.MEASURED[options.prompts]()):
            if len(by_kind[kind]) < options.each:
                session.reset()
                by_kind[kind].append(session.run(prompt, seed=seed, **settings).stats)
    print("| kind | replies | tokens | drafted | accepted | tokens a pass |\n|---|---|---|---|---|---|")
    for kind, replies in [*by_kind.items(), ("all", [s for stats in by_kind.values() for s in stats])]:
        drafted, accepted = sum(s.drafted for s in replies), sum(s.accepted for s in replies)
        emitted, cycles = sum(s.emitted for s in replies), sum(s.cycles for s in replies)
        columns = (
            kind,
            len(replies),
            emitted,
            drafted,
            f"{accepted / max(1, drafted):.0%}",
            f"{emitted / cycles:.2f}",
        )
        print(f"| {' | '.join(map(str, columns))} |")


if __name__ == "__main__":
    main()
