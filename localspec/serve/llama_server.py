"""llama-server's own interface: health, props, completion, infill, tokens, templates, metrics."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

import localspec
from localspec.engine.messages import Answer, Detokenize, Infill, Text, Tokenize, Tokens
from localspec.errors import BadSetting
from localspec.events import FinishReason, Kind, Likelihood, Scored
from localspec.serve.bodies import Fields, Problem, cut
from localspec.serve.http import Interface, Writer, answer, data_line, fields_of
from localspec.serve.numbers import exposition
from localspec.serve.openai import entry, prompt_of, prompts_of
from localspec.serve.options import openai_options
from localspec.serve.replies import Done

_WITHOUT_EFFECT: Final = ("n_keep", "t_max_prompt_ms", "return_tokens", "min_keep")
_REFUSED: Final = {"image_data": "models read text", "post_sampling_probs": "n_probs are the target's own"}


class LlamaServer(Interface):
    """The handlers."""

    async def health(self, request: Request) -> Response:
        self._loaded()
        return answer({"status": "ok"})

    async def props(self, request: Request) -> Response:
        ready = self._loaded().ready
        found = {
            "default_generation_settings": {"n_ctx": ready.context_length, "params": {}},
            "total_slots": ready.parallel,
            "model_alias": ready.pair,
            "model_path": ready.target,
            "chat_template": ready.template,
            "chat_template_caps": {"supports_tools": True, "supports_tool_calls": True},
            "modalities": {"vision": False, "audio": False},
            "bos_token": ready.bos,
            "eos_token": ready.eos,
            "build_info": f"localspec {localspec.__version__}",
            "is_sleeping": self._jobs.asleep,
            "localspec": {
                "target": ready.target,
                "draft": ready.draft,
                "engine_pid": self._jobs.process.pid,
                "engine_restarts": self._jobs.restarts,
                "waiting": self._jobs.waiting,
            },
        }
        return answer(found)

    async def slots(self, request: Request) -> Response:
        """One entry for each reply that can be written at once."""
        ready, running = self._loaded().ready, self._jobs.running
        if running >= ready.parallel and request.query_params.get("fail_on_no_slot"):
            raise Problem(503, "no_slot", "every slot is writing a reply")
        shared = {"n_ctx": ready.context_length, "speculative": bool(ready.draft)}
        return answer([{"id": n, **shared, "is_processing": n < running} for n in range(ready.parallel)])

    async def completion(self, request: Request) -> Response:
        fields = await fields_of(request)
        prompts = prompts_of(fields.rest.pop("prompt", None))
        if len(prompts) > 1:
            raise BadSetting("there is more than one prompt", hint="send one, or all to /v1/completions")
        return await self._completed(request, fields, prompts[0])

    async def infill(self, request: Request) -> Response:
        """The text between a beginning and an end, in the form of the model's own tokens for that."""
        fields = await fields_of(request)
        given = fields.take("input_extra", list, [])
        extras = [Fields(extra if isinstance(extra, dict) else {}) for extra in given]
        infill = Infill(
            before=fields.take("input_prefix", str, ""),
            after=fields.take("input_suffix", str, ""),
            begun=fields.take("prompt", str, ""),
            files=tuple((extra.take("filename", str, ""), extra.need("text", str)) for extra in extras),
        )
        return await self._completed(request, fields, Answer(0, infill=infill))

    async def _completed(self, request: Request, fields: Fields, prompt: Answer) -> Response:
        fields.refuse(_REFUSED)
        fields.drop(*_WITHOUT_EFFECT)
        fields.rest |= biases(fields.rest.get("logit_bias"))
        count, wanted = fields.take("n_probs", int, 0), fields.texts("response_fields")
        milliseconds = fields.take("t_max_predict_ms", int, 0)
        options = openai_options(fields, {"logprobs": count} if count else {})
        asked = self._asked(fields, (prompt,), options)
        if asked.count > 1:
            raise BadSetting("n is more than 1", hint="ask /v1/completions for several replies")
        if milliseconds > 0:
            asked = replace(asked, line_end_after_seconds=milliseconds / 1000)
        return await self.respond(request, asked, CompletionWriter(asked.chosen.name, wanted))

    async def tokenize(self, request: Request) -> Response:
        fields = await fields_of(request)
        make = partial(
            Tokenize,
            text=fields.take("content", str, ""),
            parse_special=fields.take("parse_special", bool, True),
            add_special=fields.take("add_special", bool, False),
        )
        with_pieces = fields.take("with_pieces", bool, False)
        found = await self._told(request, self._chosen(fields), make, Tokens)
        pairs = zip(found.tokens, found.pieces, strict=True)
        return answer({"tokens": [{"id": t, "piece": p} for t, p in pairs] if with_pieces else found.tokens})

    async def detokenize(self, request: Request) -> Response:
        fields = await fields_of(request)
        tokens = fields.take("tokens", list, [])
        if not all(type(token) is int and 0 <= token < 2**31 for token in tokens):
            raise BadSetting(f"tokens is {cut(tokens)}", hint="give a list of whole numbers")
        make = partial(Detokenize, tokens=tuple(tokens))
        found = await self._told(request, self._chosen(fields), make, Text)
        return answer({"content": found.text})

    async def apply_template(self, request: Request) -> Response:
        fields = await fields_of(request)
        prompt = prompt_of(fields.need("messages", list))
        found = await self._rendered(request, self._asked(fields, (prompt,), openai_options(fields)))
        return answer({"prompt": found.text})

    async def metrics(self, request: Request) -> Response:
        jobs = self._jobs
        text = exposition(jobs.totals, running=jobs.running, waiting=jobs.waiting, restarts=jobs.restarts)
        return Response(text, media_type="text/plain; version=0.0.4")


