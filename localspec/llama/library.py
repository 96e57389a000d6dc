"""The only import of llama.cpp. Its log lines go to `logging`; its failures become errors with hints."""

import atexit
import contextlib
import ctypes
import itertools
import logging
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NoReturn

if sys.platform != "win32":
    import resource

from localspec.display import for_terminal
from localspec.errors import (
    ANOTHER_COPY,
    BackendFailure,
    BadModelFile,
    BadSetting,
    ContextFull,
    LocalspecError,
    NotEnoughMemory,
)
from localspec.llama import lifetimes
from localspec.llama.check import health
from localspec.llama.layouts import NEWEST, build_of, use_layout
from localspec.machine.llama_build import bindings_folder, chosen_folder, chosen_libraries, library_files
from localspec.stopping import DelayedInterrupt, WorkStopped

logger = logging.getLogger("localspec.llama")
# Without this handler `logging` would print warnings on stderr, where the terminal UI draws.
logger.addHandler(logging.NullHandler())

_CONTINUES = 5  # GGML_LOG_LEVEL_CONT: a text of this level continues the previous line of the log
_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}  # GGML_LOG_LEVEL
# Lines of llama.cpp's log that are no warnings, because localspec expects them, for example about a stopped pass.
_EXPECTED = re.compile(
    r"adding \d+ dummy tokens|n_ctx_seq \(\d+\) . n_ctx_train|failed with error 1$|compute status: 1$|/16842|ret = 2$"
    r"|removing memory module entries|non-consecutive token position|Qwen-VL|image-min-tokens|control-looking"
)


class LogRouter:
    """A router that joins fragments of llama.cpp's log into lines, logs the lines, and keeps error lines."""

    def __init__(self) -> None:
        self.errors: deque[str] = deque(maxlen=16)  # the last error lines, the oldest first
        self._line = ""
        self._level = logging.INFO

    def write(self, level: int, text: str) -> None:
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


SPINS = "2000"  # for GOMP_SPINCOUNT: rounds of waiting before a thread sleeps; libgomp's default is 300,000
_CHOSEN = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}  # variables by which a user chooses how OpenMP's threads wait


@contextlib.contextmanager
def short_spin() -> Iterator[None]:
    """Let OpenMP's threads sleep after a short wait if libgomp loads in this context, unless the user chose a wait.

    By default a waiting thread spins for milliseconds. If it waits for a thread whose core another program uses, each
    barrier then takes a time slice of the system. Child processes do not inherit the variable.
    """
    ours = not _CHOSEN & os.environ.keys()
    if ours:
        os.environ["GOMP_SPINCOUNT"] = SPINS
    try:
        yield
    finally:
        if ours:
            del os.environ["GOMP_SPINCOUNT"]


os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # without it, ggml starts gdb after a crash
health()  # first test llama.cpp in a child process, because a crash at the import would end this process

chosen = chosen_folder()
_HINT = (
    "set llama to another build, or leave that setting out"
    if chosen
    else "unset LLAMA_CPP_LIB_PATH, or build that library from the llama.cpp that your llama-cpp-python was made for"
    if os.environ.get("LLAMA_CPP_LIB_PATH")
    else "reinstall llama.cpp: pip install --force-reinstall --no-cache-dir llama-cpp-python; "
    "a build for a GPU also needs the libraries of the GPU's driver"
)
_opened = dict[str, ctypes.CDLL]()  # by name: the libraries loaded for the setting `llama`


