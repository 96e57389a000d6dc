"""What went wrong with a request, as a status and the error object that each family of clients reads."""

from dataclasses import dataclass
from typing import Final

from localspec.errors import LocalspecError

GONE: Final = 499  # the client left before there was an answer; nobody reads it
_STATUS: Final = {
    "BadSetting": (400, "invalid_request_error", "invalid_value"),
    "BadTemplate": (400, "invalid_request_error", "invalid_value"),
    "TemplateStopped": (400, "invalid_request_error", "invalid_value"),
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
