"""Many clients at once: each asks for a word of its own, some leave early, and the engine may be killed."""

import asyncio
import itertools
import json
import os
import random
import re
import signal
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

import httpx
import pytest

from tests.serve.conftest import serving

pytestmark = pytest.mark.nightly

KILLED = "the engine process ended unexpectedly (SIGKILL"
TIMEOUT_SECONDS = 120.0  # for one request


@dataclass(frozen=True)
class Call:
    """One request, its word, and when its client leaves."""

    path: str
    body: dict
    word: str
    pattern: str
    leaves_after_seconds: float | None = None


@dataclass
class Outcome:
    """What became of all requests."""

    counts: Counter = field(default_factory=Counter)
    wrong: list = field(default_factory=list)
    most_at_once: int = 0  # replies, by /slots


def calls(number, chance):
    """Requests whose answers can only say their words; many begin with the same text."""
    for index in range(number):
        word = "".join(chance.choice("bdfgklmnprstvz") + chance.choice("aeiou") for _ in range(4))
        word += "".join("abcdefghij"[int(digit)] for digit in str(index))
        pattern = f"{word} [a-z ]{{{chance.choice((2, 10, 60))},80}}"
        beginning = SHARED[: chance.choice((0, 0, 30, 300, chance.randrange(300)))]
        text = " ".join(beginning) + f" Say {word}." + " word" * chance.choice((0, 0, 20))
        path = chance.choice(("/v1/chat/completions", "/v1/completions"))
        asked = (
            {"prompt": text}
            if path == "/v1/completions"
            else {"messages": [{"role": "user", "content": text}]}
        )
        body = {**asked, "stream": chance.random() < 0.6, "regex": pattern, "max_tokens": 120}
        body |= {"n": 2} if chance.random() < 0.2 else {}
        yield Call(path, body, word, pattern, chance.uniform(0, 0.6) if chance.random() < 0.2 else None)


SHARED = [f"word{number % 7}" for number in range(300)]


def judged(call, status, lines):
    """The word for an outcome, and whether it is wrong."""
    texts, error = {}, ""
    for line in lines:
        try:
            found = json.loads(line.removeprefix("data: "))
        except ValueError:
            continue
        if "error" in found:
            error = json.dumps(found)
        for choice in found.get("choices", ()):
            part = choice.get("message") or choice.get("delta") or choice
            text = part.get("content") or part.get("text") or ""
            texts[choice["index"]] = texts.get(choice["index"], "") + text
    if error or status != 200:
        expected = status in (200, 503) and KILLED in error
        return ("killed", False) if expected else (f"{status} {error}", True)
    whole = [re.fullmatch(call.pattern, text) is not None for text in texts.values()]
    right = all(whole) and len(whole) == call.body.get("n", 1)
    return ("answered", False) if right else (f"{call.word}: {texts}", True)


async def asked(client, call):
    async with client.stream("POST", call.path, json=call.body) as answer:
        return judged(call, answer.status_code, [line async for line in answer.aiter_lines()])


async def kill_engine(client):
    """Kill the engine once it has loaded its pair."""
    while (answer := await client.get("/props")).status_code != 200:
        await asyncio.sleep(0.05)
    os.kill(answer.json()["localspec"]["engine_pid"], signal.SIGKILL)


async def crowd(url, number, clients, *, kills=0, seed=1):
    """All requests, from so many clients; the engine is killed so often."""
    chance, outcome = random.Random(seed), Outcome()
    left = list(calls(number, chance))
    kill_at = {number * (kill + 1) // (kills + 1) for kill in range(kills)}

    async def client_of(client):
        while left:
            call = left.pop()
            if len(left) in kill_at:
                kill_at.discard(len(left))
                await kill_engine(client)
            asking = asyncio.create_task(asked(client, call))
            done, _ = await asyncio.wait({asking}, timeout=call.leaves_after_seconds or TIMEOUT_SECONDS)
            if not done:
                asking.cancel()
                await asyncio.wait({asking})
                outcome.counts["left" if call.leaves_after_seconds else "hung"] += 1
                continue
            what, wrong = asking.result()
            outcome.counts["wrong" if wrong else what] += 1
            outcome.wrong += [what] if wrong else []

    async def watch(client):
        for _ in itertools.count():
            with suppress(httpx.HTTPError, ValueError):
                slots = (await client.get("/slots")).json()
                busy = sum(slot["is_processing"] for slot in slots) if isinstance(slots, list) else 0
                outcome.most_at_once = max(outcome.most_at_once, busy)
            await asyncio.sleep(0.05)

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_SECONDS + 10, limits=limits) as client:
        watching = asyncio.create_task(watch(client))
        await asyncio.gather(*(client_of(client) for _ in range(clients)))
        watching.cancel()
    return outcome


def test_every_client_gets_its_own_word_while_others_leave_and_an_engine_is_killed(tmp_path):
    with serving(tmp_path, "demo", "--parallel", "4") as endpoint:
        outcome = asyncio.run(crowd(endpoint.url, 30, 8, kills=1))
    assert outcome.wrong == []
    assert outcome.counts["hung"] == 0
    assert outcome.counts["answered"] >= 14
    assert outcome.counts["killed"] >= 1
    assert outcome.most_at_once == 4