def text_of(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", "replace")


def _redirect(folder: Path) -> None:
    """Make llama_cpp load its libraries from `folder`. Raises BadSetting."""
    if "llama_cpp.llama_cpp" in sys.modules:
        what = "the setting llama has no effect, because llama_cpp was imported before localspec"
        raise BadSetting(what, hint="import localspec.api before llama_cpp, or leave the setting llama out")
    files = chosen_libraries(folder)

    def load(name: str, _usual: Path) -> ctypes.CDLL:
        if sys.platform == "win32":  # backends search these folders for the GPU maker's libraries
            os.environ["PATH"] = f"{files['llama'].parent};{os.environ['PATH']}"
        _opened[name] = ctypes.CDLL(str(files.get(name, folder / name)))
        return _opened[name]

    name = "llama_cpp._ctypes_extensions"
    spec: Any = spec_from_file_location(name, (bindings_folder() or Path()) / "_ctypes_extensions.py")
    sys.modules[name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module)["load_shared_library"] = load


try:
    with DelayedInterrupt(), short_spin():
        if chosen:
            _redirect(chosen)
        from llama_cpp import llama_cpp as lib

        if chosen:  # set the package's attribute, because `_redirect` made the submodule without an import
            vars(sys.modules["llama_cpp"])["_ctypes_extensions"] = sys.modules["llama_cpp._ctypes_extensions"]
except (ImportError, OSError, RuntimeError, AttributeError) as error:
    what = f"llama.cpp could not be loaded: {error}"
    if isinstance(error, AttributeError) and (found := _opened.get("llama")):
        what = f"the llama.cpp in {build_of(found)} lacks a function; the newest known version is {NEWEST}: {error}"
    raise BackendFailure(what, hint=_HINT) from error

__all__ = ["lib"]

_router = LogRouter()
log_errors = _router.errors  # llama.cpp's error lines since `forget_log_errors`, the oldest first
forget_log_errors = log_errors.clear  # call this before an operation, so that its error quotes no older lines


def symbol(name: str | Sequence[str], result: Any, arguments: Sequence[Any]) -> Any:
    """Return the C function of llama.cpp or ggml with the first of these names that a library exports.

    Search only loaded libraries, because another copy of a library would have its own devices and callbacks.
    """
    names = (name,) if isinstance(name, str) else name
    modules = [lib._lib]  # on Linux and macOS, libllama also finds functions of ggml's libraries
    if sys.platform == "win32":
        paths = (
            Path(lib._lib._name).with_name(f"{stem}ggml{end}.dll")
            for end in ("-base", "")
            for stem in ("", "lib")
        )
        modules += [ctypes.CDLL(str(path)) for path in paths if path.exists()]  # already loaded by llama_cpp
    for module, exported in itertools.product(modules, names):
        with contextlib.suppress(AttributeError):
            function = module[exported]
            function.restype, function.argtypes = result, list(arguments)
            return function
    hint = "install the version that localspec is tested with: pip install llama-cpp-python==0.3.36"
    raise BackendFailure(f"this llama.cpp has no function called {names[-1]}", hint=hint)


def spin_less(seconds: float) -> None:
    """Let OpenMP's waiting threads spin only 100 times during the next seconds, unless the user chose a wait.

    libgomp spins so little while it has more threads than CPUs. So this function starts more threads, which sleep.
    Source: https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html
    """
    parallel, llvm = getattr(lib._lib, "GOMP_parallel", None), hasattr(lib._lib, "__kmpc_fork_call")
    if not parallel or llvm or _CHOSEN & os.environ.keys():
        return  # only libgomp shortens its wait in this way, LLVM's OpenMP does not

    def sleep() -> None:
        nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)
        parallel(nothing, None, len(os.sched_getaffinity(0)) + 1, 0)
        time.sleep(seconds)  # OpenMP's started threads end with this thread

    with contextlib.suppress(RuntimeError):  # while Python exits, no thread can start
        threading.Thread(target=sleep, name="short spin", daemon=True).start()


