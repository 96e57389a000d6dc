"""Ollama's interface: read Ollama's options, and answer with lines of JSON."""

import asyncio
import hashlib
import math
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from localspec.engine.messages import Generate, Ready
from localspec.errors import BadSetting, LocalspecError
from localspec.events import FinishReason, Kind, Scored, ToolCall
from localspec.models.local_models import ModelFile
from localspec.models.names import quantisation_of
from localspec.models.projector import projector_of
from localspec.serve.http import Interface, Writer, answer, dumped, fields_of, unless_gone
from localspec.serve.openai import before, chat_scores, prompt_of, scores_of_chat
from localspec.serve.options import Fields, Problem, cut, openai_options
from localspec.serve.replies import Chosen, ServedReply, changed_at

_REFUSED: Final = {
    "context": "/api/chat takes conversations",
    "template": "the model has its own; with raw true, prompt is the whole text",
    **dict.fromkeys(("width", "height", "steps"), "models write text"),
}
_NANO: Final = 1_000_000_000
_NEVER: Final = datetime(2318, 1, 1, tzinfo=UTC)
_INFILL: Final = {  # special tokens that show that a model can infill
    *map(str.encode, ("<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>", "\u2581<PRE>", "<｜fim▁begin｜>"))
}
_LONGEST: Final = 500  # longest fact about a model, in characters; a template has its own field
_MOST_SECONDS: Final = 10**9  # thirty years; longer times count as infinite
_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "": 1.0}
_DURATION: Final = re.compile(r"(-?)(\d+(?:\.\d+)?|(?:\d+(?:\.\d+)?(?:h|ms|m|s))+)")


def error_body(problem: Problem) -> object:
    return {"error": problem.message}


