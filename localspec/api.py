"""The Python interface: load a pair by name or by files, run prompts, free the pair."""

import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack, cast

from localspec.chat.session import Images, last_reply
from localspec.chat.session import Session as Session
from localspec.errors import BadSetting
from localspec.events import Event, Reply
from localspec.files import after_fork
from localspec.gguf.matching import adapters_of
from localspec.llama.devices import backend_summary
from localspec.llama.devices import devices as list_devices
from localspec.llama.threads import default_threads as default_threads
from localspec.llama.threads import usable_cores as usable_cores
from localspec.loading.load import load_planned
from localspec.loading.memory import LoadChoices
from localspec.machine.devices import Device, with_host
from localspec.models.download import check_here
from localspec.models.local_models import mark_used
from localspec.models.names import find
from localspec.models.projector import projector_of
from localspec.models.registry import Pair
from localspec.options import LOAD, REPLY, LoadOptions, ReplyOptions, configured, explains, naming_settings
from localspec.prompt.messages import Infill as Infill
from localspec.prompt.messages import Message, PromptOrMessages, as_messages
from localspec.stopping import Stop, WorkStopped, interruptible, own_stop

TIMEOUT_SECONDS = 1.0  # longest wait, after Ctrl-C, for the end of the loading thread


@explains(LOAD)
@naming_settings()
def load(
    pair: str | Path | Pair | None = None,
    *,
    target: str | Path | None = None,
    draft: str | Path | None = None,
    speculate: bool = True,
    pull: bool = False,
    spare_cores: int = 0,
    owner: str = "",
    is_use: bool = True,
    on_stage: Callable[[str], object] | None = None,
    **options: "Unpack[LoadOptions]",
) -> Session:
    """Load a pair and return a Session for conversations. Use the session in `with`, or close() it.

        with localspec.load("llama-3.1-8b+1b") as session:
            print(session.run("Hello"))

    pair: the name of a pair, the path of a GGUF file, or a model on Hugging Face. Without `pair` and `target`, the
    pair used or downloaded last is loaded; if no pair is on this machine, the demo.
    target, draft: GGUF files or models on Hugging Face, in place of `pair`. draft="lookup": draft by lookup alone.
    speculate=False: plain decoding. pull=True: download missing files. spare_cores: CPU cores to leave free.
    owner: a name; only loads with the same name share prompt caches on disk. is_use: whether later loads without a
    name may choose this pair.
    on_stage: a function that is called with a description of each stage of the load.
    Raises LocalspecError, whose `hint` says what to do.
    """
    settings = configured(pair=None if target or isinstance(pair, Pair) else pair, **options)
    if isinstance(pair, Pair):  # the command line has already found the Pair
        check_here(found := pair if speculate else pair.alone)
    else:
        wanted = pair or (None if target else settings.get("pair"))
        found = find(wanted, target, draft if speculate else "lookup", pull=pull)
    settings = found.own_options | settings
    projector = projector_of(found, settings.get("mmproj"))
    found = replace(found, lora=adapters_of(settings.get("lora", "")), projector=projector)
    choices = LoadChoices.of(settings, spare_cores=spare_cores, speculate=speculate, owner=owner)
    stop = own_stop()

    def at_stage(stage: str) -> None:
        stop.check()
        if on_stage:
            on_stage(stage)

    opened = partial(load_planned, found, choices, at_stage)
    engine = interruptible(opened, stop, timeout_seconds=TIMEOUT_SECONDS)
    defaults = {name: value for name, value in settings.items() if name in REPLY} | {"speculate": speculate}
    if found.is_demo:  # a fixed depth, because the automatic depth would be 0: the demo's draft saves no time
        defaults.setdefault("depth", 4)
    session = Session(engine, cast(ReplyOptions, defaults))
    if is_use:
        mark_used(found.used_as)
    return session


# The session that `run` and `stream` keep between calls, with the arguments that named its pair.
_loaded: tuple[object, Session] | None = None
_loading = threading.RLock()
_taken = threading.Lock()  # held while a stream is open, so that only one is open at a time
_reader: threading.Thread | None = None  # the thread that reads the open stream
_asynchronous = ThreadPoolExecutor(1, "localspec")  # one thread for all replies of `arun` and `astream`
_POLL_SECONDS = 0.05


@contextmanager
def _turn(asker: threading.Thread, left: Callable[[], bool]) -> Iterator[None]:
    """Wait until the open stream ends. Raises BadSetting if this thread reads it, WorkStopped if `left()` is true."""
    global _reader
    turn = _taken
    while not turn.acquire(timeout=_POLL_SECONDS):
        if (reader := _reader) and (reader is asker or not reader.is_alive()):
            hint = "close() that stream or read it to its end, or use a session of localspec.load(...)"
            raise BadSetting("an earlier localspec.stream(...) was not read to its end", hint=hint)
        if left():
            raise WorkStopped
    _reader = threading.current_thread()
    try:
        yield
    finally:
        _reader = None
        turn.release()


