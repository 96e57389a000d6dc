"""A request's body, read field by field, and the problem that an answer reports."""

from collections.abc import Mapping
from typing import Any, Final

from localspec.errors import BadSetting

GONE: Final = 499  # the client left before there was an answer; nobody reads it
_BY_ERROR: Final = {  # status and code; every other error is the server's
    "BadSetting": (400, "invalid_value"),
    "BadTemplate": (400, "invalid_value"),
    "NoInfill": (501, "not_supported"),
    "ContextFull": (400, "context_length_exceeded"),
    "UnknownPair": (404, "model_not_found"),
    "NotOnDisk": (404, "model_not_found"),
    "PairNotOnDisk": (404, "model_not_found"),
    "EngineDied": (503, "engine_restarts"),
    "NotEnoughMemory": (503, "not_enough_memory"),
}
_KINDS: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
}
_NAMES: Final = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    dict: "an object",
    list: "a list",
}


class Problem(Exception):
    """Why a request fails, as its client reads it."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message

    @classmethod
    def named(cls, name: str, what: str, hint: str) -> "Problem":
        """The problem behind an error of this class name."""
        return cls(*_BY_ERROR.get(name, (500, "server_error")), f"{what} ({hint})" if hint else what)

    @classmethod
    def failure(cls, error: Exception) -> "Problem":
        """A mistake of localspec's own."""
        return cls(500, "server_error", f"localspec failed: {type(error).__name__}")

    @property
    def kind(self) -> str:
        """OpenAI's `type`, with llama-server's names."""
        if self.code == "context_length_exceeded":
            return "exceed_context_size_error"
        return _KINDS.get(self.status, "invalid_request_error")

    def body(self) -> dict[str, object]:
        """The object that clients of OpenAI and llama-server read."""
        error = {"message": self.message, "type": self.kind, "code": self.code, "param": None}
        return {"error": error}


class Fields:
    """An object of JSON whose fields are taken one by one; null counts as absent."""

    def __init__(self, values: Mapping[str, Any], where: str = "the request") -> None:
        self.rest = {name: value for name, value in values.items() if value is not None}
        self._where = where
        self.notices: list[str] = []  # of what was left out

    def take(self, name: str, kind: type, default: Any = None) -> Any:  # noqa: ANN401  JSON
        """A field of this kind. Raises BadSetting for another."""
        if name not in self.rest:
            return default
        value = self.rest.pop(name)
        if kind is int:
            value = whole(value)
        if type(value) is not kind:
            raise BadSetting(f"{name} is {cut(value)}", hint=f"give {_NAMES[kind]}")
        return value

    def need(self, name: str, kind: type) -> Any:  # noqa: ANN401  JSON
        """A required field. Raises BadSetting."""
        if name not in self.rest:
            raise BadSetting(f"{name} is missing from {self._where}", hint=f"give {_NAMES[kind]}")
        return self.take(name, kind)

    def texts(self, name: str) -> tuple[str, ...]:
        """One text or a list of texts. Raises BadSetting."""
        value = self.rest.pop(name, ())
        texts = (value,) if isinstance(value, str) else value
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise BadSetting(f"{name} is {cut(value)}", hint="give a text or a list of texts")
        return tuple(texts)

    def drop(self, *names: str) -> None:
        """Ignore these fields."""
        for name in names:
            self.rest.pop(name, None)

    def refuse(self, reasons: Mapping[str, str]) -> None:
        """Raises BadSetting, with the reason, for a field that localspec cannot obey, unless it asks for nothing."""
        for name, reason in reasons.items():
            if self.rest.pop(name, None) not in (None, False, 0, "", [], {}):
                raise BadSetting(f"{name} is not supported: {reason}", hint="leave it out")

    def unknown(self) -> tuple[str, ...]:
        """The names of the fields that nobody took."""
        return tuple(name[:60] for name in list(self.rest)[:20])


def whole(value: Any) -> Any:  # noqa: ANN401  JSON
    """5 for 5.0: some clients write every number with a point. Other values stay as they are."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def cut(value: object) -> str:
    """A value as a sentence quotes it."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