class Ollama(Interface):
    async def version(self, request: Request) -> Response:
        return answer({"version": "0.14.0"})  # clients refuse old versions of Ollama

    async def tags(self, request: Request) -> Response:
        return answer({"models": [self._model(name) for name in self._pairs.names()]})

    async def running(self, request: Request) -> Response:
        loaded, left, small = self._jobs.loaded, self._jobs.seconds_left, self._jobs.small
        if loaded is None or self._jobs.asleep:
            return answer({"models": []})
        left, now = math.inf if left is None else left, asyncio.get_running_loop().time()

        def entry(name: str, seconds: float, length: int) -> dict[str, Any]:
            ends = _NEVER if seconds == math.inf else datetime.now(UTC) + timedelta(seconds=seconds)
            return self._model(name, expires_at=written(ends), context_length=length, size_vram=0)

        models = [entry(loaded.pair, left, loaded.context_length)]
        for each in (each for each in self._pairs.beside if each.key in small):
            length = each.file.header.of_model("context_length")
            models.append(entry(each.name, min(left, small[each.key] - now), length))
        return answer({"models": models})

    async def show(self, request: Request) -> Response:
        fields = await fields_of(request)
        name = fields.take("model", str) or fields.take("name", str, "")
        if small := self._pairs.small(name):
            read = small.file.header
            facts = {f"{read.architecture}.context_length": read.of_model("context_length")}
            return answer(self._model(name, modelfile="", parameters="", template="", model_info=facts))
        chosen = self._pairs.choose(name)
        pair, ready = chosen.load.pair, self._jobs.loaded if self._jobs.load == chosen.load else None
        if ready is None and pair.target.path:  # load no pair, because clients ask for each model of a list
            header = pair.target.header
            template, length = header.text("tokenizer.chat_template"), header.of_model("context_length")
            info = {key: header.get(key) for key in header.entries}
            thinks, sees = "think" in template, projector_of(pair) is not None
            fills = header.vocabulary is not None and not _INFILL.isdisjoint(header.vocabulary.texts())
        else:
            ready = ready or await self._loading(request, chosen)
            template, length, info = ready.template, ready.context_length, dict[str, Any](ready.metadata)
            thinks, sees, fills = ready.reasons, ready.reads_images, ready.fills_gaps
            info = {"general.basename": ready.target, **info}
        info = {key: value for key, value in info.items() if isinstance(value, str | int | float)}
        info = {key: value for key, value in info.items() if len(str(value)) <= _LONGEST}
        info[f"{info.get('general.architecture', '')}.context_length"] = length
        able = {"thinking": thinks, "vision": sees, "insert": fills}
        capabilities = ["completion", "tools", *(name for name, has in able.items() if has)]
        more = {"template": template, "model_info": info, "capabilities": capabilities}
        return answer(self._model(chosen.name, modelfile="", parameters="", **more))

    def _model(self, name: str, **more: Any) -> dict[str, Any]:
        files, details = self._pairs.files(name), dict[str, Any]()
        model: dict[str, Any] = {"name": name, "model": name, "modified_at": written(changed_at(files))}
        model["size"] = sum(stat.st_size for stat in files.values())
        model["digest"] = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()
        with suppress(LocalspecError, OSError):  # another program may have removed or changed a file
            details = details_of(next(iter(files))) if files else {}
        if small := self._pairs.small(name):
            more["capabilities"] = [small.capability]
        return {**model, "details": details, **more}

    async def chat(self, request: Request) -> Response:
        fields = await fields_of(request)
        messages = fields.take("messages", list, [])
        prompt = prompt_of(messages, fields.notices) if messages else None
        return await self._reply(request, fields, prompt, "message")

    async def generate(self, request: Request) -> Response:
        fields = await fields_of(request)
        text, after = fields.take("prompt", str, ""), fields.take("suffix", str, "")
        raw, prompt = fields.take("raw", bool, False), Generate(0, continued=text) if text else None
        fields.refuse(_REFUSED)
        if after or raw:
            fields.as_text()
            prompt = before(after, Generate(0, continued=text)) if after else prompt
        else:
            system, images = fields.take("system", str, ""), fields.take("images", list, [])
            instructions = [{"role": "system", "content": system}] if system else []
            asked = {"role": "user", "content": text, "images": images}
            prompt = prompt_of([*instructions, asked], fields.notices) if text or images else None
        return await self._reply(request, fields, prompt, "response")

    async def _reply(self, request: Request, fields: Fields, prompt: Generate | None, name: str) -> Response:
        fields.rest.setdefault("stream", True)
        keep_alive = fields.rest.pop("keep_alive", None)
        kept = None if keep_alive is None else kept_seconds(keep_alive)
        as_chat(fields)
        options = openai_options(fields, chat_scores(fields))
        asked = self._asked(fields, (prompt,) if prompt else (), options)
        writer = LineWriter(asked.chosen.name, name)
        if prompt is None and kept == 0:
            if self._jobs.load == asked.chosen.load:
                self._jobs.keep_alive(0)
            return answer(writer.line(ending={"done": True, "done_reason": "unload"}))
        if prompt is None:  # the client only wants the pair to be loaded
            await self._loading(request, asked.chosen)
            response = answer(writer.line(ending={"done": True, "done_reason": "load"}))
        else:
            response = await self.respond(request, asked, writer)
        if kept is not None:
            self._jobs.keep_alive(None if kept == math.inf else kept)
        return response

    async def _loading(self, request: Request, chosen: Chosen) -> Ready:
        job = self._jobs.submit(chosen.load, None)
        try:
            await unless_gone(request.receive, job.next())
        finally:
            job.give_up()
        if self._jobs.loaded is None or self._jobs.load != chosen.load:
            raise Problem(503, "loading", "another pair is being loaded (retry later)")
        return self._jobs.loaded


def details_of(file: ModelFile) -> dict[str, Any]:
    """Return the family, number of parameters and quantisation in a model's file. Raises LocalspecError, OSError."""
    header = file.header
    count = sum(math.prod(tensor.shape) for tensor in header.tensors)
    size = f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.2f}M"
    about = {"family": header.architecture, "families": [header.architecture], "parameter_size": size}
    return {"parent_model": "", "format": "gguf", **about, "quantization_level": quantisation_of(file)}


