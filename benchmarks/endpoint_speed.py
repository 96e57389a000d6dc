"""What the endpoint costs: the same prompts through the library and through `localspec serve`, in turns.

    python -m benchmarks.endpoint_speed --cache DIR [--rounds 5] [--tokens 96] [--demo]

Prints tokens per second by wall clock from the first text to the last, and the time to the first text of a prompt
that is in the cache, as medians and as the median of the ratios prompt by prompt.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

import httpx

import localspec
from benchmarks.server.models import Files, enlarged
from localspec import demo
from localspec.events import Piece

PROMPTS = (
    "What is speculative decoding?",
    "Write a function that adds two numbers.",
    "Tell me a story about rain.",
    "Why is the sky blue?",
)
DEPTH = 4  # the same on both sides: an automatic one follows what each has measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--demo", action="store_true", help="the embedded pair as it is")
    arguments = parser.parse_args()
    files = (
        Files("demo", demo.target_path(), demo.draft_path())
        if arguments.demo
        else enlarged(arguments.cache, "f16")
    )
    command = [sys.executable, "-m", "localspec", "serve", "--port", "0", "--context", "2048"]
    command += ["--target", str(files.target), "--draft", str(files.draft)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = re.search(r"http://\S+", server.stdout.readline())
        server.stdout.readline()
        assert url is not None
        with (
            localspec.load(target=files.target, draft=files.draft, context_length=2048) as session,
            httpx.Client(base_url=url[0], timeout=300) as client,
        ):
            measure(session, client, arguments.rounds, arguments.tokens)
    finally:
        server.terminate()


def measure(session: "localspec.Session", client: httpx.Client, rounds: int, tokens: int) -> None:
    rates: list[tuple[float, float]] = []
    firsts: list[tuple[float, float]] = []
    for number in range(rounds):
        for prompt in PROMPTS:
            in_library = [by_library(session, prompt, 1), by_library(session, prompt, tokens)]
            by_http = [by_endpoint(client, prompt, 1), by_endpoint(client, prompt, tokens)]
            if number:  # the first round warms both up
                rates.append((in_library[1][1], by_http[1][1]))
                firsts.append((in_library[1][0], by_http[1][0]))
                print(
                    f"library {rates[-1][0]:.2f} tokens/s, endpoint {rates[-1][1]:.2f}",
                    file=sys.stderr,
                    flush=True,
                )
    print(
        f"tokens/s: library {median(a for a, _ in rates):.1f}, endpoint {median(b for _, b in rates):.1f}, ",
        end="",
    )
    print(f"ratio {median(b / a for a, b in rates):.3f} over {len(rates)} pairs")
    print(f"first text of a cached prompt: library {median(a for a, _ in firsts) * 1000:.1f} ms, ", end="")
    print(f"endpoint {median(b for _, b in firsts) * 1000:.1f} ms, ", end="")
    print(f"difference {median(b - a for a, b in firsts) * 1000:.1f} ms")


def by_library(session: "localspec.Session", prompt: str, tokens: int) -> tuple[float, float]:
    """Seconds to the first text, and tokens per second after it."""
    began, times, written = perf_counter(), [], 0
    for event in session.stream(
        [{"role": "user", "content": prompt}], temperature=0, max_tokens=tokens, depth=DEPTH
    ):
        if isinstance(event, Piece):
            times.append(perf_counter())
        elif isinstance(event, localspec.Finished):
            written = len(event.reply.tokens)
    return times[0] - began, written / max(times[-1] - times[0], 1e-9)


def by_endpoint(client: httpx.Client, prompt: str, tokens: int) -> tuple[float, float]:
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": tokens,
        "depth": DEPTH,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began, times, written = perf_counter(), [], 0
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            if chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                times.append(perf_counter())
            if "usage" in chunk:
                written = chunk["usage"]["completion_tokens"]
    return times[0] - began, written / max(times[-1] - times[0], 1e-9)


if __name__ == "__main__":
    main()
