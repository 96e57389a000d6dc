"""The Python interface: load a pair by name or by files, run prompts on it, free it."""

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack, cast

from localspec.chat.loaded_pair import LoadedPair
from localspec.chat.messages import Message, as_messages
from localspec.chat.session import Session as Session
from localspec.chat.session import in_a_thread, last_reply
from localspec.events import Event, Reply
from localspec.gguf.matching import adapters_of
from localspec.health.devices import Device, with_host
from localspec.health.stopping import Stop, interruptible
from localspec.llama.devices import backend_summary
from localspec.llama.devices import devices as list_devices
from localspec.llama.threads import default_threads as default_threads
from localspec.models.load import is_demo, load_pair, plan_pair
from localspec.models.memory import wishes_of
from localspec.models.names import find, used_as
from localspec.models.places import mark_used
from localspec.options import LOAD, REPLY, LoadOptions, ReplyOptions, configured, explains, naming_settings

PATIENCE_SECONDS = 1.0  # after Ctrl-C: a load that waits for a disk ends by itself and frees its memory

Prompt = str | Sequence[Mapping[str, Any] | Message]


@explains(LOAD)
@naming_settings()
def load(
    pair: str | Path | None = None,
    *,
    target: str | Path | None = None,
    draft: str | Path | None = None,
    speculate: bool = True,
    pull: bool = False,
    spare_cores: int = 0,
    owner: str = "",
    on_stage: Callable[[str], object] | None = None,
    **options: "Unpack[LoadOptions]",
) -> Session:
    """Load a pair for conversations: by name, by two GGUF files, or from the Hub. Use it with `with`, or close() it.

        with localspec.load("llama-3.1-8b+1b") as session:
            print(session.run("Hello"))

    pair: its name, the path of a GGUF file, or a model of the Hub. Without one, and without a target, it is the pair
    used or fetched last; the demo while no other pair is here.
    target, draft: files or models of the Hub, in place of a pair.
    draft="lookup": draft from the text alone. speculate=False: plain decoding. pull=True: fetch what is not here.
    spare_cores: CPU cores to leave free. owner: caches on disk are shared by equal owners alone.
    on_stage: called with each stage of loading.
    Raises LocalspecError, whose `hint` says what to do.
    """
    settings = configured(pair=None if target else pair, **options)
    wanted = pair or (None if target else settings.get("pair"))
    found = find(wanted, target, draft if speculate else "lookup", pull=pull)
    found = replace(found, lora=adapters_of(settings.get("lora", "")))
    wishes, stop = wishes_of(settings), Stop()

    def told(stage: str) -> None:
        stop.check()
        if on_stage:
            on_stage(stage)

    def opened() -> LoadedPair:
        planned = plan_pair(found, wishes, settings.get("rpc", ""), told)
        return load_pair(
            found, planned, settings, spare_cores=spare_cores, speculate=speculate, on_stage=told, owner=owner
        )

    engine = interruptible(opened, stop, patience_seconds=PATIENCE_SECONDS)
    defaults = {name: value for name, value in settings.items() if name in REPLY} | {"speculate": speculate}
    if is_demo(found):  # too small to gain much: it always drafts, for demonstration
        defaults.setdefault("depth", found.starting_depth)
    session = Session(engine, cast(ReplyOptions, defaults))
    mark_used(used_as(found))
    return session


_loaded: tuple[object, Session] | None = None  # what `run` and `stream` keep between calls, and its names
_loading = threading.RLock()
_replying = threading.Lock()  # `run` from several threads takes turns
_asynchronous = ThreadPoolExecutor(1, "localspec")  # those of asyncio wait without a thread each
_POLL_SECONDS = 0.05


@explains(REPLY)
def run(
    prompt_or_messages: Prompt,
    *,
    pair: str | Path | None = None,
    target: str | Path | None = None,
    draft: str | Path | None = None,
    pull: bool = False,
    **options: "Unpack[ReplyOptions]",
) -> Reply:
    """Answer one prompt, or the last of a list of messages; every call begins a new conversation.

    The pair stays loaded for the next call until another one is asked for, or `unload()`. Without a name it is the
    pair used or fetched last. Raises LocalspecError, whose `hint` says what to do.
    """
    with _replying:
        return last_reply(
            stream(prompt_or_messages, pair=pair, target=target, draft=draft, pull=pull, **options)
        )


def stream(
    prompt_or_messages: Prompt,
    *,
    pair: str | Path | None = None,
    target: str | Path | None = None,
    draft: str | Path | None = None,
    pull: bool = False,
    cancelled: Callable[[], bool] | None = None,
    **options: "Unpack[ReplyOptions]",
) -> Iterator[Event]:
    """The same as `run`, event by event; the last one is Finished with the reply. `cancelled` ends it early."""
    messages = as_messages(prompt_or_messages)
    return _keep_loaded(pair, target, draft, pull).stream(messages, cancelled=cancelled, **options)


class RunOptions(ReplyOptions, total=False):
    """Keyword arguments of `arun` and `astream`: those of `run`."""

    pair: str | Path | None
    target: str | Path | None
    draft: str | Path | None
    pull: bool


async def arun(prompt_or_messages: Prompt, **options: "Unpack[RunOptions]") -> Reply:
    """`run` for asyncio: loading and replying happen in a thread; a task that is cancelled stops the reply."""
    return last_reply([event async for event in astream(prompt_or_messages, **options)])


def astream(prompt_or_messages: Prompt, **options: "Unpack[RunOptions]") -> AsyncIterator[Event]:
    """`stream` for asyncio; leaving it early stops the reply."""

    def begin(left: Callable[[], bool]) -> Iterator[Event]:
        while not _replying.acquire(timeout=_POLL_SECONDS):
            if left():
                return
        try:
            yield from stream(prompt_or_messages, cancelled=left, **options)
        finally:
            _replying.release()

    return in_a_thread(begin, _asynchronous)


def unload() -> None:
    """Free the pair that `run` and `stream` keep loaded; this ends its reply."""
    global _loaded
    with _loading:
        held, _loaded = _loaded, None
        if held:
            held[1].close()


def _keep_loaded(
    pair: str | Path | None, target: str | Path | None, draft: str | Path | None, pull: bool
) -> Session:
    global _loaded
    key = (pair, target and Path(target).absolute(), draft and Path(draft).absolute())
    with _loading:
        if _loaded is None or _loaded[0] != key:
            unload()
            _loaded = key, load(pair, target=target, draft=draft, pull=pull)
        return _loaded[1]


def devices() -> list[Device]:
    """The devices of the installed llama.cpp, with free and total memory as the memory plan sees it."""
    return list(with_host(list_devices()))


backend = backend_summary  # the features of the installed llama.cpp
