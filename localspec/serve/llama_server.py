"""llama-server's own interface: health, props, completion, tokens, templates, metrics."""

import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

import localspec
from localspec.engine.messages import Detokenize, Render, Rendered, Text, Tokenize, Tokens
from localspec.errors import BadSetting
from localspec.events import FinishReason, Kind, Piece
from localspec.serve import numbers
from localspec.serve.conversation import prompt_of
from localspec.serve.fields import cut
from localspec.serve.http import Writer, answer, data_line, fields_of, is_background, respond, told
from localspec.serve.jobs import Jobs, Loaded
from localspec.serve.metrics import exposition
from localspec.serve.openai import prompts_of
from localspec.serve.pairs import Pairs
from localspec.serve.problems import failed
from localspec.serve.replies import Asked, Done
from localspec.serve.wishes import take_wishes

_WITHOUT_EFFECT = ("n_keep", "t_max_predict_ms", "response_fields", "return_tokens", "min_keep")


class Interface:
    """The handlers, on one queue."""

    def __init__(self, jobs: Jobs, pairs: Pairs) -> None:
        self._jobs = jobs
        self._pairs = pairs

    async def health(self, request: Request) -> Response:
        self._loaded()
        return answer({"status": "ok"})

    async def props(self, request: Request) -> Response:
        loaded = self._loaded()
        told = loaded.description
        found = {
            "default_generation_settings": {"n_ctx": loaded.ready.context_length, "params": {}},
            "total_slots": 1,
            "model_alias": loaded.ready.pair,
            "model_path": loaded.ready.target,
            "chat_template": told.template,
            "chat_template_caps": {"supports_tools": True, "supports_tool_calls": True},
            "modalities": {"vision": False, "audio": False},
            "bos_token": told.bos,
            "eos_token": told.eos,
            "build_info": f"localspec {localspec.__version__}",
            "is_sleeping": False,
            "localspec": {
                "target": loaded.ready.target,
                "draft": loaded.ready.draft,
                "engine_pid": self._jobs.pid,
                "engine_restarts": self._jobs.restarts,
                "waiting": self._jobs.waiting,
            },
        }
        return answer(found)

    async def completion(self, request: Request) -> Response:
        fields = await fields_of(request)
        prompts = prompts_of(fields.rest.pop("prompt", None))
        if len(prompts) > 1:
            raise BadSetting(
                "there is more than one prompt", hint="send them one by one, or to /v1/completions"
            )
        chosen = self._pairs.choose(fields.take("model", str, ""))
        stream = fields.take("stream", bool, False)
        fields.refuse({"n_probs": "probabilities are not reported", "image_data": "models read text"})
        fields.drop(*_WITHOUT_EFFECT)
        fields.rest |= biases(fields.rest.get("logit_bias"))
        wishes = take_wishes(fields)
        background = is_background(request, wishes.options)
        asked = Asked(chosen, prompts, wishes, stream, background, fields.unknown())
        if asked.count > 1:
            raise BadSetting("n is more than 1", hint="ask /v1/completions for several replies")
        return await respond(request, self._jobs, asked, CompletionWriter(chosen.name))

    async def tokenize(self, request: Request) -> Response:
        fields = await fields_of(request)
        text = fields.take("content", str, "")
        add, parse = fields.take("add_special", bool, False), fields.take("parse_special", bool, True)
        with_pieces = fields.take("with_pieces", bool, False)
        chosen = self._pairs.choose(fields.take("model", str, ""))

        make = partial(Tokenize, text=text, parse_special=parse, add_special=add)
        found = await told(request, self._jobs, chosen.load, make)
        assert isinstance(found, Tokens)
        pairs = zip(found.tokens, found.pieces, strict=True)
        return answer({"tokens": [{"id": t, "piece": p} for t, p in pairs] if with_pieces else found.tokens})

    async def detokenize(self, request: Request) -> Response:
        fields = await fields_of(request)
        tokens = fields.take("tokens", list, [])
        if not all(type(token) is int and 0 <= token < 2**31 for token in tokens):
            raise BadSetting(f"tokens is {cut(tokens)}", hint="give a list of whole numbers")
        chosen = self._pairs.choose(fields.take("model", str, ""))

        make = partial(Detokenize, tokens=tuple(tokens))
        found = await told(request, self._jobs, chosen.load, make)
        assert isinstance(found, Text)
        return answer({"content": found.text})

    async def apply_template(self, request: Request) -> Response:
        fields = await fields_of(request)
        prompt = prompt_of(fields.need("messages", list))
        chosen = self._pairs.choose(fields.take("model", str, ""))
        fields.drop("stream")
        options = take_wishes(fields).options

        make = partial(Render, messages=prompt.messages, options=options)
        found = await told(request, self._jobs, chosen.load, make)
        assert isinstance(found, Rendered)
        return answer({"prompt": found.text})

    async def metrics(self, request: Request) -> Response:
        jobs = self._jobs
        text = exposition(jobs.totals, running=int(jobs.busy), waiting=jobs.waiting, restarts=jobs.restarts)
        return Response(text, media_type="text/plain; version=0.0.4")

    def _loaded(self) -> Loaded:
        if self._jobs.loaded is None:
            raise failed(503, "unavailable_error", "loading", self._jobs.stage or "loading the pair")
        return self._jobs.loaded


def biases(given: object) -> dict[str, Any]:
    """llama-server's list of biases as OpenAI's object; false bans a token. Raises BadSetting."""
    if not isinstance(given, list):
        return {}
    if not all(isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is int for pair in given):
        raise BadSetting(f"logit_bias is {cut(given)}", hint="give pairs of a token and a number")
    return {"logit_bias": {str(token): -math.inf if bias is False else bias for token, bias in given}}


class CompletionWriter(Writer):
    """llama-server's completion, whole or as a stream."""

    def __init__(self, model: str) -> None:
        self._model = model

    def last(self, done: Done, content: str) -> dict[str, Any]:
        """The whole answer, or what ends a stream."""
        reply = done.reply
        stats = reply.stats
        kind = "word" if reply.stopped_by else "eos"
        return {
            "index": 0,
            "content": content,
            "tokens": reply.tokens if content else (),
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
            "timings": numbers.timings(reply, done.notices),
        }

    def whole(self, done: list[Done]) -> dict[str, Any]:
        return self.last(done[0], done[0].reply.text)

    def piece(self, index: int, piece: Piece) -> Iterable[bytes]:
        text = piece.text if piece.kind is Kind.ANSWER else ""
        return [data_line({"index": 0, "content": text, "tokens": [], "stop": False, "id_slot": 0})]

    def finished(self, index: int, done: Done) -> Iterator[bytes]:
        yield data_line(self.last(done, ""))
