"""llama-server's own interface: health, props, completion, infill, tokens, templates, metrics."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

import localspec
from localspec.engine.messages import Generate, Question, Ready
from localspec.errors import BadSetting
from localspec.events import Cycle, FinishReason, Kind, Likelihood, Scored
from localspec.prompt.messages import Infill
from localspec.serve.http import Interface, Writer, answer, data_line, fields_of
from localspec.serve.jobs import Jobs
from localspec.serve.numbers import exposition
from localspec.serve.openai import chat_prompt, entry, prompts_of
from localspec.serve.options import OFF, Fields, Problem, cut, openai_options
from localspec.serve.replies import ReplyRequest, ServedReply

_STARTED: Final = int(time.time())
_SETTINGS: Final = (  # options that have the same names in localspec and llama-server
    "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n", "presence_penalty",
    "frequency_penalty", "stop",
)  # fmt: skip
_OFF: Final = {**OFF, "adaptive_target": -1.0, "adaptive_decay": 0.9, "n_keep": 0, "n_discard": 0}


class LlamaServer(Interface):
    async def health(self, request: Request) -> Response:
        self._loaded()
        return answer({"status": "ok"})

    async def props(self, request: Request) -> Response:
        ready = self._loaded()
        seed = ready.settings.get("seed")
        params = settings_of(ready, Generate(0), 2**32 - 1 if seed is None else seed)
        facts = {
            "default_generation_settings": {"n_ctx": ready.context_length, "params": params},
            "total_slots": ready.parallel,
            "model_alias": ready.pair,
            "model_path": ready.path,
            "chat_template": ready.template,
            "chat_template_caps": {"supports_tools": True, "supports_tool_calls": True},
            "modalities": {"vision": ready.reads_images, "audio": False},
            "bos_token": ready.bos,
            "eos_token": ready.eos,
            "build_info": f"localspec {localspec.__version__}",
            "is_sleeping": self._jobs.asleep,
        }
        engine = {"engine_pid": self._jobs.process.pid, "engine_restarts": self._jobs.restarts}
        plan = {"target": ready.target, "draft": ready.draft, "machine": ready.machine}
        return answer({**facts, "localspec": {**plan, **engine, "waiting": self._jobs.waiting}})

    async def slots(self, request: Request) -> Response:
        ready, running = self._loaded(), self._jobs.running
        if running >= ready.parallel and request.query_params.get("fail_on_no_slot"):
            raise Problem(503, "no_slot", "every slot is writing a reply (retry later)")
        shared = {"n_ctx": ready.context_length, "speculative": bool(ready.draft)}
        shared |= {"read_ahead_n": self._jobs.totals.sums.read_ahead_tokens}
        return answer([{"id": n, **shared, "is_processing": n < running} for n in range(ready.parallel)])

    async def completion(self, request: Request) -> Response:
        fields = await fields_of(request)
        return await self._completed(request, fields, prompts_of(fields.rest.pop("prompt", None)))

    async def infill(self, request: Request) -> Response:
        fields = await fields_of(request)
        given = fields.take("input_extra", list, [])
        extras = [Fields(extra if isinstance(extra, dict) else {}) for extra in given]
        names = ("input_prefix", "input_suffix", "prompt")
        before, after, begun = (fields.take(name, str, "") for name in names)
        files = tuple((extra.take("filename", str, ""), extra.need("text", str)) for extra in extras)
        infill = Infill(before, after, begun, files)
        return await self._completed(request, fields, (Generate(0, continued=infill),))

    async def _completed(self, request: Request, fields: Fields, prompts: Sequence[Generate]) -> Response:
        fields.as_text()
        count, wanted = fields.take("n_probs", int, 0), fields.texts("response_fields")
        milliseconds = fields.take("t_max_predict_ms", int, 0)
        with_tokens = fields.take("return_tokens", bool, False)
        options = openai_options(fields, {"logprobs": count} if count else {})
        stream = fields.rest.get("stream") is True
        end = milliseconds / 1000 if milliseconds > 0 else None
        prompts = tuple(replace(prompt, cycles=stream, line_end_after_seconds=end) for prompt in prompts)
        asked = self._asked(fields, prompts, options)
        texts = [await self._text_of(request, asked, prompt) for prompt in prompts]
        writer = CompletionWriter(self._jobs, asked, wanted, texts, with_tokens or stream)
        return await self.respond(request, asked, writer)

    async def tokenize(self, request: Request) -> Response:
        fields = await fields_of(request)
        defaults = {"parse_special": True, "add_special": False, "with_pieces": False}
        chosen = {name: fields.take(name, bool, default) for name, default in defaults.items()}
        question = Question(0, text=fields.take("content", str, ""), **chosen)
        found = await self._reported(request, self._chosen(fields), question)
        if not question.with_pieces:
            return answer({"tokens": found.tokens})
        pairs = zip(found.tokens, found.pieces, strict=True)
        return answer({"tokens": [{"id": t, "piece": p} for t, p in pairs]})

    async def detokenize(self, request: Request) -> Response:
        fields = await fields_of(request)
        tokens = fields.take("tokens", list, [])
        if not all(type(token) is int and 0 <= token < 2**31 for token in tokens):
            raise BadSetting(f"tokens cannot be {cut(tokens)}", hint="give a list of whole numbers")
        found = await self._reported(request, self._chosen(fields), Question(0, tokens=tuple(tokens)))
        return answer({"content": found.text})

    async def apply_template(self, request: Request) -> Response:
        fields = await fields_of(request)
        prompt = chat_prompt(fields)
        found = await self._rendered(request, self._asked(fields, (prompt,), openai_options(fields)))
        return answer({"prompt": found.text})

    async def metrics(self, request: Request) -> Response:
        jobs = self._jobs
        started = {"Process-Start-Time-Unix": str(_STARTED)}
        text = exposition(jobs.totals, running=jobs.running, waiting=jobs.waiting, restarts=jobs.restarts)
        return Response(text, headers=started, media_type="text/plain; version=0.0.4")


def settings_of(ready: Ready, prompt: Generate, seed: int) -> dict[str, Any]:
    """Return a reply's sampling options under llama-server's names."""
    found: Mapping[str, Any] = {**ready.settings, **prompt.options}
    given = {int(t): b for t, b in found.get("logit_bias", {}).items() if str(t).lstrip("-").isdecimal()}
    biases = given | dict.fromkeys(ready.end_tokens if prompt.ignore_eos else (), -math.inf)
    limit = found.get("max_tokens")
    return {
        **_OFF,
        **{name: found[name] for name in _SETTINGS},
        "seed": seed,
        "n_predict": -1 if limit is None else limit,
        "ignore_eos": prompt.ignore_eos,
        "logit_bias": [{"token": t, "bias": None if b == -math.inf else b} for t, b in biases.items()],
    }


class CompletionWriter(Writer):
    def __init__(
        self, jobs: Jobs, asked: ReplyRequest, wanted: Sequence[str], prompts: list[str], with_tokens: bool
    ) -> None:
        """`wanted`: paths of the values to put into an answer; () puts all values into it."""
        super().__init__(asked.chosen.name)
        self._jobs, self._asked, self._wanted, self._prompts = jobs, asked, wanted, prompts
        self._with_tokens = with_tokens
        self._tokens: tuple[int, ...] = ()  # emitted tokens to send with the next chunk

    def _last(self, done: ServedReply, content: str, index: int, tokens: Sequence[int]) -> dict[str, Any]:
        reply, stats = done.reply, done.reply.stats
        kind, ready, asked = "word" if reply.stopped_by else "eos", self._jobs.loaded, self._asked
        settings = settings_of(ready, asked.prompts[0], reply.seed) if ready else {}
        values = {
            "index": index,
            "content": content,
            "tokens": tokens,
            "prompt": self._prompts[index // asked.replies],
            **(self._entries(done.scores) if content else {}),
            "id_slot": 0,
            "stop": True,
            "model": self._model,
            "tokens_predicted": stats.emitted,
            "tokens_evaluated": stats.prompt_tokens,
            "tokens_cached": stats.prompt_tokens + stats.emitted - 1,
            "generation_settings": settings,
            "has_new_line": "\n" in reply.text,
            "truncated": False,
            "stop_type": "limit" if reply.finish_reason is FinishReason.LENGTH else kind,
            "stopping_word": reply.stopped_by,
            "timings": done.timings,
        }
        return picked(values, self._wanted)

    def whole(self, done: list[ServedReply]) -> Any:
        tokens = [each.reply.tokens if self._with_tokens else () for each in done]
        replies = [self._last(each, each.text(Kind.ANSWER), n, tokens[n]) for n, each in enumerate(done)]
        return replies if len(replies) > 1 else replies[0]

    def cycle(self, cycle: Cycle) -> Iterable[bytes]:
        self._tokens += cycle.tokens
        return ()

    def grow(self, text: str) -> Iterator[bytes]:
        yield self._part(text if self.kind is Kind.ANSWER else "")

    def empty(self) -> Iterator[bytes]:
        yield self._part("")

    def _part(self, text: str) -> bytes:
        tokens, self._tokens = self._tokens, ()
        chunk = {"index": self.index, "content": text, "tokens": tokens, "stop": False, "id_slot": 0}
        return data_line({**chunk, **self._entries(self.take_scores()), **self.live})

    def _entries(self, scores: Sequence[Scored]) -> dict[str, Any]:
        post_sampling = self._asked.options.get("post_sampling_probs", False)

        def numbered(found: Likelihood) -> dict[str, Any]:
            fields = {"id": found.token, **entry(found)}
            return fields | {"prob": math.exp(fields.pop("logprob"))} if post_sampling else fields

        name = "top_probs" if post_sampling else "top_logprobs"
        entries = [{**numbered(s.chosen), name: [*map(numbered, s.alternatives)]} for s in scores]
        return {"completion_probabilities": entries} if entries else {}

    def finished(self, done: ServedReply) -> Iterator[bytes]:
        yield data_line(self._last(done, "", self.index, self._tokens))


def picked(answer: dict[str, Any], wanted: Sequence[str]) -> dict[str, Any]:
    """Return the wanted values of an answer by path, such as "timings/prompt_ms"; () returns all values."""
    if not wanted:
        return answer
    picks: dict[str, Any] = {}
    for path in wanted:
        value: Any = answer
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            picks[path] = value
    return picks
