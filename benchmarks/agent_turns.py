"""Whole agents on loopback against a model that writes a script of calls, and their requests on every template.

    python -m benchmarks.agent_turns --folder DIR [--agents NAME ...] [--template NAME]
    python -m benchmarks.agent_turns --folder DIR --replay

Install the agents in DIR as `benchmarks.planted_agents` says. Each agent answers twelve turns or more: calls, a denied
call, a call that the limit cuts, one without its arguments, one of a tool that is not there, an image and a PDF. It
passes when no request was refused. DIR/requests keeps what it sent. `--replay` makes the prompts of these requests with
every template.
"""

import argparse
import asyncio
import base64
import json
import os
import shlex
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localspec.chat.session import Session
from localspec.engine.messages import Generate, LoadPair, Question
from localspec.engine.requests import answer, ready, reply
from localspec.engine.server import failure_of
from localspec.models.registry import named
from localspec.prompt.tools import read_tools
from localspec.sampler.sampling import Sampling
from localspec.serve.jobs import Jobs
from localspec.serve.replies import Names, Pairs
from localspec.serve.server import failed, routes_of
from tests.exact_engine import ExactContext, engine_of
from tests.prompt.carried import TEMPLATES
from tests.structure.test_forms import ByteVocabulary

PIXEL: Final = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAoAAAAKCAIAAAACUFjqAAAAEklEQVR4nGP4z8CAB+GTG8HSALfKY52fTcuYAAAAAElFTkSuQmCC"
)
PDF: Final = (
    b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj\n"
    b"3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"
)
SECONDS: Final = 400  # longest run of an agent
CUT, END = "cut", "end"
Turn = tuple[str, dict[str, Any]]  # a tool and its arguments; CUT: the call is cut; END: the answer
TEXT: Final = "I look.\n"
EOS: Final = ByteVocabulary.eos


def turns_of(agent: str, work: Path) -> list[Turn]:
    notes, picture, paper = (str(work / name) for name in ("notes.txt", "picture.png", "paper.pdf"))
    if agent == "claude":
        read, shell = "Read", "Bash"
        key, more = "file_path", {"description": "d"}
    elif agent == "opencode":
        read, shell = "read", "bash"
        key, more = "filePath", {"description": "d"}
    else:
        codex = [
            f"cat {notes}",
            "ls",
            f"touch {work}/denied",
            "false",
            f"head -c 200 {paper}",
            "echo '{\"a\": 1}'",
        ]
        shells: list[Turn] = [("exec_command", {"cmd": text}) for text in codex]
        return [
            *shells[:3], ("view_image", {"path": picture}), *shells[3:], ("exec_command", {"cmd": "cat nothing"}),
            ("exec_command", {"cmd": "pwd"}), ("exec_command", {"cmd": "ls -l"}), ("get_goal", {}),
            (CUT, {"cmd": f"cat {notes}"}), (END, {}),
        ]  # fmt: skip
    return [
        (read, {key: notes}), (shell, {"command": "ls", **more}), (shell, {"command": "rm -rf denied", **more}),
        (CUT, {key: notes}), (read, {key: picture}), (read, {key: paper}), (read, {key: str(work)}),
        (shell, {"command": "false", **more}), (read, {key: f"{work}/nothing.txt"}),
        (shell, {"command": "echo '{\"a\": 1}' \\\\ é", **more}),
        (read, {key: notes}), (read, {key: notes, "limit": 1}), (END, {}),
    ]  # fmt: skip


class Written(ExactContext):
    """Writes the bytes of `text` after a prompt of `start` tokens, and ends."""

    start, text = 0, b""

    def state(self, seed: int) -> int:
        return 0

    def row(self) -> np.ndarray:
        row, at = np.zeros(self.vocabulary, np.float32), len(self.cache) - self.start
        row[self.text[at] if 0 <= at < len(self.text) else EOS] = 1000
        return row


