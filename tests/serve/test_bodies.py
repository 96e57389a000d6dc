"""Bodies of requests: what they may hold is counted before it is unpacked."""

import asyncio
import json
import random
import subprocess
import sys
import threading

import pytest
from starlette.requests import Request

from localspec.serve import http
from localspec.serve.http import ValueCounter, fields_of
from localspec.serve.options import Problem


def request_of(*chunks):
    waiting = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    waiting.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive():
        return waiting.pop(0)

    return Request({"type": "http", "method": "POST", "headers": []}, receive), waiting


def commas_and_brackets(found):
    if not isinstance(found, dict | list):
        return 0
    inside = list(found.values()) if isinstance(found, dict) else found
    return max(len(inside), 1) + sum(map(commas_and_brackets, inside))


def any_value(chance, depth=4):
    text = "".join(chance.choices('a",[]{}\\\\\\"é漢', k=chance.randrange(9)))
    if depth == 0 or chance.random() < 0.3:
        return chance.choice([text, 1, None, [], {}])
    inside = [any_value(chance, depth - 1) for _ in range(chance.randrange(1, 6))]
    return inside if chance.random() < 0.5 else {f"{text}{n}": value for n, value in enumerate(inside)}


def test_the_count_is_right_for_every_cut_into_chunks():
    chance = random.Random(5)
    for _ in range(300):
        found = any_value(chance)
        body = json.dumps(found, ensure_ascii=chance.random() < 0.5).encode()
        counter, place, count = ValueCounter(), 0, 0
        while place < len(body):
            length = chance.randrange(1, 8)
            count = counter.count(body[place : place + length])
            place += length
        assert count == ValueCounter().count(body) == commas_and_brackets(found)


def test_a_body_of_small_values_is_refused_before_it_has_come_whole():
    request, waiting = request_of(*[b'{"messages":[' + b"[],{}," * 10_000] * 100)
    with pytest.raises(Problem, match="at most 500,000 JSON values") as caught:
        asyncio.run(fields_of(request))
    assert caught.value.status == 413
    assert len(waiting) > 70


def test_a_long_text_is_no_number_of_values():
    text = '[{,"\\' * 400_000
    request, _ = request_of(json.dumps({"prompt": text}).encode())
    assert asyncio.run(fields_of(request)).rest["prompt"] == text


def test_a_large_body_is_parsed_outside_the_event_loop(monkeypatch):
    threads, usual = [], json.loads
    monkeypatch.setattr(
        http.json, "loads", lambda body: threads.append(threading.current_thread()) or usual(body)
    )
    for length in (10, 100_000):
        request, _ = request_of(json.dumps({"prompt": "a" * length}).encode())
        asyncio.run(fields_of(request))
    assert threads[0] is threading.main_thread()
    assert threads[1] is not threading.main_thread()


HELD = """
from pathlib import Path
from localspec.serve.server import return_large_blocks
def held():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
return_large_blocks()
large = bytearray(20_000_000)
del large  # a block of 20 MB, after which glibc would keep smaller ones
before, bodies, small = held(), [], []
for _ in range(50):
    bodies.append(bytearray(b"x") * 1_000_000)
    small.append(bytearray(b"x") * 60_000)  # lies between two bodies
bodies.clear()
print(held() - before)
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
def test_bodies_that_are_answered_leave_no_memory_behind():
    found = subprocess.run([sys.executable, "-c", HELD], check=True, capture_output=True, text=True)
    assert int(found.stdout) < 10_000_000
