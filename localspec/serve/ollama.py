"""Ollama's interface: chat, generate, tags, show, ps, version."""

from dataclasses import replace
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from localspec.events import Kind
from localspec.serve.conversation import prompt_of
from localspec.serve.fields import Fields
from localspec.serve.http import answer, fields_of, unless_gone
from localspec.serve.interface import Interface
from localspec.serve.jobs import Loaded
from localspec.serve.ollama_lines import Form, LineWriter, as_openai, chat_form, listed, options_of, text_form
from localspec.serve.pairs import Chosen
from localspec.serve.problems import Problem, failed
from localspec.serve.replies import Prompt
from localspec.serve.wishes import Wishes

INTERFACE_VERSION: Final = "0.12.0"  # of Ollama's interface: clients refuse old ones
_NOT_IN_GENERATE: Final = {
    "suffix": "models continue a text",
    "images": "models read text",
    "template": "the model file's own template is used",
    "context": "send the conversation to /api/chat",
}


def error_body(problem: Problem) -> object:
    return {"error": problem.message}


class Ollama(Interface):
    """The handlers."""

    async def version(self, request: Request) -> Response:
        return answer({"version": INTERFACE_VERSION})

    async def tags(self, request: Request) -> Response:
        names = self._pairs.names()
        return answer({"models": [listed(name, self._pairs.files_of(name)) for name in names]})

    async def running(self, request: Request) -> Response:
        loaded = self._jobs.loaded
        if loaded is None:
            return answer({"models": []})
        more = {"expires_at": "2318-01-01T00:00:00Z", "size_vram": 0}
        context = {"context_length": loaded.ready.context_length}
        pair = loaded.ready.pair
        return answer({"models": [{**listed(pair, self._pairs.files_of(pair)), **more, **context}]})

    async def show(self, request: Request) -> Response:
        fields = await fields_of(request)
        name = fields.take("model", str) or fields.take("name", str, "")
        loaded = await self._loading(request, self._pairs.choose(name))
        told = loaded.description
        architecture = told.metadata.get("general.architecture", "")
        info: dict[str, Any] = {"general.basename": loaded.ready.target, **told.metadata}
        info[f"{architecture}.context_length"] = loaded.ready.context_length
        return answer(
            {
                **listed(name, self._pairs.files_of(name)),
                "modelfile": "",
                "parameters": "",
                "template": told.template,
                "model_info": info,
                "capabilities": ["completion", "tools", *(["thinking"] if told.reasons else [])],
            }
        )

    async def chat(self, request: Request) -> Response:
        fields = await fields_of(request)
        messages = [as_openai(message) for message in fields.take("messages", list, [])]
        return await self._reply(request, fields, prompt_of(messages) if messages else None, chat_form)

    async def generate(self, request: Request) -> Response:
        fields = await fields_of(request)
        text, system = fields.take("prompt", str, ""), fields.take("system", str, "")
        raw = fields.take("raw", bool, False)
        fields.refuse(_NOT_IN_GENERATE)
        prompt = None
        if text and raw:
            prompt = Prompt(text=text)
        elif text:
            told = [{"role": "system", "content": system}] if system else []
            prompt = prompt_of([*told, {"role": "user", "content": text}])
        return await self._reply(request, fields, prompt, text_form)

    async def refused(self, request: Request) -> Response:
        path = request.url.path[:80]
        what = f"{path} is not supported (`localspec pull` and `localspec rm` manage pairs)"
        raise failed(501, "not_supported_error", "not_supported", what)

    async def _reply(self, request: Request, fields: Fields, prompt: Prompt | None, form: Form) -> Response:
        fields.rest.setdefault("stream", True)
        options, unknown = options_of(fields)
        asked = self._asked(fields, (prompt,) if prompt else (), Wishes(options))
        asked = replace(asked, unknown=(*unknown, *asked.unknown))
        writer = LineWriter(asked.chosen.name, form)
        if prompt is None:  # only to have the pair in memory
            await self._loading(request, asked.chosen)
            return answer(writer.line("", Kind.ANSWER, done=True, done_reason="load"))
        return await self._respond(request, asked, writer)

    async def _loading(self, request: Request, chosen: Chosen) -> Loaded:
        """The chosen pair, once it is in memory. Raises RequestFailed."""
        job = self._jobs.submit(chosen.load, None)
        try:
            await unless_gone(request, job.next())
        finally:
            job.give_up()
        loaded = self._jobs.loaded
        if loaded is None or loaded.load != chosen.load:
            raise failed(503, "unavailable_error", "loading", "another pair is being loaded")
        return loaded