def involuntary_switches() -> int:
    """Return how often another program took a core from a thread of this process; 0 on Windows."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw if sys.platform != "win32" else 0


def _load_backends() -> None:
    """Load the backends that are separate files. Raises BackendFailure if none of them is for this processor."""
    count = symbol("ggml_backend_dev_count", ctypes.c_size_t, [])
    if not count():
        load = symbol("ggml_backend_load_all_from_path", None, [ctypes.c_char_p])
        with short_spin():
            for place in dict.fromkeys(path.parent for path in library_files()):
                load(os.fsencode(place))
    if not count():
        what = f"the llama.cpp in {build_of(lib._lib)} has no backend for this processor (libggml-cpu)"
        raise BackendFailure(what, hint="set llama to the folder that holds all its libraries")


@lib.llama_log_callback  # type: ignore[untyped-decorator]
def log_to_python(level: int, text: bytes, _data: object) -> None:
    _router.write(level, text_of(text))


@ctypes.CFUNCTYPE(None, ctypes.c_char_p)  # type: ignore[untyped-decorator]
def _on_abort(message: bytes) -> NoReturn:
    """End the process with an error on stderr, because llama.cpp calls abort() if this function returns."""
    what = for_terminal(text_of(message).strip())
    if "Remote RPC server" in what:
        place = lifetimes.waiting_functions() or "an RPC server"
        lifetimes.end(f"{place} is gone: the connection broke", lifetimes.LOST_HINT)
    hint = "update the driver, or try fewer GPU layers, another KV cache type or a shorter context"
    lifetimes.end(f"llama.cpp aborted: {what}", hint)


_MEMORY = re.compile(
    r"failed to allocate|unable to allocate|allocation failed|out of memory|bad_alloc|cudaMalloc"
    r"|not enough memory|failed to reserve|cannot allocate memory",
    re.IGNORECASE,
)
_ARCHITECTURE = re.compile(r"unknown model architecture: '([^']*)'")
_WHERE = re.compile(r"^(?:[\w:~]+: |error loading model: |failed to load model: )+")
_MEMORY_HINT = "use a smaller model or quantisation, a shorter context (--context), or fewer --gpu-layers"


def load_failure(path: Path) -> LocalspecError:
    text = "\n".join(log_errors)
    if found := _ARCHITECTURE.search(text):
        what = f"{path.name} is a model of architecture {found[1]!r}, which this llama.cpp does not know"
        return BadModelFile(what, hint="try a newer llama.cpp: pip install --upgrade llama-cpp-python")
    if _MEMORY.search(text):
        return NotEnoughMemory(f"not enough memory to load {path.name}: {reason()}", hint=_MEMORY_HINT)
    return BadModelFile(f"llama.cpp cannot load {path.name}: {reason()}", hint=ANOTHER_COPY)


def context_failure(name: str, length: int) -> LocalspecError:
    log = "\n".join(log_errors)
    if not log or _MEMORY.search(log):  # without an error line, the cause is usually a lack of memory
        what = f"not enough memory for a context of {length} tokens on {name}: {reason()}"
        return NotEnoughMemory(what, hint=_MEMORY_HINT)
    hint = "try another cache type (--kv-type f16) and a shorter context (--context)"
    return BackendFailure(f"llama.cpp cannot set up {name} for replies: {reason()}", hint=hint)


def decode_failure(code: int) -> LocalspecError:
    """Return the error for a return code of llama_decode that is not 0."""
    if code == 1:
        what = "the context has no room for more tokens"
        return ContextFull(what, hint="use a longer context (--context)")
    if code == 2:
        return WorkStopped()
    if code == -1:
        what = f"llama.cpp cannot process the given tokens: {reason()}"
        return BackendFailure(what, hint="send only tokens of this model's vocabulary")
    if code == -2 or _MEMORY.search("\n".join(log_errors)):
        return NotEnoughMemory(f"llama.cpp ran out of memory while decoding: {reason()}", hint=_MEMORY_HINT)
    what = f"llama.cpp failed to decode (code {code}): {reason()}"
    return BackendFailure(what, hint="update the driver, or close programs that use the memory of the device")


def reason() -> str:
    """Return the first error line, without C function names. Later lines repeat the same error for each caller."""
    return _WHERE.sub("", log_errors[0]) if log_errors else "llama.cpp gave no reason"


_KINDS = ("model", "context", "sampler_chain")
layout = use_layout(lib, lib._lib, {f"llama_{a}_params": f"llama_{a}_default_params" for a in _KINDS})
with DelayedInterrupt():  # Ctrl-C must not interrupt the start of a GPU's driver
    lib.llama_log_set(log_to_python, None)  # replaces llama_cpp's callback, which prints to stderr
    symbol("ggml_set_abort_callback", ctypes.c_void_p, [ctypes.c_void_p])(_on_abort)
    _load_backends()
    lib.llama_backend_init()
# Libraries also log when they unload, after Python has ended. This C function then replaces the callback.
log_nothing = ctypes.cast(lib._lib.llama_max_devices, lib.llama_log_callback)
atexit.register(lib.llama_log_set, log_nothing, None)
