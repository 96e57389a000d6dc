"""The Python interface: load a pair by name or by files, run prompts on it, let go of it."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from localspec.chat.messages import Message
from localspec.chat.options import ReplyOptions
from localspec.chat.session import Session as Session
from localspec.chat.session import last_reply
from localspec.compose import Wishes, open_engine
from localspec.events import Event, Reply
from localspec.llama.devices import BackendSummary, Device, backend_summary
from localspec.llama.devices import devices as list_devices
from localspec.models.resolve import resolve

Prompt = str | Sequence[Mapping[str, Any] | Message]


def load(
    pair: str | None = None,
    *,
    target: str | Path | None = None,
    draft: str | Path | None = None,
    context_length: int | None = None,
    gpu_layers: int | None = None,
    threads: int | None = None,
    kv_type: str = "f16",
    speculate: bool = True,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> Session:
    """Load a pair by name, or two GGUF files; use the session as a context manager, or close() it.

    With nothing named: the pair used last, else the only one on disk, else the embedded demo.
    context_length in tokens; gpu_layers of the target (all by default where a GPU build is installed);
    threads on the CPU (physical cores by default); kv_type of the target's cache; speculate=False loads no
    draft model; on_stage is told what is being done. Raises the errors of `localspec.errors`.
    """
    wishes = Wishes(context_length, gpu_layers, threads, kv_type, drafts=speculate)
    return Session(open_engine(resolve(pair, target, draft), wishes, on_stage))


@dataclass(slots=True)
class _Loaded:
    """The pair that `run` and `stream` keep between calls."""

    key: tuple[Any, ...]
    session: Session


_loaded: _Loaded | None = None
_loading = threading.Lock()


def run(
    prompt_or_messages: Prompt,
    *,
    pair: str | None = None,
    target: str | Path | None = None,
    draft: str | Path | None = None,
    **options: Unpack[ReplyOptions],
) -> Reply:
    """Answer one prompt, or the last of a list of messages; every call begins a new conversation.

    The pair stays loaded for the next call until another one is asked for, or `unload()`.
    Options: see `localspec.chat.options.ReplyOptions`.
    """
    return last_reply(stream(prompt_or_messages, pair=pair, target=target, draft=draft, **options))


def stream(
    prompt_or_messages: Prompt,
    *,
    pair: str | None = None,
    target: str | Path | None = None,
    draft: str | Path | None = None,
    **options: Unpack[ReplyOptions],
) -> Iterator[Event]:
    """The same as `run`, event by event; the last one is Finished with the reply."""
    session = _keep_loaded(pair, target, draft)
    session.reset()
    return session.stream(prompt_or_messages, **options)


def unload() -> None:
    """Free the pair that `run` and `stream` keep loaded."""
    global _loaded
    with _loading:
        held, _loaded = _loaded, None
        if held:
            held.session.close()


def _keep_loaded(pair: str | None, target: str | Path | None, draft: str | Path | None) -> Session:
    global _loaded
    key = (pair, target and Path(target).absolute(), draft and Path(draft).absolute())
    with _loading:
        if _loaded is None or _loaded.key != key:
            if _loaded:
                held, _loaded = _loaded, None
                held.session.close()
            _loaded = _Loaded(key, load(pair, target=target, draft=draft))
        return _loaded.session


def devices() -> list[Device]:
    """What the installed llama.cpp can compute on, with free and total memory."""
    return list_devices()


def backend() -> BackendSummary:
    """What the installed llama.cpp was built with."""
    return backend_summary()
