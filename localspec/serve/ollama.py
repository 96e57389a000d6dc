"""Ollama's interface: options in, lines of JSON out."""

import hashlib
import math
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from localspec.engine.messages import Answer
from localspec.errors import BadSetting
from localspec.events import FinishReason, Kind, Scored, ToolCall
from localspec.serve.bodies import Fields, Problem, cut
from localspec.serve.http import Interface, Writer, answer, dumped, fields_of, unless_gone
from localspec.serve.jobs import Loaded
from localspec.serve.openai import chat_scores, prompt_of, scores_of_chat
from localspec.serve.options import (
    checked,
    effort_options,
    length_and_seed,
    name_of,
    own,
    refuse_others,
    tool_options,
)
from localspec.serve.pairs import Chosen
from localspec.serve.replies import Done

INTERFACE_VERSION: Final = "0.12.0"  # of Ollama's interface: clients refuse old ones
_NOT_IN_GENERATE: Final = {
    "suffix": "models continue a text",
    "images": "models read text",
    "template": "the model file's own template is used",
    "context": "send the conversation to /api/chat",
}
_ABOUT_LOADING: Final = (
    "num_ctx", "num_batch", "num_gpu", "num_keep", "num_thread", "main_gpu", "low_vram", "use_mmap",
    "use_mlock", "numa", "penalize_newline",
)  # fmt: skip
_NANO: Final = 1_000_000_000
_NEVER: Final = datetime(2318, 1, 1, tzinfo=UTC)
_MOST_SECONDS: Final = 10**9  # thirty years
_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "": 1.0}
_DURATION: Final = re.compile(r"(-?)(\d+(?:\.\d+)?|(?:\d+(?:\.\d+)?(?:h|ms|m|s))+)")


def error_body(problem: Problem) -> object:
    return {"error": problem.message}


