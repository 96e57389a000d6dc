"""Public reports of requests that other programs refuse or lose: each is answered, and its words reach the model."""

import asyncio
import json
import re
from pathlib import Path

import httpx
import pytest

from benchmarks.agent_turns import Engine, app_of
from tests.prompt.carried import TEMPLATES, tiered

REPORTS = [json.loads(line) for line in (Path(__file__).parent / "reports.jsonl").read_text().splitlines()]
PAGE = Path(__file__).parents[2] / "benchmarks" / "results" / "reports-2026-11-29.md"


class Reader(Engine):
    """An engine that keeps the prompt of its latest reply."""

    prompt = ""

    def _with_turn(self, request):
        options = {name: value for name, value in request.options.items() if name != "max_tokens"}
        self.prompt = self.session.prompt_of(request.messages, **options).text
        return super()._with_turn(request)


async def failures(template):
    engine, failed = Reader(TEMPLATES[template], []), []
    transport = httpx.ASGITransport(app_of(engine))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        for given in REPORTS:
            engine.prompt = ""
            answer = await client.post(given["path"], json=given["body"])
            words = re.findall(r"\bw[A-Z][a-z]+", json.dumps(given["body"]))
            lost = [word for word in words if engine.prompt.count(word) != 1]
            if answer.status_code != 200 or lost:
                failed.append((given["report"], answer.status_code, lost, answer.text[:200]))
    return failed


@pytest.mark.parametrize("template", tiered(TEMPLATES))
def test_every_reported_request_is_answered_and_no_word_is_lost(template):
    assert asyncio.run(failures(template)) == []


def test_the_page_has_every_report():
    rows = re.findall(r"^\| ([\w.-]+/[\w.-]+#\d+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [given["report"] for given in REPORTS]
