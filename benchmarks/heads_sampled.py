"""Tokens of a pass of a sampled reply, here and in llama-server, from the same target and head.

    python -m benchmarks.heads_sampled PATH/TO/llama-server [--target T.gguf --head H.gguf --type draft-eagle3]

Both answer questions that no training saw (tools/heads/prompts.py), with the same seeds and nothing truncated. Without
files it is the embedded target, and the head that serves the tests.
"""

import argparse
import json
import sys
import tempfile
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import localspec
from benchmarks.heads_oracle import running
from localspec.demo import target_path

ROOT = Path(__file__).parents[1]
OPEN = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
HEAD = ROOT / "tests/drafters/data/demo-eagle3.gguf"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("server", type=Path)
    parser.add_argument("--target", type=Path, default=target_path())
    parser.add_argument("--head", type=Path, default=HEAD)
    parser.add_argument("--type", default="draft-eagle3")
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--each", type=int, default=15, help="prompts of each topic")
    parser.add_argument("--tokens", type=int, default=160, help="of a reply")
    options = parser.parse_args()
    prompts = list(asked(options.each))
    sides = {"llama-server": list(theirs(options, prompts)), "localspec": list(ours(options, prompts))}
    print(f"{len(prompts)} prompts, depth {options.depth}, temperature {options.temperature}\n")
    print("| | tokens | tokens a pass | median of replies |\n|---|---|---|---|")
    for name, replies in sides.items():
        tokens, accepted = (sum(counts) for counts in zip(*replies, strict=True))
        middle = median(emitted / (emitted - kept) for emitted, kept in replies)
        print(f"| {name} | {tokens} | {tokens / (tokens - accepted):.3f} | {middle:.3f} |")


def asked(each: int) -> Iterator[str]:
    """The first prompts of each topic."""
    sys.path.append(str(ROOT / "tools/heads"))
    from prompts import demo_held_out

    count = defaultdict[str, int](int)
    for topic, prompt in demo_held_out():
        count[topic] += 1
        if count[topic] <= each:
            yield prompt


def theirs(options: argparse.Namespace, prompts: list[str]) -> Iterator[tuple[int, int]]:
    """Tokens of each reply of llama-server, and how many of them were drafted."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with running(options.server, options.type, (options.target, options.head), options.depth, log) as url:
            for seed, prompt in enumerate(prompts):
                settings = OPEN | {"temperature": options.temperature, "max_tokens": options.tokens}
                body = settings | {"messages": [{"role": "user", "content": prompt}], "seed": seed}
                request = urllib.request.Request(
                    f"{url}/v1/chat/completions",
                    json.dumps(body).encode(),
                    {"Content-Type": "application/json"},
                )
                with urllib.request.urlopen(request, timeout=120) as answer:
                    timings = json.loads(answer.read())["timings"]
                yield timings["predicted_n"], timings.get("draft_n_accepted", 0)


def ours(options: argparse.Namespace, prompts: list[str]) -> Iterator[tuple[int, int]]:
    """The same of localspec."""
    with localspec.load(target=options.target, draft=options.head, context_length=512) as session:
        settings = OPEN | {"temperature": options.temperature, "max_tokens": options.tokens}
        for seed, prompt in enumerate(prompts):
            session.reset()
            stats = session.run(prompt, seed=seed, depth=options.depth, **settings).stats
            yield stats.emitted, stats.accepted


if __name__ == "__main__":
    main()