class Engine:
    """The engine's side of the queue: the n-th request with tools gets the n-th turn."""

    pid = 1

    def __init__(self, template: str, turns: list[Turn]) -> None:
        self._turns, self.done = turns, 0
        self._model = Written(1, vocabulary=ByteVocabulary().size, capacity=1_000_000, chunk=4096)
        engine = engine_of(ByteVocabulary(), template, self._model, None, sampling=Sampling(temperature=0.0))
        self.session = Session(engine)
        self._reports: list[tuple[int, Any]] = [(0, ready(self.session, 0.1))]
        self.on_report = lambda: None

    def send(self, request: object) -> None:
        reports: list[Any] = []
        if isinstance(request, Generate):
            try:
                request = self._with_turn(request)
                reply(self.session, request, reports.append, lambda: False)
            except Exception as error:  # noqa: BLE001  as the engine process does
                reports.append(failure_of(error, request.serial))
        elif isinstance(request, Question):
            reports.append(answer(self.session, request))
        self._reports += [(request.serial, report) for report in reports]
        asyncio.get_running_loop().call_soon(self.on_report)

    def _with_turn(self, request: Generate) -> Generate:
        options = dict(request.options)
        options.pop("max_tokens", None)
        tool, arguments = END, dict[str, Any]()
        if options.get("tools") and self.done < len(self._turns):
            tool, arguments = self._turns[self.done]
            self.done += 1
        cut = tool == CUT
        prompt = self.session.prompt_of(request.messages, **options)
        template = self.session.pair.template
        style = template.thinking_style(prompt.text)
        text = (
            "Thoughts." + next(m for m, k in style.markers.items() if k == "answer")
            if style and style.opened
            else ""
        )
        if tool == END:
            text += TEXT
        else:
            known = {
                each.called: each.parameters.get("properties", {}) for each in read_tools(options["tools"])
            }
            if cut:
                tool = next(
                    name
                    for name, schema in known.items()
                    if arguments.keys() <= schema.get("properties", {}).keys()
                )
            arguments = {key: arguments[key] for key in known[tool].get("properties", {}) if key in arguments}
            text += template.tool_call_format.written([(tool, arguments)])
        self._model.start, self._model.text = len(prompt.tokens), text.encode()
        options["max_tokens"] = len(text.encode()) + 200
        if cut:
            options["max_tokens"] = len(text.encode()) - 12
        return replace(request, options=options)

    def drain_numbered(self) -> list[tuple[int, Any]]:
        reports, self._reports = self._reports, []
        return reports


def app_of(engine: Engine) -> Starlette:
    jobs = Jobs(engine, LoadPair(named("demo")))  # type: ignore[arg-type]
    routes = routes_of(jobs, Pairs(jobs, Names(any_model=True)))
    return Starlette(routes=routes, exception_handlers={HTTPException: failed, Exception: failed})


class Recorder:
    """Middleware that keeps each request with its answer's status, and the start of a refusal."""

    def __init__(self, app: ASGIApp) -> None:
        self._app, self.kept = app, list[dict[str, Any]]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body, sent, status = b"", b"", 0
        scope["path"] = "/" + "/".join(filter(None, scope["path"].split("/")))

        async def receiving() -> Message:
            nonlocal body
            message = await receive()
            body += message.get("body", b"")
            return message

        async def sending(message: Message) -> None:
            nonlocal sent, status
            status, sent = message.get("status", status), sent + message.get("body", b"")
            await send(message)

        await self._app(scope, receiving, sending)
        failed = status >= 400 or b'"error": {' in sent or b'"error":{' in sent
        given = json.loads(body) if body[:1] == b"{" else {}
        kept = {
            "path": scope["path"],
            "status": status,
            "body": given,
            "answer": sent.decode()[: 600 if failed else 0],
        }
        self.kept.append(kept)


@contextmanager
def serving(engine: Engine) -> Iterator[tuple[str, Recorder]]:
    """A server in a thread: its address, and what it was asked."""
    started = threading.Event()
    found: list[Any] = []

    async def run() -> None:
        recorder = Recorder(app_of(engine))
        server = uvicorn.Server(uvicorn.Config(recorder, port=0, lifespan="off", log_level="warning"))
        running = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        found.extend((server, server.servers[0].sockets[0].getsockname()[1], recorder))
        started.set()
        await running

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    started.wait()
    server, port, recorder = found
    try:
        yield f"http://127.0.0.1:{port}", recorder
    finally:
        server.should_exit = True
        thread.join()


