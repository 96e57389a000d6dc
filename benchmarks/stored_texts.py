"""Caches on disk: what a restart costs with them, and whether they hold what they promise.

python -m benchmarks.stored_texts first-token --target FILE [--draft FILE] [--tokens 8000] [--runs 3]
python -m benchmarks.stored_texts find | agents
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from localspec.caches import store as stores
from localspec.caches.state_file import Facts, Stored, packed
from localspec.caches.store import Store, usage
from localspec.llama import stored_texts

WORDS = "One line of a long text says what the next line says, and none of them says more. "
FACTS = Facts("this model", sys.executable, steps_back=True, marks=(), parts=(), token_seconds=0.01)

CHILD = """
import json, sys, time
import localspec
from localspec.caches.writer import finish
options, tokens = json.loads(sys.argv[1]), int(sys.argv[2])
began = time.perf_counter()
with localspec.load(**options) as session:
    loading = time.perf_counter() - began
    words = WORDS
    each = session.count_tokens(words * 20) / 20
    reply = session.run(words * int(tokens / each) + "What comes next?", max_tokens=4, temperature=0)
    stats = reply.stats
    began = time.perf_counter()
closing = time.perf_counter() - began
finish(120)
print(json.dumps([stats.first_token_seconds, stats.prompt_tokens, stats.restored_tokens, stats.restore_seconds,
                  loading, closing, reply.text]))
"""


def first_token(arguments: argparse.Namespace) -> None:
    """The first token in a new process whose caches are not in the page cache."""
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        options = {
            "target": str(arguments.target),
            "context_length": arguments.context,
            "cache_folder": folder,
        }
        if arguments.draft:
            options["draft"] = str(arguments.draft)
        read, *_ = runs(options, arguments, 1)  # and stored
        again, *_ = runs(options, arguments, arguments.runs)
        print(
            f"first token: read {read:.2f} s, stored {again:.2f} s, {again / read:.1%}; {usage(Path(folder))}"
        )


def runs(options: dict[str, object], arguments: argparse.Namespace, count: int) -> tuple[float, ...]:
    """The medians of some processes, one after the other."""
    found = []
    for _ in range(count):
        for path in Path(str(options["cache_folder"])).glob("*.cache"):
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        command = [sys.executable, "-c", CHILD.replace("WORDS", repr(WORDS))]
        asked = [*command, json.dumps(options), str(arguments.tokens)]
        answer = json.loads(subprocess.run(asked, check=True, stdout=subprocess.PIPE, text=True).stdout)
        first, prompt, restored, seconds, loading, closing, text = answer
        print(
            f"  {prompt} tokens, {restored} restored in {seconds:.2f} s, first token after {first:.2f} s; ",
            end="",
        )
        print(
            f"loaded in {loading:.1f} s, closed in {closing:.2f} s, load {os.getloadavg()[0]:.1f}; {text!r}"
        )
        found.append((first, seconds, loading, closing))
    return tuple(map(median, zip(*found, strict=True)))


def find() -> None:
    """The longest beginning among 5,000 texts of 8,000 tokens."""
    rng = np.random.default_rng(0)
    common = rng.integers(0, 50_000, 4_000)
    texts = [
        np.concatenate([common[: rng.integers(4_000)], rng.integers(0, 50_000, 8_000)])[:8_000].tolist()
        for _ in range(5_000)
    ]
    with tempfile.TemporaryDirectory() as folder:
        kept = Store(Path(folder), 10**9)
        kept._texts = [Stored(Path("x"), FACTS, packed(text), 1) for text in texts]
        kept._texts.sort(key=stores._order)
        kept._seen = Path(folder).stat().st_mtime_ns
        seconds = []
        for text in texts[:50]:
            asked = [*text[: rng.integers(8_000)], *rng.integers(0, 50_000, 100).tolist()]
            began = perf_counter()
            list(itertools.islice(kept.nearest(FACTS.key, packed(asked)), stored_texts._LOOKED_AT))
            seconds.append(perf_counter() - began)
    print(f"find: {1000 * median(seconds):.2f} ms, at most {1000 * max(seconds):.2f} ms")


def agents() -> None:
    """Two hours of agents on a clock of its own: the share of copies and writes."""
    rng = np.random.default_rng(0)
    for name, prefill, decode, token_bytes, disk in (
        ("8B on a GPU", 1500.0, 40.0, 131_072, 1e9),
        ("8B on a CPU", 40.0, 8.0, 131_072, 5e8),
        ("1B on a GPU", 8000.0, 150.0, 32_768, 1e9),
        ("1B on a CPU", 200.0, 30.0, 32_768, 1.5e8),
    ):
        now, spent, tokens, stored = 0.0, 0.0, 6_000.0, 0.0
        while now < 7200:
            read, written = rng.integers(200, 3_000), rng.integers(50, 800)
            now += read / prefill + written / decode
            tokens = 6_000 if tokens > 40_000 else tokens + read + written
            stored = min(stored, tokens)
            pause = rng.choice([0.2, 5.0])  # a tool that is quick, or one that lets the pair rest
            now += pause
            cost = tokens * token_bytes / disk
            saved = (tokens - stored) / prefill
            worth = saved > 2 * cost and saved >= stored_texts.LEAST_SECONDS
            if pause > 2 and worth and spent + cost <= stored_texts.SHARE * now:
                spent, stored, now = spent + cost, tokens, now + 0.15 * cost
        print(f"agents, {name}: copies and writes take {spent / now:.2%} of two hours")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["first-token", "find", "agents"])
    parser.add_argument("--target", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--tokens", type=int, default=8_000)
    parser.add_argument("--context", type=int, default=16_384)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    if arguments.what == "first-token":
        first_token(arguments)
    else:
        {"find": find, "agents": agents}[arguments.what]()


if __name__ == "__main__":
    main()
