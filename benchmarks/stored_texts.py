"""Caches on disk: the first token in a new process, with the text read and with it restored.

python -m benchmarks.stored_texts --target FILE [--draft FILE] [--tokens 8000] [--runs 3]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from localspec.caches.store import usage
from localspec.options import texts_dir

WORDS = "One line of a long text says what the next line says, and none of them says more. "

CHILD = """
import json, sys, time
import localspec
from localspec.caches.store import finish
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
        os.environ["LOCALSPEC_HOME"] = folder
        options = {"target": str(arguments.target), "context_length": arguments.context}
        if arguments.draft:
            options["draft"] = str(arguments.draft)
        read, *_ = runs(options, arguments, 1)  # and stored
        again, *_ = runs(options, arguments, arguments.runs)
        print(
            f"first token: read {read:.2f} s, stored {again:.2f} s, {again / read:.1%}; {usage(texts_dir())}"
        )


def runs(options: dict[str, object], arguments: argparse.Namespace, count: int) -> tuple[float, ...]:
    """The medians of some processes, one after the other."""
    found = []
    for _ in range(count):
        for path in texts_dir().glob("*.cache"):
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--tokens", type=int, default=8_000)
    parser.add_argument("--context", type=int, default=16_384)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    first_token(parser.parse_args())


if __name__ == "__main__":
    main()