def command_of(agent: str, folder: Path, url: str, work: Path) -> tuple[list[str], dict[str, str]]:
    npm, ask = folder / "node_modules/.bin", "Look at all files here, and tell me what they mean."
    home = folder / "home"
    home.mkdir(exist_ok=True)
    environment = {"HOME": str(home), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    if agent == "claude":
        words = [npm / "claude", "-p", ask, "--model", "planted", "--max-turns", "30"]
        environment |= {
            "ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": "any", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }  # fmt: skip
    elif agent == "opencode":
        model = {"name": "planted", "limit": {"context": 900_000, "output": 9_000}, "attachment": True}
        model |= {"modalities": {"input": ["text", "image", "pdf"], "output": ["text"]}}
        provider = {"npm": "@ai-sdk/openai-compatible", "models": {"planted": model}}
        config = {
            "provider": {"localspec": {**provider, "options": {"baseURL": f"{url}/v1", "apiKey": "any"}}},
            "permission": {"bash": {"*": "allow", "rm *": "deny"}, "external_directory": "allow"},
        }
        environment |= {"OPENCODE_CONFIG_CONTENT": json.dumps(config)}
        words = [npm / "opencode", "run", "--model", "localspec/planted", "--title", "t", ask]
    elif agent == "codex":
        provider = f'model_providers.localspec={{name="localspec",base_url="{url}/v1",wire_api="responses"}}'
        words = [npm / "codex", "exec", "--skip-git-repo-check", "-s", "read-only", "-m", "planted"]
        words += ["-c", "model_provider=localspec", "-c", provider]
        # Codex ends at an answer that is incomplete; the conversation goes on when it is resumed.
        both = shlex.join([*map(str, words), ask]), shlex.join([*map(str, words), "resume", "--last", ask])
        words = ["bash", "-c", "; ".join(both)]
    else:
        asks = ["/add notes.txt picture.png paper.pdf", *(f"/ask Question {n}?" for n in range(12)), "/quit"]
        (folder / "asks.txt").write_text("\n".join(asks))
        words = [
            folder / "aider-venv/bin/aider",
            "--model",
            "openai/planted",
            "--openai-api-base",
            f"{url}/v1",
        ]
        words += ["--openai-api-key", "any", "--no-git", "--yes-always", "--no-show-model-warnings"]
        words += ["--no-check-update", "--no-analytics", "--no-stream", "--load", folder / "asks.txt"]
        environment |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    return [*map(str, words)], environment


def run(agent: str, folder: Path, template: str) -> str:
    work = folder / "work"
    work.mkdir(exist_ok=True)
    (work / "notes.txt").write_text("The word is zqx.\n")
    (work / "picture.png").write_bytes(PIXEL)
    (work / "paper.pdf").write_bytes(PDF)
    engine = Engine(TEMPLATES[template], turns_of(agent, work))
    with serving(engine) as (url, recorder):
        words, environment = command_of(agent, folder, url, work)
        ended = subprocess.run(
            words, cwd=work, env=os.environ | environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=SECONDS, check=False,
        )  # fmt: skip
    (folder / "requests").mkdir(exist_ok=True)
    kept = [json.dumps(each) for each in recorder.kept]
    (folder / "requests" / f"{agent}.jsonl").write_text("\n".join(kept))
    refused = [f"{k['path']} {k['status']} {k['answer'][:300]}" for k in recorder.kept if k["answer"]]
    posts = sum(bool(each["body"]) for each in recorder.kept)
    if not refused and not ended.returncode:
        return f"passes: {posts} requests, {engine.done} turns"
    printed = f"{ended.stdout[-500:]!r} {ended.stderr[-500:]!r}"
    return "\n  ".join(
        (f"{posts} requests, {engine.done} turns, status {ended.returncode}, {printed}", *refused)
    )


async def replay(folder: Path) -> None:
    """Render each recorded request with every template."""
    for name, source in sorted(TEMPLATES.items()):
        app = app_of(Engine(source, []))
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://127.0.0.1"
        ) as client:
            count, refused = 0, []
            for path in sorted((folder / "requests").glob("*.jsonl")):
                kept = [json.loads(line) for line in path.read_text().splitlines()]
                longest = [each for each in kept if each["body"] and "count" not in each["path"]][-1:]
                for each in longest:
                    answer = await client.post(each["path"], json=each["body"] | {"stream": False})
                    count += 1
                    if answer.status_code != 200:
                        refused.append(f"{path.stem}: {answer.status_code} {answer.text[:200]}")
        print(f"{name}: {count} requests, {len(refused)} refused", *refused, sep="\n  ", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True)
    agents = ("claude", "codex", "opencode", "aider")
    parser.add_argument("--agents", nargs="*", default=agents, choices=agents)
    parser.add_argument("--template", default="Qwen-Qwen3-0.6B", choices=TEMPLATES)
    parser.add_argument("--replay", action="store_true")
    options = parser.parse_args()
    if options.replay:
        asyncio.run(replay(options.folder))
        return
    for agent in options.agents:
        print(f"{agent:10}", run(agent, options.folder.resolve(), options.template), flush=True)


if __name__ == "__main__":
    main()
