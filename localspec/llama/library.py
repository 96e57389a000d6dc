"""Loads llama.cpp once, if it works here: its log goes to `logging`, and an abort inside it ends in one clear line."""

import atexit
import contextlib
import ctypes
import itertools
import logging
import os
import re
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from localspec.display import for_terminal
from localspec.errors import BackendFailure
from localspec.health.check import health
from localspec.health.stopping import Held
from localspec.llama import watch

logger = logging.getLogger("localspec.llama")
# Without a handler, logging's last resort would print warnings on stderr, where the terminal UI draws.
logger.addHandler(logging.NullHandler())

_CONTINUES = 5  # GGML_LOG_LEVEL_CONT: more of the line before
_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}  # GGML_LOG_LEVEL
# Of every trimmed model, which has no tokenizer; of a context longer than trained, where the memory plan has a note;
# and of a pass that was asked to stop.
_EXPECTED = re.compile(
    r"adding \d+ dummy tokens|n_ctx_seq \(\d+\) . n_ctx_train|failed with error 1$|compute status: 1$"
    r"|removing memory module entries|ret = 2$"
)


class LogRouter:
    """Joins fragments to lines, passes them on, and keeps the last error lines for messages to quote."""

    def __init__(self) -> None:
        self.errors: deque[str] = deque(maxlen=16)  # the last error lines, oldest first
        self._line = ""
        self._level = logging.INFO

    def write(self, level: int, text: str) -> None:
        """Take one fragment; `level` is a GGML_LOG_LEVEL."""
        if level != _CONTINUES:
            self._emit()
            self._level = _LEVELS.get(level, logging.INFO)
        *whole, rest = (self._line + text).split("\n")
        for self._line in whole:
            self._emit()
        self._line = rest

    def _emit(self) -> None:
        line, self._line = self._line.rstrip(), ""
        if not line:
            return
        if self._level >= logging.ERROR:
            self.errors.append(line)
        logger.log(logging.DEBUG if _EXPECTED.search(line) else self._level, "%s", line)


os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # ggml's crash handler would attach gdb and print pages
health()  # a build that dies while it is loaded would take this process with it

try:
    with Held():
        from llama_cpp import llama_cpp as lib
except (ImportError, OSError, RuntimeError, AttributeError) as error:
    raise BackendFailure(
        f"llama.cpp could not be loaded: {error}",
        hint="reinstall it: pip install --force-reinstall --no-cache-dir llama-cpp-python; "
        "a GPU build also needs its driver's libraries",
    ) from error

__all__ = ["forget_log_errors", "last_log_errors", "lib", "symbol", "text_of"]

_router = LogRouter()


def last_log_errors() -> tuple[str, ...]:
    """What llama.cpp logged as errors since `forget_log_errors`, oldest first."""
    return tuple(_router.errors)


forget_log_errors = _router.errors.clear  # called before a call whose failure may have to be explained


def symbol(name: str | Sequence[str], result: Any, arguments: Sequence[Any]) -> Any:  # noqa: ANN401  ctypes has no better type
    """A C function of libllama, libggml or libggml-base that llama_cpp does not bind as it is needed here.

    Looked up through the library that is already loaded: the wheels carry every library several times under
    different names, and opening another copy by its path would give one with its own devices and callbacks.
    Of several names the first that is exported.
    """
    names = (name,) if isinstance(name, str) else name
    for module, exported in itertools.product(_modules(), names):
        with contextlib.suppress(AttributeError):
            function = module[exported]
            function.restype, function.argtypes = result, list(arguments)
            return function
    raise BackendFailure(
        f"this llama.cpp has no function called {names[-1]}",
        hint="localspec is tested with llama-cpp-python 0.3.36: pip install llama-cpp-python==0.3.36",
    )


def text_of(raw: bytes | None) -> str:
    """A string from C."""
    return (raw or b"").decode("utf-8", "replace")


def _modules() -> Iterator[ctypes.CDLL]:
    yield lib._lib  # on Linux and macOS this finds the functions of the libraries it depends on as well
    if sys.platform == "win32":
        for stem in ("ggml-base", "libggml-base", "ggml", "libggml"):
            path = Path(lib._base_path) / f"{stem}.dll"
            if path.exists():
                yield ctypes.CDLL(str(path))  # Windows hands out the loaded one


@lib.llama_log_callback  # type: ignore[untyped-decorator]
def _on_log(level: int, text: bytes, _data: object) -> None:
    _router.write(level, text_of(text))


@ctypes.CFUNCTYPE(None, ctypes.c_char_p)  # type: ignore[untyped-decorator]
def _on_abort(message: bytes) -> NoReturn:
    """llama.cpp calls abort() after this returns, and no exception can cross it, so the process ends here."""
    reason = for_terminal(text_of(message).strip())
    if "Remote RPC server" in reason:
        watch.end_lost(f"{watch.awaited_places() or 'an RPC server'} is gone: the connection broke")
    hint = (
        "this is a bug or a driver problem; try fewer GPU layers, another KV cache type or a shorter context"
    )
    watch.end(f"llama.cpp aborted: {reason}", hint)


def _silence() -> None:
    """Point the log at a harmless C function: libraries log while they unload, after Python ended."""
    harmless = ctypes.cast(lib._lib.llama_max_devices, lib.llama_log_callback)
    lib.llama_log_set(harmless, None)


with Held():  # a GPU's driver may take seconds
    lib.llama_log_set(_on_log, None)  # also ggml's; replaces llama_cpp's own callback, which prints
    symbol("ggml_set_abort_callback", ctypes.c_void_p, [ctypes.c_void_p])(_on_abort)
    lib.llama_backend_init()
atexit.register(_silence)