class Ollama(Interface):
    """The handlers."""

    async def version(self, request: Request) -> Response:
        return answer({"version": INTERFACE_VERSION})

    async def tags(self, request: Request) -> Response:
        return answer({"models": [self._model(name) for name in self._pairs.names()]})

    async def running(self, request: Request) -> Response:
        loaded, left = self._jobs.loaded, self._jobs.seconds_left
        if loaded is None or self._jobs.asleep:
            return answer({"models": []})
        expires = _NEVER if left is None else datetime.now(UTC) + timedelta(seconds=left)
        more = {"context_length": loaded.ready.context_length, "size_vram": 0}
        model = self._model(loaded.ready.pair, expires_at=written(expires), **more)
        return answer({"models": [model]})

    async def show(self, request: Request) -> Response:
        fields = await fields_of(request)
        chosen = self._pairs.choose(fields.take("model", str) or fields.take("name", str, ""))
        ready = (await self._loading(request, chosen)).ready
        info: dict[str, Any] = {"general.basename": ready.target, **ready.metadata}
        info[f"{ready.metadata.get('general.architecture', '')}.context_length"] = ready.context_length
        capabilities = ["completion", "tools", *(["thinking"] if ready.reasons else [])]
        more = {"template": ready.template, "model_info": info, "capabilities": capabilities}
        return answer(self._model(chosen.name, modelfile="", parameters="", **more))

    def _model(self, name: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401  JSON
        """A model as Ollama's clients list it."""
        found: list[os.stat_result] = []
        with suppress(OSError):  # a file may go meanwhile
            found += [file.stat() for file in self._pairs.files_of(name)]
        changed = max((stat.st_mtime for stat in found), default=0.0)
        details = dict.fromkeys(("parent_model", "family", "parameter_size", "quantization_level"), "")
        return {
            "name": name,
            "model": name,
            "modified_at": written(datetime.fromtimestamp(changed, UTC)),
            "size": sum(stat.st_size for stat in found),
            "digest": hashlib.sha256(name.encode("utf-8", "replace")).hexdigest(),
            "details": {"format": "gguf", "families": [], **details},
            **more,
        }

    async def chat(self, request: Request) -> Response:
        fields = await fields_of(request)
        messages = as_openai(fields.take("messages", list, []))
        return await self._reply(request, fields, prompt_of(messages) if messages else None, "message")

    async def generate(self, request: Request) -> Response:
        fields = await fields_of(request)
        text, system = fields.take("prompt", str, ""), fields.take("system", str, "")
        raw = fields.take("raw", bool, False)
        fields.refuse(_NOT_IN_GENERATE)
        prompt = None
        if text and raw:
            prompt = Answer(0, text=text)
        elif text:
            told = [{"role": "system", "content": system}] if system else []
            prompt = prompt_of([*told, {"role": "user", "content": text}])
        return await self._reply(request, fields, prompt, "response")

    async def _reply(self, request: Request, fields: Fields, prompt: Answer | None, name: str) -> Response:
        fields.rest.setdefault("stream", True)
        keep_alive = fields.rest.pop("keep_alive", None)
        kept = None if keep_alive is None else kept_seconds(keep_alive)
        options, unknown = options_of(fields)
        asked = self._asked(fields, (prompt,) if prompt else (), options)
        asked = replace(asked, unknown=(*unknown, *asked.unknown))
        writer = LineWriter(asked.chosen.name, name)
        if prompt is None and kept == 0:
            if self._jobs.loaded and self._jobs.loaded.load == asked.chosen.load:
                self._jobs.keep_alive(0)
            return answer(writer.line(ending={"done": True, "done_reason": "unload"}))
        if prompt is None:  # the client only wants the pair in memory
            await self._loading(request, asked.chosen)
            found = answer(writer.line(ending={"done": True, "done_reason": "load"}))
        else:
            found = await self.respond(request, asked, writer)
        if kept is not None:
            self._jobs.keep_alive(None if kept == math.inf else kept)
        return found

    async def _loading(self, request: Request, chosen: Chosen) -> Loaded:
        """The chosen pair, once it is in memory. Raises Problem."""
        job = self._jobs.submit(chosen.load, None)
        try:
            await unless_gone(request.receive, job.next())
        finally:
            job.give_up()
        loaded = self._jobs.loaded
        if loaded is None or loaded.load != chosen.load:
            raise Problem(503, "loading", "another pair is being loaded")
        return loaded


def options_of(fields: Fields) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The options of the reply, inside `options` and beside it; unknown names inside. Raises BadSetting."""
    inner = Fields(fields.take("options", dict, {}), "options")
    inner.drop(*_ABOUT_LOADING)
    if (count := inner.take("num_predict", int)) is not None:
        inner.rest["n_predict"] = max(count, -1)  # -2 means: until the context is full
    options = own(inner, "stop") | length_and_seed(inner)
    refuse_others(inner)
    think, form = fields.rest.pop("think", None), fields.rest.pop("format", "")
    if think is not None:  # true, false, or an effort
        options |= effort_options(think) if isinstance(think, str) else {"think": think}
    if form and form != "json" and not isinstance(form, dict):
        raise BadSetting(f"format is {cut(form)}", hint='give "json" or a JSON schema')
    if form:
        options["json_schema"] = {"type": "object"} if form == "json" else form
    options |= tool_options(fields) | chat_scores(fields)
    refuse_others(fields)
    return checked(options), inner.unknown()


def kept_seconds(given: object) -> float:
    """Ollama's keep_alive: seconds, or a text as 5m or 1h30m; infinite if it is negative. Raises BadSetting."""
    if isinstance(given, int | float) and not isinstance(given, bool) and abs(given) < _MOST_SECONDS:
        return given if given >= 0 else math.inf
    found = _DURATION.fullmatch(given) if isinstance(given, str) else None
    if found is None:
        raise BadSetting(f"keep_alive is {cut(given)}", hint="give seconds, or a text as 5m")
    parts = re.findall(r"([\d.]+)(h|ms|m|s|)", found[2])
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    return math.inf if found[1] or seconds >= _MOST_SECONDS else seconds


def as_openai(messages: list[Any]) -> list[Any]:
    """Ollama's messages in OpenAI's form, unchecked; calls get the ids that results refer to. Raises BadSetting."""
    found: list[Any] = []
    waiting: dict[str, str] = {}  # function names by the ids of calls without a result
    for message in messages:
        if not isinstance(message, dict):
            return messages
        if message.get("images"):
            raise BadSetting("a message has images", hint="models read text")
        calls = message.get("tool_calls")
        calls = calls if isinstance(calls, list) and all(isinstance(call, dict) for call in calls) else []
        calls = [{"id": f"call{len(found):02}{n:03}"[-9:], **call} for n, call in enumerate(calls)]
        waiting |= {call["id"]: str(name_of(call)) for call in calls}
        found.append(
            {**message, "reasoning": message.get("thinking")} | ({"tool_calls": calls} if calls else {})
        )
        if message.get("role") == "tool":
            name = message.get("tool_name")
            ids = [call_id for call_id, called in waiting.items() if name in (None, called)]
            found[-1]["tool_call_id"] = message.get("tool_call_id") or next(iter(ids), name)
            waiting.pop(str(found[-1]["tool_call_id"]), None)
    return found


def scored(scores: Sequence[Scored]) -> dict[str, Any]:
    """The field of logprobs, if there are any."""
    return {"logprobs": scores_of_chat(scores)["content"]} if scores else {}


class LineWriter(Writer):
    """One object a line; the last one has the numbers."""

    media_type = "application/x-ndjson"

    def __init__(self, model: str, name: str) -> None:
        """`name`: the field with the answer, message or response."""
        super().__init__(model)
        self._name = name
        self._began = time.perf_counter()

    def line(
        self,
        text: str = "",
        thoughts: str = "",
        calls: Sequence[ToolCall] = (),
        ending: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        said: dict[str, Any] = {"thinking": thoughts} if thoughts else {}
        if self._name == "message":
            said |= {"role": "assistant", "content": text}
            if calls:
                named = ({"name": call.name, "arguments": dict(call.arguments)} for call in calls)
                said["tool_calls"] = [{"function": function} for function in named]
            said = {"message": said}
        else:
            said["response"] = text
        return {
            "model": self._model,
            "created_at": written(datetime.now(UTC)),
            **said,
            **(ending or {"done": False}),
        }

    def whole(self, done: list[Done]) -> dict[str, Any]:
        reply = done[0].reply
        ending = self._ending(done[0]) | scored(done[0].scores)
        return self.line(reply.text, reply.reasoning, reply.tool_calls, ending)

    def grow(self, text: str) -> Iterator[bytes]:
        if self.kind is Kind.REASONING:
            yield dumped(self.line(thoughts=text)) + b"\n"
        elif self.kind is Kind.ANSWER:
            yield dumped(self.line(text) | scored(self.take_scores())) + b"\n"

    def finished(self, done: Done) -> Iterator[bytes]:
        if done.reply.tool_calls:
            yield dumped(self.line(calls=done.reply.tool_calls)) + b"\n"
        yield dumped(self.line(ending=self._ending(done) | scored(self.take_scores()))) + b"\n"

    def failed(self, problem: Problem) -> bytes:
        return dumped(error_body(problem)) + b"\n"

    def silence(self) -> bytes:
        return dumped(self.line()) + b"\n"  # without text: lines of JSON have no comments

    def _ending(self, done: Done) -> dict[str, Any]:
        stats = done.reply.stats
        return {
            "done": True,
            "done_reason": "length" if done.reply.finish_reason is FinishReason.LENGTH else "stop",
            "total_duration": int((time.perf_counter() - self._began) * _NANO),
            "load_duration": 0,
            "prompt_eval_count": stats.prompt_tokens,
            "prompt_eval_duration": int(stats.prefill_seconds * _NANO),
            "eval_count": stats.emitted,
            "eval_duration": int(stats.decode_seconds * _NANO),
            "timings": done.timings,
        }


def written(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
