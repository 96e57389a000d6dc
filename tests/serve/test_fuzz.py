"""Whatever is sent, there is an answer, and it blames the request and not the server."""

import random

from tests.serve.bodies import body, verdict

CASES = 250


def test_no_body_breaks_the_server(http):
    chance = random.Random(20)
    wrong = []
    for _ in range(CASES):
        path, raw = body(chance)
        answer = http.post(path, content=raw)
        if found := verdict(path, answer):
            wrong.append((path, raw, found))
    assert wrong == []
    assert http.get("/health").json() == {"status": "ok"}
