"""A request's body, read field by field, and the problem that an answer reports."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from localspec.errors import BadSetting, LocalspecError

GONE: Final = 499  # the client left before there was an answer; nobody reads it
_STATUS: Final = {
    "BadSetting": (400, "invalid_request_error", "invalid_value"),
    "BadTemplate": (400, "invalid_request_error", "invalid_value"),
    "NoInfill": (501, "not_supported_error", "not_supported"),
    "ContextFull": (400, "exceed_context_size_error", "context_length_exceeded"),
    "UnknownPair": (404, "not_found_error", "model_not_found"),
    "NotOnDisk": (404, "not_found_error", "model_not_found"),
    "PairNotOnDisk": (404, "not_found_error", "model_not_found"),
    "EngineDied": (503, "unavailable_error", "engine_restarts"),
    "NotEnoughMemory": (503, "unavailable_error", "not_enough_memory"),
}
BROKEN: Final = (500, "server_error", "server_error")


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as clients are told of it."""

    status: int
    kind: str  # OpenAI's `type`, with llama-server's names
    code: str
    message: str

    @property
    def error(self) -> dict[str, object]:
        """The object that OpenAI's and llama-server's clients read."""
        return {"message": self.message, "type": self.kind, "code": self.code, "param": None}


class RequestFailed(Exception):
    """A request cannot be answered; the problem says why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def failed(status: int, kind: str, code: str, message: str) -> RequestFailed:
    return RequestFailed(Problem(status, kind, code, message))


def problem_of(error: LocalspecError) -> Problem:
    return described(type(error).__name__, str(error), error.hint)


def described(name: str, what: str, hint: str) -> Problem:
    """The problem that an error of this class name is."""
    status, kind, code = _STATUS.get(name, BROKEN)
    return Problem(status, kind, code, f"{what} ({hint})" if hint else what)


_UNTELLABLE = re.compile(r"[^A-Za-z0-9_.-]")
_NAMES = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    dict: "an object",
    list: "a list",
}


def parsed(body: bytes) -> dict[str, Any]:
    """The object in a body. Raises BadSetting."""
    try:
        found = json.loads(body)
    except RecursionError:
        raise BadSetting("the body is nested too deeply", hint="send less") from None
    except ValueError as error:
        raise BadSetting(f"the body is not JSON: {error}", hint="send one JSON object") from None
    if not isinstance(found, dict):
        raise BadSetting("the body is not an object", hint="send one JSON object")
    return found


class Fields:
    """An object whose fields are taken one by one; null is as good as left out."""

    def __init__(self, values: Mapping[str, Any], where: str = "the request") -> None:
        self.rest = {name: value for name, value in values.items() if value is not None}
        self._where = where

    def take(self, name: str, kind: type, default: Any = None) -> Any:  # noqa: ANN401  JSON
        """A field of this kind. Raises BadSetting for another."""
        if name not in self.rest:
            return default
        value = self.rest.pop(name)
        if kind is int:
            value = whole(value)
        if not is_kind(value, kind):
            raise BadSetting(f"{name} is {cut(value)}", hint=f"give {_NAMES[kind]}")
        return value

    def need(self, name: str, kind: type) -> Any:  # noqa: ANN401  JSON
        """A field that must be there."""
        if name not in self.rest:
            raise BadSetting(f"{name} is missing from {self._where}", hint=f"give {_NAMES[kind]}")
        return self.take(name, kind)

    def drop(self, *names: str) -> None:
        """Fields that mean nothing here."""
        for name in names:
            self.rest.pop(name, None)

    def refuse(self, reasons: Mapping[str, str]) -> None:
        """Raises BadSetting for a field that cannot be heeded, with the reason, unless it asks for nothing."""
        for name, reason in reasons.items():
            if self.rest.pop(name, None) not in (None, False, 0, "", [], {}):
                raise BadSetting(f"{name} is not supported: {reason}", hint="leave it out")

    def unknown(self) -> tuple[str, ...]:
        """The names of what was not taken, as a header can tell them."""
        return tuple(_UNTELLABLE.sub("?", name[:60]) for name in list(self.rest)[:20])


def is_kind(value: object, kind: type) -> bool:
    """Whether a value of JSON is of a kind; true and false are no numbers."""
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def whole(value: Any) -> Any:  # noqa: ANN401  JSON
    """5 for 5.0, as some clients write every number with a point; anything else as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def cut(value: object) -> str:
    """A value as a sentence quotes it."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def texts_of(fields: Fields, name: str) -> tuple[str, ...]:
    """One text or a list of texts. Raises BadSetting."""
    value = fields.rest.pop(name, ())
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise BadSetting(f"{name} is {cut(value)}", hint="give a text or a list of texts")
    return tuple(texts)