def as_chat(fields: Fields) -> None:
    """Replace Ollama's fields, and those in `options`, by fields of chat completions. Raises BadSetting."""
    inner = Fields(fields.take("options", dict, {}), "options")
    if (count := inner.take("num_predict", int)) is not None:
        inner.rest["n_predict"] = max(count, -1)  # Ollama's -2 is localspec's -1: fill the context
    think, form = fields.rest.pop("think", None), fields.rest.pop("format", "")
    if form and form != "json" and not isinstance(form, dict):
        raise BadSetting(f"format cannot be {cut(form)}", hint='give "json" or a JSON schema')
    if form:
        fields.rest["json_schema"] = {"type": "object"} if form == "json" else form
    if think is not None:
        fields.rest["reasoning_effort" if isinstance(think, str) else "think"] = think
    fields.rest = inner.rest | fields.rest | {"n": 1}


def kept_seconds(given: object) -> float:
    """Return keep_alive, a number or a text like 1h30m, in seconds; inf if negative. Raises BadSetting."""
    if isinstance(given, int | float) and not isinstance(given, bool) and abs(given) < _MOST_SECONDS:
        return given if given >= 0 else math.inf
    found = _DURATION.fullmatch(given) if isinstance(given, str) else None
    if found is None:
        raise BadSetting(f"keep_alive cannot be {cut(given)}", hint="give seconds, or a duration such as 5m")
    parts = re.findall(r"([\d.]+)(h|ms|m|s|)", found[2])
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    return math.inf if found[1] or seconds >= _MOST_SECONDS else seconds


def scored(scores: Sequence[Scored]) -> dict[str, Any]:
    return {"logprobs": scores_of_chat(scores)["content"]} if scores else {}


class LineWriter(Writer):
    media_type = "application/x-ndjson"

    def __init__(self, model: str, name: str) -> None:
        super().__init__(model)
        self._name, self._began = name, time.perf_counter()

    def line(
        self, text: str = "", thoughts: str = "", calls: Sequence[ToolCall] = (), ending: Any = None
    ) -> dict[str, Any]:
        body: dict[str, Any] = {"thinking": thoughts} if thoughts else {}
        if self._name == "message":
            functions = ((call.id, {"name": call.name, "arguments": dict(call.arguments)}) for call in calls)
            called = [{"id": call_id, "function": function} for call_id, function in functions]
            body |= {"role": "assistant", "content": text} | ({"tool_calls": called} if called else {})
        body = {"message": body} if self._name == "message" else {**body, "response": text}
        head = {"model": self._model, "created_at": written(datetime.now(UTC))}
        return head | body | (ending or {"done": False})

    def whole(self, done: list[ServedReply]) -> dict[str, Any]:
        found, ending = done[0], self._ending(done[0]) | scored(done[0].scores)
        texts = found.text(Kind.ANSWER), found.text(Kind.REASONING)
        return self.line(*texts, found.reply.tool_calls, ending)

    def grow(self, text: str) -> Iterator[bytes]:
        if self.kind is Kind.REASONING:
            yield dumped(self.line(thoughts=text)) + b"\n"
        elif self.kind is Kind.ANSWER:
            yield dumped(self.line(text) | scored(self.take_scores())) + b"\n"

    def finished(self, done: ServedReply) -> Iterator[bytes]:
        if done.reply.tool_calls:
            yield dumped(self.line(calls=done.reply.tool_calls)) + b"\n"
        yield dumped(self.line(ending=self._ending(done) | scored(self.take_scores()))) + b"\n"

    def failed(self, problem: Problem) -> bytes:
        return dumped(error_body(problem)) + b"\n"

    def silence(self) -> bytes:
        return dumped(self.line()) + b"\n"  # shows the client that the stream is alive

    def _ending(self, done: ServedReply) -> dict[str, Any]:
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
