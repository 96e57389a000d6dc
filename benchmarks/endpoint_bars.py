"""What an endpoint must survive: clients that leave, a queue, an engine that is killed, requests of every kind.

    python -m benchmarks.endpoint_bars [--leave 200] [--requests 500] [--kills 4] [PAIR]

Starts `localspec serve` with the pair (default: demo) and prints one line for each.
"""

import argparse
import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median, quantiles
from typing import Any

import httpx
from openai.types.chat import ChatCompletion, ChatCompletionChunk

LONG = {
    "messages": [{"role": "user", "content": "Write a lot."}],
    "max_tokens": 1500,
    "regex": "[a-z ]{6000,}",  # it does not end by itself
}
HEAVY = {"messages": [{"role": "user", "content": "word " * 900}], "max_tokens": 500}
SHORT = {"messages": [{"role": "user", "content": "What is speculative decoding?"}], "max_tokens": 8}
CHAT = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pair", nargs="?", default="demo")
    parser.add_argument("--leave", type=int, default=200)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--kills", type=int, default=4)
    options = parser.parse_args()
    with running(options.pair) as url:
        asyncio.run(disconnects(url, options.leave))
        asyncio.run(queue(url, 50))
        asyncio.run(kills(url, options.kills))
        requests(url, options.requests)


@contextmanager
def running(*arguments: str) -> Iterator[str]:
    """The address of a server that is started with these."""
    command = [sys.executable, "-m", "localspec", "serve", *arguments, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        address = re.search(r"http://\S+", process.stdout.readline())
        process.stdout.readline()
        assert address is not None
        yield address[0]
    finally:
        process.terminate()
        process.wait(10)


async def disconnects(url: str, count: int) -> None:
    """Clients that leave at random moments, while their prompts are read too."""
    chance, waits, wrong = random.Random(1), [], 0
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        expected = await text_of(client)
        for number in range(count):
            body = chance.choice((LONG, HEAVY)) | {"stream": chance.random() < 0.5, "temperature": 0}
            async with httpx.AsyncClient(base_url=url) as other:
                asking = asyncio.create_task(other.post(CHAT, json=body))
                stayed = chance.uniform(0, 0.3)
                await asyncio.sleep(stayed)
                asking.cancel()
            waits.append((await seconds_until_idle(client), stayed, body["stream"], body["max_tokens"]))
            wrong += number % 10 == 0 and await text_of(client) != expected
    seconds = [wait[0] for wait in waits]
    cuts = quantiles(seconds, n=20)
    print(
        f"{count} disconnects: idle after {median(seconds) * 1e3:.0f} ms (median), {cuts[18] * 1e3:.0f} ms (95 %)"
    )
    for wait, stayed, stream, most in sorted(waits, reverse=True)[:3]:
        print(
            f"  at most {wait * 1e3:.0f} ms: after {stayed * 1e3:.0f} ms, stream {stream}, max_tokens {most}"
        )
    print(f"  {wrong} replies after them were wrong")


async def seconds_until_idle(client: httpx.AsyncClient) -> float:
    began = time.monotonic()
    while True:
        told = (await client.get("/metrics")).text
        if "requests_processing 0" in told and "requests_deferred 0" in told:
            return time.monotonic() - began
        await asyncio.sleep(0.002)


async def text_of(client: httpx.AsyncClient) -> str:
    answer = (await client.post(CHAT, json=SHORT | {"temperature": 0})).json()
    return str(answer["choices"][0]["message"]["content"])


async def queue(url: str, count: int) -> None:
    """Requests that come one after the other while a long reply is written."""
    ended: list[int] = []

    async def ask(client: httpx.AsyncClient, number: int) -> None:
        await client.post(CHAT, json=SHORT | {"temperature": 0})
        ended.append(number)

    limits = httpx.Limits(max_connections=count + 2)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        running = asyncio.create_task(client.post(CHAT, json=LONG))
        asked = []
        for number in range(count):
            asked.append(asyncio.create_task(ask(client, number)))
            while f"requests_deferred {number + 1}" not in (await client.get("/metrics")).text:
                await asyncio.sleep(0.005)
        running.cancel()
        await asyncio.gather(*asked)
    print(f"{count} requests queued: in order: {ended == sorted(ended)}")


async def kills(url: str, count: int) -> None:
    """The engine is killed in a stream."""
    for _ in range(count):
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            pid = (await client.get("/props")).json()["localspec"]["engine_pid"]
            killed, told = 0.0, False
            async with client.stream("POST", CHAT, json=LONG | {"stream": True}) as answer:
                async for line in answer.aiter_lines():
                    if "content" in line and not killed:
                        os.kill(pid, signal.SIGKILL)
                        killed = time.monotonic()
                    told = told or '"error"' in line
            chunk = time.monotonic()
            await text_of(client)
            print(
                f"kill -9 in a stream: error chunk {told} after {(chunk - killed) * 1e3:.0f} ms, "
                f"next reply after {time.monotonic() - killed:.2f} s"
            )


def requests(url: str, count: int) -> None:
    """Random requests whose answers are what openai's own types say, strictly."""
    chance, chunks, wrong = random.Random(2), 0, 0
    with httpx.Client(base_url=url, timeout=60) as client:
        for _ in range(count):
            body = random_request(chance)
            with client.stream("POST", CHAT, json=body) as answer:
                if answer.status_code != 200:
                    wrong += 1
                    answer.read()
                    print(f"  {answer.status_code} {answer.text} for {body}")
                    continue
                lines = (
                    [line[6:] for line in answer.iter_lines() if line.startswith(("data: {", "{"))]
                    if body["stream"]
                    else ["".join(answer.iter_text())]
                )
            kind = ChatCompletionChunk if body["stream"] else ChatCompletion
            for line in lines:
                try:
                    kind.model_validate_json(line, strict=True)
                    chunks += 1
                except ValueError as error:
                    wrong += 1
                    print(f"  {error} in {line[:300]}")
    print(f"{count} random requests: {chunks} chunks and answers valid, {wrong} wrong")


def random_request(chance: random.Random) -> dict[str, Any]:
    """A valid request for a chat completion."""
    body: dict[str, Any] = {
        "model": "demo",
        "messages": [
            {"role": "user", "content": chance.choice(("Hi", "What is a draft?", "2+2?", "Über 日本"))}
        ],
        "max_tokens": chance.randint(1, 24),
        "stream": chance.random() < 0.7,
    }
    extras: list[dict[str, Any]] = [
        {"tools": [TOOL], "tool_choice": chance.choice(("auto", "required"))},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
        {"response_format": {"type": "json_object"}},
        {},
    ]
    body |= chance.choice(extras)
    for name, values in {
        "temperature": (0, 0.7, 2),
        "seed": (1, 2**31),
        "n": (1, 2),
        "stop": ("e", ["x", "\n"]),
        "stream_options": ({"include_usage": True},),
        "logprobs": (True,),
        "depth": (0, 3, "auto"),
        "prediction": ({"type": "content", "content": "Speculative decoding drafts tokens."},),
        "presence_penalty": (0.5,),
        "logit_bias": ({"5": 1},),
        "user": ("me",),
    }.items():
        if chance.random() < 0.25:
            body[name] = chance.choice(values)
    if not body["stream"]:
        body.pop("stream_options", None)
    return body


if __name__ == "__main__":
    main()
