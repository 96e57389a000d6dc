"""Bodies of requests: what they may hold is counted before it is unpacked."""

import asyncio
import json
import subprocess
import sys
import threading

import pytest
from starlette.requests import Request

from localspec.serve import http
from localspec.serve.http import fields_of
from localspec.serve.options import Problem


def request_of(*chunks):
    waiting = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    waiting.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive():
        return waiting.pop(0)

    return Request({"type": "http", "method": "POST", "headers": []}, receive), waiting


def test_a_body_of_small_values_is_refused_before_it_has_come_whole():
    request, waiting = request_of(*[b'{"messages":[' + b"[],{}," * 40_000] * 100)
    with pytest.raises(Problem, match="at most 2,000,000 commas") as caught:
        asyncio.run(fields_of(request))
    assert caught.value.status == 413
    assert len(waiting) > 70


def test_a_text_of_many_signs_is_accepted():
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