def biases(given: object) -> dict[str, Any]:
    """llama-server's list of biases as OpenAI's object; false bans a token. Raises BadSetting."""
    if not isinstance(given, list):
        return {}
    if not all(isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is int for pair in given):
        raise BadSetting(f"logit_bias is {cut(given)}", hint="give pairs of a token and a number")
    return {"logit_bias": {str(token): -math.inf if bias is False else bias for token, bias in given}}


def entries_of(scores: Iterable[Scored]) -> dict[str, Any]:
    """The field of probabilities: one entry a token, with its alternatives."""

    def numbered(found: Likelihood) -> dict[str, Any]:
        return {"id": found.token, **entry(found)}

    entries = [{**numbered(s.chosen), "top_logprobs": [*map(numbered, s.alternatives)]} for s in scores]
    return {"completion_probabilities": entries} if entries else {}


class CompletionWriter(Writer):
    """llama-server's completion, whole or as a stream."""

    def __init__(self, model: str, wanted: Sequence[str]) -> None:
        """`wanted`: paths of the values in the whole answer, or the last of a stream; without any, all."""
        super().__init__(model)
        self._wanted = wanted

    def _last(self, done: Done, content: str) -> dict[str, Any]:
        """The whole answer, or the end of a stream."""
        reply, stats = done.reply, done.reply.stats
        kind = "word" if reply.stopped_by else "eos"
        found = {
            "index": 0,
            "content": content,
            "tokens": reply.tokens if content else (),
            **(entries_of(done.scores) if content else {}),
            "id_slot": 0,
            "stop": True,
            "model": self._model,
            "tokens_predicted": stats.emitted,
            "tokens_evaluated": stats.prompt_tokens,
            "tokens_cached": stats.prompt_tokens + stats.emitted - 1,
            "generation_settings": {"seed": reply.seed},
            "has_new_line": "\n" in reply.text,
            "truncated": False,
            "stop_type": "limit" if reply.finish_reason is FinishReason.LENGTH else kind,
            "stopping_word": reply.stopped_by,
            "timings": done.timings,
        }
        return picked(found, self._wanted)

    def whole(self, done: list[Done]) -> dict[str, Any]:
        return self._last(done[0], done[0].reply.text)

    def grow(self, text: str) -> Iterator[bytes]:
        text = text if self.kind is Kind.ANSWER else ""
        chunk = {"index": 0, "content": text, "tokens": [], "stop": False, "id_slot": 0}
        yield data_line({**chunk, **entries_of(self.take_scores())})

    def finished(self, done: Done) -> Iterator[bytes]:
        yield data_line(self._last(done, ""))


def picked(answer: dict[str, Any], wanted: Sequence[str]) -> dict[str, Any]:
    """The wanted values of an answer, each under its path ("timings/prompt_ms"); without any, all."""
    if not wanted:
        return answer
    found: dict[str, Any] = {}
    for path in wanted:
        value: Any = answer
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            found[path] = value
    return found
