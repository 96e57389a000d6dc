"""Let llama-server answer prompts that training has not seen, and print a line for each kind of text.

    python tools/heads/measure.py --server llama-server --target target.gguf --head head.gguf [--depth 3]

`--spec-type draft-simple` measures a draft model in the same way. Temperature 0 unless told otherwise.
"""

import argparse
from collections import defaultdict
from pathlib import Path

import prompts
from oracle import Counts, Server
from target import File


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", type=Path, required=True, help="the program llama-server")
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--head", type=Path, help="without one the head is inside the target")
    parser.add_argument("--spec-type", default="draft-eagle3")
    parser.add_argument("--prompts", choices=prompts.MEASURED, default="mixed")
    parser.add_argument("--each", type=int, default=60, help="prompts of each kind at most")
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=160, help="of a reply")
    parser.add_argument("--temperature", type=float, default=0.0)
    return parser.parse_args()


def main() -> None:
    """Print drafted, accepted and tokens a pass by kind."""
    options, by_kind = parse(), defaultdict(Counts)
    template, asked = File(options.target).chat_template(), defaultdict(int)
    flags = [
        "--spec-type",
        options.spec_type,
        "--spec-draft-n-max",
        str(options.depth),
        "--spec-draft-p-min",
        "0",
    ]
    flags += ["-md", str(options.head), "-ngld", "0"] if options.head else []
    with Server(options.server, options.target, *flags) as server:
        for number, (kind, prompt) in enumerate(prompts.MEASURED[options.prompts]()):
            asked[kind] += 1
            if asked[kind] <= options.each:
                messages = [{"role": "user", "content": prompt}]
                text = template.render(messages=messages, add_generation_prompt=True)
                settings = {
                    "temperature": options.temperature,
                    "seed": number,
                    "top_k": 0,
                    "top_p": 1.0,
                    "min_p": 0.0,
                }
                by_kind[kind] += server.ask(text, options.tokens, **settings)
    print("| kind | replies | tokens | drafted | accepted | tokens a pass |\n|---|---|---|---|---|---|")
    for kind, counts in [*by_kind.items(), ("all", sum(by_kind.values(), Counts()))]:
        accepted = f"{counts.accepted / max(1, counts.drafted):.0%}"
        columns = (
            kind,
            counts.replies,
            counts.emitted,
            counts.drafted,
            accepted,
            f"{counts.tokens_a_pass:.2f}",
        )
        print(f"| {' | '.join(map(str, columns))} |")


if __name__ == "__main__":
    main()
