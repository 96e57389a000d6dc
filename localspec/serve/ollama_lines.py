"""The forms of Ollama's interface: options in, lines of JSON out."""

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from localspec.errors import BadSetting
from localspec.events import FinishReason, Kind, Piece, Reply, ToolCall
from localspec.serve import numbers
from localspec.serve.fields import Fields, cut
from localspec.serve.http import Writer, dumped
from localspec.serve.problems import Problem
from localspec.serve.replies import Done
from localspec.serve.wishes import checked, effort_options, length, own, refuse_others, seed, tool_options

_ABOUT_LOADING: Final = (
    "num_ctx", "num_batch", "num_gpu", "num_keep", "num_thread", "main_gpu", "low_vram", "use_mmap",
    "use_mlock", "numa", "penalize_newline",
)  # fmt: skip
_NANO: Final = 1_000_000_000
Form = Callable[[str, str, list[dict[str, Any]]], dict[str, Any]]  # content, thinking, calls


def options_of(fields: Fields) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What is asked of the reply, inside `options` and beside it; unknown names inside. Raises BadSetting."""
    inner = Fields(fields.take("options", dict, {}), "options")
    inner.drop(*_ABOUT_LOADING)
    if (count := inner.take("num_predict", int)) is not None:
        inner.rest["n_predict"] = max(count, -1)  # -2 is "until the context is full"
    options = own(inner, "stop") | length(inner) | seed(inner)
    refuse_others(inner)
    beside = {**thinking(fields), **shape(fields), **tool_options(fields)}
    fields.drop("keep_alive")
    refuse_others(fields)
    return checked({"overflow": "error", **options, **beside}), inner.unknown()


def thinking(fields: Fields) -> dict[str, Any]:
    """think: true, false, or an effort."""
    wanted = fields.rest.pop("think", None)
    if isinstance(wanted, str):
        return effort_options(wanted)
    return {} if wanted is None else {"think": wanted}


def shape(fields: Fields) -> dict[str, Any]:
    """format: "json" or a JSON schema."""
    wanted = fields.rest.pop("format", "")
    if wanted == "json":
        return {"json_schema": {"type": "object"}}
    if wanted and not isinstance(wanted, dict):
        raise BadSetting(f"format is {cut(wanted)}", hint='give "json" or a JSON schema')
    return {"json_schema": wanted} if wanted else {}


def as_openai(message: object) -> object:
    """Ollama's message in OpenAI's form, not checked. Raises BadSetting for images."""
    if not isinstance(message, dict):
        return message
    if message.get("images"):
        raise BadSetting("a message has images", hint="models read text")
    found = {**message, "reasoning": message.get("thinking")}
    if message.get("role") == "tool":
        found["tool_call_id"] = message.get("tool_call_id") or message.get("tool_name")
    return found


def chat_form(content: str, thinking: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if thinking:
        message["thinking"] = thinking
    return {"message": {**message, "tool_calls": calls} if calls else message}


def text_form(content: str, thinking: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    return {"response": content, **({"thinking": thinking} if thinking else {})}


class LineWriter(Writer):
    """One object a line; the last one has the numbers."""

    media_type = "application/x-ndjson"

    def __init__(self, model: str, form: Form) -> None:
        self._model = model
        self._form = form
        self._began = time.perf_counter()

    def line(self, text: str, kind: Kind, **more: Any) -> dict[str, Any]:  # noqa: ANN401  JSON
        thinks = kind is Kind.REASONING
        said = self._form("" if thinks else text, text if thinks else "", [])
        return {"model": self._model, "created_at": now(), **said, "done": False, **more}

    def whole(self, done: list[Done]) -> dict[str, Any]:
        reply = done[0].reply
        said = self._form(reply.text, reply.reasoning, calls_of(reply.tool_calls))
        return {"model": self._model, "created_at": now(), **said, **self._ending(done[0])}

    def piece(self, index: int, piece: Piece) -> Iterable[bytes]:
        return [] if piece.kind is Kind.TOOL_CALL else [dumped(self.line(piece.text, piece.kind)) + b"\n"]

    def finished(self, index: int, done: Done) -> Iterator[bytes]:
        head = {"model": self._model, "created_at": now()}
        if calls := calls_of(done.reply.tool_calls):
            yield dumped({**head, **self._form("", "", calls), "done": False}) + b"\n"
        yield dumped({**head, **self._form("", "", []), **self._ending(done)}) + b"\n"

    def failed(self, problem: Problem) -> bytes:
        return dumped({"error": problem.message}) + b"\n"

    def silence(self, position: int) -> bytes:
        return b""  # lines of JSON have no comments

    def _ending(self, done: Done) -> dict[str, Any]:
        reply, stats = done.reply, done.reply.stats
        return {
            "done": True,
            "done_reason": reason(reply),
            "total_duration": int((time.perf_counter() - self._began) * _NANO),
            "load_duration": 0,
            "prompt_eval_count": stats.prompt_tokens,
            "prompt_eval_duration": int(stats.prefill_seconds * _NANO),
            "eval_count": stats.emitted,
            "eval_duration": int(stats.decode_seconds * _NANO),
            "timings": numbers.timings(reply, done.notices),
        }


def reason(reply: Reply) -> str:
    return "length" if reply.finish_reason is FinishReason.LENGTH else "stop"


def calls_of(calls: Iterable[ToolCall]) -> list[dict[str, Any]]:
    return [{"function": {"name": call.name, "arguments": dict(call.arguments)}} for call in calls]


def now() -> str:
    return written(datetime.now(UTC))


def written(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def listed(name: str, files: Sequence[Path]) -> dict[str, Any]:
    """A model as Ollama's clients list it."""
    found: list[os.stat_result] = []
    with suppress(OSError):  # a file may go meanwhile
        found += [file.stat() for file in files]
    changed = max((stat.st_mtime for stat in found), default=0.0)
    details = {"format": "gguf", "family": "", "families": [], "parameter_size": "", "quantization_level": ""}
    return {
        "name": name,
        "model": name,
        "modified_at": written(datetime.fromtimestamp(changed, UTC)),
        "size": sum(stat.st_size for stat in found),
        "digest": hashlib.sha256(name.encode("utf-8", "replace")).hexdigest(),
        "details": {"parent_model": "", **details},
    }