@after_fork
def _forget() -> None:
    """Forget the loaded pair in a child of fork()."""
    global _loaded, _loading, _taken, _reader, _asynchronous
    _loaded, _loading, _taken, _reader = None, threading.RLock(), threading.Lock(), None
    _asynchronous = ThreadPoolExecutor(1, "localspec")


class RunOptions(ReplyOptions, total=False):
    """Keyword arguments of `run`, `stream`, `arun` and `astream`: the pair, and reply options."""

    pair: str | Path | None
    target: str | Path | None
    draft: str | Path | None
    pull: bool
    images: Images


@explains(REPLY)
def run(prompt_or_messages: PromptOrMessages, **options: "Unpack[RunOptions]") -> Reply:
    """Answer one prompt, or the last message of a list; every call begins a new conversation.

    pair, target, draft, pull: as for `load`. images: paths or contents of image files for a prompt. The pair stays
    loaded until a call names another pair or `unload()` is called. Raises LocalspecError, whose `hint` says what to do.
    """
    return last_reply(stream(prompt_or_messages, **options))


def stream(
    prompt_or_messages: PromptOrMessages,
    *,
    cancelled: Callable[[], bool] | None = None,
    **options: "Unpack[RunOptions]",
) -> Iterator[Event]:
    """Yield the events of a `run`. Calls in other threads wait until this stream is closed or has ended."""
    messages = as_messages(prompt_or_messages, options.pop("images", ()))
    return _streamed(messages, threading.current_thread(), cancelled, options)


def _streamed(
    messages: Sequence[Message],
    asker: threading.Thread,
    cancelled: Callable[[], bool] | None,
    options: RunOptions,
) -> Iterator[Event]:
    named = {name: options.get(name) for name in ("pair", "target", "draft", "pull")}
    others: Any = {name: value for name, value in options.items() if name not in named}
    with _turn(asker, cancelled or bool):
        yield from _keep_loaded(named, cancelled).stream(messages, cancelled=cancelled, **others)


async def arun(prompt_or_messages: PromptOrMessages, **options: "Unpack[RunOptions]") -> Reply:
    """Call `run` in a thread, for asyncio; cancelling the task stops the load or the reply."""
    return last_reply([event async for event in astream(prompt_or_messages, **options)])


def astream(prompt_or_messages: PromptOrMessages, **options: "Unpack[RunOptions]") -> AsyncIterator[Event]:
    """Call `stream` in a thread, for asyncio. If the caller leaves the loop over the events, the reply is cancelled."""
    messages = as_messages(prompt_or_messages, options.pop("images", ()))
    asker = threading.current_thread()
    return in_a_thread(lambda left: _streamed(messages, asker, left, options), _asynchronous)


async def in_a_thread(
    begin: Callable[[Callable[[], bool]], Iterator[Event]], threads: Executor
) -> AsyncIterator[Event]:
    """Run `begin` in one of `threads`, and yield its events. Its argument tells whether the reader has left."""
    import asyncio  # imported late, because it takes 30 ms

    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[Event | None] = asyncio.Queue()
    left = threading.Event()

    def work() -> None:
        try:
            for event in begin(lambda: left.is_set() or not threading.main_thread().is_alive()):
                loop.call_soon_threadsafe(queue.put_nowait, event)
        finally:
            loop.call_soon_threadsafe(queue.put_nowait, None)

    job = threads.submit(work)
    done = asyncio.wrap_future(job)
    try:
        while (event := await queue.get()) is not None:
            yield event
        await done
    finally:
        left.set()
        if not done.done() and not job.cancel():
            await asyncio.wait([done])
            done.exception()  # fetch the error, because asyncio logs errors that are never fetched


def unload() -> None:
    """Free the pair that `run` and `stream` keep loaded, and the model of `embed`. A running reply ends."""
    global _loaded
    if small := sys.modules.get("localspec.embedding.model"):  # without this import, no model is loaded
        small.unload()
    with _loading:
        held, _loaded = _loaded, None
        if held:
            held[1].close()


def _keep_loaded(named: Mapping[str, Any], cancelled: Callable[[], bool] | None) -> Session:
    global _loaded
    key = (named["pair"], *(path and Path(path).absolute() for path in (named["target"], named["draft"])))
    with _loading:
        if _loaded is None or _loaded[0] != key:
            unload()
            opened = partial(load, **{**named, "pull": bool(named["pull"])})
            _loaded = key, interruptible(opened, Stop(), cancelled=cancelled) if cancelled else opened()
        return _loaded[1]


def devices() -> list[Device]:
    """Return the devices of the installed llama.cpp, with the free memory that the memory plan uses."""
    return list(with_host(list_devices()))


backend = backend_summary  # returns version and features of the installed llama.cpp
