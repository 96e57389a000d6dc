"""What the endpoint costs: the same prompts through the library, `localspec serve` and llama-server, in turns.

    python -m benchmarks.endpoint_speed --cache DIR [--rounds 5] [--tokens 96] [--demo] [--server DIR/bin/llama-server]

Prints tokens per second by wall clock from the first text to the last, and the time to the first text of a prompt
that is in the cache, as medians and as the median of the ratios prompt by prompt; the endpoint once more while 64 idle
connections are open; and how long the command takes to say its help, and to be ready, against the chat's engine.
benchmarks/server/build.py builds llama-server.
"""

import argparse
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter

import httpx

import localspec
from benchmarks.endpoint_bars import running
from benchmarks.server.models import Files, enlarged
from benchmarks.server.sides import Flags, ServerSide
from localspec import demo
from localspec.engine.client import EngineProcess
from localspec.engine.messages import LoadPair, Ready
from localspec.events import Piece

PROMPTS = (
    "What is speculative decoding?",
    "Write a function that adds two numbers.",
    "Tell me a story about rain.",
    "Why is the sky blue?",
)
DEPTH = 4  # the same on both sides: an automatic one follows what each has measured


IDLE = 64  # connections


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--demo", action="store_true", help="the embedded pair as it is")
    parser.add_argument("--server", type=Path, help="llama-server, to take turns with")
    parser.add_argument("--threads", type=int, default=2, help="of llama-server")
    options = parser.parse_args()
    files = (
        Files("demo", demo.target_path(), demo.draft_path())
        if options.demo
        else enlarged(options.cache, "f16")
    )
    starts(files)
    with ExitStack() as opened:
        url = opened.enter_context(endpoint(files))
        session = opened.enter_context(
            localspec.load(target=files.target, draft=files.draft, context_length=2048)
        )
        sides = {"endpoint": opened.enter_context(httpx.Client(base_url=url, timeout=300))}
        if options.server:
            llama = opened.enter_context(llama_server(options.server, files, options.threads, options.cache))
            sides["llama-server"] = opened.enter_context(httpx.Client(base_url=llama, timeout=300))
        measure(session, sides, options.rounds, options.tokens)
        idle(url, sides["endpoint"], options.rounds, options.tokens)


def starts(files: Files) -> None:
    """How long until help is said, the chat's engine has the pair, and the endpoint has it."""
    began = perf_counter()
    subprocess.run(
        [sys.executable, "-m", "localspec", "serve", "--help"], check=True, stdout=subprocess.DEVNULL
    )
    print(f"serve --help: {perf_counter() - began:.2f} s")
    began, engine, ready = perf_counter(), EngineProcess(), False
    engine.start()
    engine.send(LoadPair(target=str(files.target), draft=str(files.draft), context_length=2048))
    while not ready:
        ready = any(isinstance(report, Ready) for report in engine.drain())
        time.sleep(0.002)
    print(f"the chat's engine is ready after {perf_counter() - began:.2f} s")
    engine.close()
    began = perf_counter()
    with endpoint(files):
        print(f"the endpoint is ready after {perf_counter() - began:.2f} s")


def endpoint(files: Files) -> AbstractContextManager[str]:
    """The address of a server with these models."""
    return running("--context", "2048", "--target", str(files.target), "--draft", str(files.draft))


@contextmanager
def llama_server(binary: Path, files: Files, threads: int, folder: Path) -> Iterator[str]:
    log = folder / "llama-server.log"
    flags = Flags(DEPTH)
    with ServerSide(
        binary, files.target, files.draft, flags, threads=threads, context=2048, log=log, clock="wall"
    ) as server:
        yield server.url


def measure(session: "localspec.Session", sides: dict[str, httpx.Client], rounds: int, tokens: int) -> None:
    """Every prompt to each side, first for one token, so that it is in the cache."""
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    firsts: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for number in range(rounds):
        for prompt in PROMPTS:
            by_library(session, prompt, 1)
            own_first, own_rate = by_library(session, prompt, tokens)
            for name, client in sides.items():
                by_endpoint(client, prompt, 1)
                first, rate = by_endpoint(client, prompt, tokens)
                if number:  # the first round warms all up
                    rates[name].append((own_rate, rate))
                    firsts[name].append((own_first, first))
    for name in sides:
        ours, theirs = (median(pair[i] for pair in rates[name]) for i in (0, 1))
        ratio = median(b / a for a, b in rates[name])
        print(
            f"tokens/s: library {ours:.1f}, {name} {theirs:.1f}, ratio {ratio:.3f} over {len(rates[name])} pairs"
        )
        later = median(b - a for a, b in firsts[name])
        print(f"first text of a cached prompt: {name} {later * 1000:+.1f} ms beyond the library's")


def idle(url: str, client: httpx.Client, rounds: int, tokens: int) -> None:
    """The endpoint's rate with idle connections open and without, in turns."""
    host, port = url.removeprefix("http://").split(":")
    ratios = []
    for prompt in PROMPTS * rounds:
        alone = by_endpoint(client, prompt, tokens)[1]
        held = [socket.create_connection((host, int(port))) for _ in range(IDLE)]
        ratios.append(by_endpoint(client, prompt, tokens)[1] / alone)
        for connection in held:
            connection.close()
    print(f"with {IDLE} idle connections: {median(ratios):.3f} of the rate without")


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
