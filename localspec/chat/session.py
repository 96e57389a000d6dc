"""A conversation with a loaded pair: it turns messages into events, and keeps the KV caches between turns."""

import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any, Unpack

from localspec.algorithm.images import without_images
from localspec.chat.constraints import PromptBuilder
from localspec.chat.loaded_pair import LoadedPair
from localspec.chat.pair_in_use import SHORTEN, Cancelled, PairInUse
from localspec.chat.reply import READ_AHEAD_SECONDS, Ends, ReplyJob, ReplyWriter
from localspec.chat.request import SAMPLING_NAMES, Request, request_from
from localspec.errors import BadSetting, ContextFull, LocalspecError
from localspec.events import Event, Finished, Reply
from localspec.options import ReplyOptions
from localspec.prompt.images import Image
from localspec.prompt.messages import Infill, Message, Messages, PromptOrMessages, as_messages, with_reply
from localspec.prompt.tokens import Prompt
from localspec.stopping import Closing, leave_at_end

Images = Sequence[str | Path | bytes | Image]
_LOOK_SECONDS = 0.001


def last_reply(events: Iterable[Event]) -> Reply:
    """Return the reply in the last event of a stream, which is Finished."""
    *_, last = events
    assert isinstance(last, Finished)
    return last.reply


class Session(Closing):
    """One conversation on one loaded pair, from `localspec.load`.

        session.run("Hello")          # a Reply; the next run continues the conversation
        session.stream("And you?")    # the next reply, event by event
        session.reset()               # forget the conversation

    A session gives one reply at a time. Any thread may call `cancel`, which ends the stream of that reply.
    """

    def __init__(self, pair: LoadedPair, defaults: ReplyOptions | None = None) -> None:
        """`defaults`: the values of options that the caller of a reply does not set."""
        self.pair = pair  # public for measurements, which use the pair directly
        self._defaults = defaults or ReplyOptions()
        self._owner = self._stored_as = ""
        self._messages: Messages = ()
        self._conversation = object()  # the identity of the conversation: reset() and resume() replace it
        self._latest_cancel = object()  # replaced by cancel(); replies that began with an older one end
        self._running: Cancelled | None = None  # the cancellation check of the reply in progress
        self._steps: Generator[Event] | None = None  # the events of the reply in progress
        self._working = threading.Lock()  # locked while an event is computed, not while the caller uses it
        self._asking: set[int] = set()  # threads that run a caller's `cancelled`, while `_working` is locked
        self._closed = False
        prompts = PromptBuilder(pair.vocabulary, pair.template, pair.read_image)
        self._in_use = PairInUse(pair, prompts, ReplyWriter(pair, prompts))
        self._in_use.sessions.add(self)

    def another(self, owner: str = "", stored_as: str = "") -> "Session":
        """Begin another conversation on the same pair. The models are freed with the pair's last open session.

        `owner`: the client; the reasoning of its replies never enters another client's prompts. `stored_as`: the
        stored conversation's name. At most `parallel` replies run at a time; an open stream counts as one.
        """
        with self._reading():
            other = Session(self.pair, self._defaults)
            other._owner, other._stored_as, other._in_use = owner, stored_as, self._in_use
            self._in_use.sessions.add(other)
            return other

    def close(self) -> None:
        """Cancel the running reply, whose stream then raises BadSetting. A pair's last session frees the models."""
        if self._in_use.process != os.getpid():
            return  # a child of fork() must not free the models of its parent
        self.cancel()
        with self._work:
            self._end_reply()
            with self.pair.slots.changed:
                self._closed = True
                self._in_use.sessions.discard(self)
                if not self._in_use.sessions:
                    self.pair.close()

    def cancel(self) -> None:
        """End each reply requested so far after its current cycle; keep the text. Any thread may call this method."""
        self._latest_cancel = object()

    def reset(self) -> None:
        """Forget the conversation, including a reply in progress."""
        self._messages, self._conversation = (), object()

    def resume(self, messages: Sequence[Mapping[str, Any] | Message]) -> None:
        """Replace the conversation by these messages; the next reply continues them."""
        self._require_open()
        self._messages, self._conversation = as_messages(messages), object()

    def calibrate(self, budget_seconds: float = 3.0, stop: Callable[[], bool] | None = None) -> None:
        """Measure the cost of passes, unless the cost is known or a reply runs. End early if `stop` returns true."""
        self._require_process()
        with self._work, self.pair.slots.unused() as slot:
            if slot and slot.target.tokens and not self._closed:
                text = without_images(slot.target.tokens)[-64:]
                slot.drafting.calibrate(text, budget_seconds, stop or bool)

    def read_ahead(self, ends: Ends, typed: Messages = (), **options: "Unpack[ReplyOptions]") -> None:
        """Prefill the certain beginnings of the next prompts of all sessions of the pair, until `ends()` is true.

        `typed`: messages whose last one is still being typed, up to its last whole word; they are prefilled, too.
        """
        ends = self._watch(ends)
        with self._work, suppress(LocalspecError):  # the next reply raises the same error and reports it
            if self._closed or not self.pair.reads_ahead:
                return
            self._in_use.writer.read_ahead(ends)
            if typed:
                request = self._chat_request(typed, options)
                *before, last = request.messages
                request = replace(request, messages=tuple(before))
                ahead = partial(self._in_use.ahead, request, typed=last.content)
                self._in_use.writer.prefill(ahead, ends, seconds=READ_AHEAD_SECONDS)

    @property
    def messages(self) -> Messages:
        """The messages of the conversation so far, without reasoning."""
        return self._messages

    def __repr__(self) -> str:
        return f"Session(target={self.target_name!r}, draft={self.draft_name!r})"

    @property
    def name(self) -> str:
        """The pair's name."""
        return self.pair.name

    @property
    def target_name(self) -> str:
        """The target model's name, as its file gives it."""
        return self.pair.target_name

    @property
    def draft_name(self) -> str:
        """The draft model's name; "" when there is none."""
        return self.pair.draft_name

    @property
    def context_length(self) -> int:
        """The largest number of tokens that prompt and reply may have together."""
        return self.pair.target.capacity

    @property
    def settings(self) -> dict[str, Any]:
        """The sampler options, seed, max_tokens and stop strings of a reply whose caller sets no options."""
        request = self._request({})
        sampling = {name: getattr(request.sampling, name) for name in SAMPLING_NAMES - {"logit_bias"}}
        return {**sampling, "seed": request.seed, "max_tokens": request.max_tokens, "stop": request.stop}

    def text_of(self, token: int) -> str:
        """The text of one token, for display: incomplete characters become U+FFFD."""
        with self._reading():
            piece = self.pair.vocabulary.piece(token)
            return piece.decode(errors="replace") if piece else self.pair.vocabulary.text(token)

    def run(
        self, prompt_or_messages: PromptOrMessages, *, images: Images = (), **options: "Unpack[ReplyOptions]"
    ) -> Reply:
        """Reply to a text, which continues the conversation, or to a list of messages, which replaces it.

        `images`: paths or contents of image files that belong to a text.
        If the last message is the assistant's, the reply continues that message and has only the new text.
        help(localspec.run) lists the options.
        """
        return last_reply(self.stream(prompt_or_messages, images=images, **options))

    def stream(
        self,
        prompt_or_messages: PromptOrMessages,
        *,
        images: Images = (),
        cancelled: Cancelled | None = None,
        **options: "Unpack[ReplyOptions]",
    ) -> Iterator[Event]:
        """Reply as `run` does, but yield events; the last is Finished. The reply ends when `cancelled` returns true."""
        cancelled, conversation = self._watch(cancelled), self._conversation
        request = self._chat_request(prompt_or_messages, options, images)
        return self._converse(request, cancelled, conversation)

    def prompt_of(self, prompt_or_messages: PromptOrMessages, **options: "Unpack[ReplyOptions]") -> Prompt:
        """Return the prompt that `run` would prefill if it left out no messages; nothing is generated."""
        with self._reading():
            return self._in_use.prompt(self._chat_request(prompt_or_messages, options))

    def count_tokens(self, prompt_or_messages: PromptOrMessages, **options: "Unpack[ReplyOptions]") -> int:
        """Return the number of tokens in the prompt that `prompt_of` returns."""
        return len(self.prompt_of(prompt_or_messages, **options).tokens)

    def complete(self, text: str | Sequence[int | str] | Infill, **options: "Unpack[ReplyOptions]") -> Reply:
        """Continue a raw text, which may have special tokens, or a list of token ids and texts, or fill an Infill."""
        return last_reply(self.stream_complete(text, **options))

    def stream_complete(
        self,
        text: str | Sequence[int | str] | Infill,
        *,
        cancelled: Cancelled | None = None,
        **options: "Unpack[ReplyOptions]",
    ) -> Iterator[Event]:
        """Reply as `complete` does, but yield events. The reply ends when `cancelled` returns true."""
        cancelled, request = self._watch(cancelled), replace(self._request(options), continued=text)
        with self._reading():
            job = self._in_use.raw_job(request, cancelled)
        return self._reply(cancelled, lambda: job)

    def _chat_request(
        self, prompt_or_messages: PromptOrMessages, options: ReplyOptions, images: Images = ()
    ) -> Request:
        request, messages = self._request(options), as_messages(prompt_or_messages, images)
        if isinstance(prompt_or_messages, str):
            messages = (*(replace(message, reasoning="") for message in self._messages), *messages)
        # The configured system message is used only if the messages have none.
        if request.system is not None and (options.get("system") is not None or messages[0].role != "system"):
            rest = messages[1:] if messages[0].role == "system" else messages
            messages = (Message("system", request.system), *rest) if request.system else rest
        return replace(request, messages=messages)

    def _watch(self, cancelled: Cancelled | None) -> Cancelled:
        latest = self._latest_cancel

        def ends() -> bool:
            if self._latest_cancel is not latest or cancelled is None:
                return self._latest_cancel is not latest
            self._asking.add(here := threading.get_ident())
            try:
                return cancelled()
            finally:
                self._asking.discard(here)

        return ends

    @property
    def _work(self) -> AbstractContextManager[object]:
        if threading.get_ident() in self._asking:
            what = "the function `cancelled` used the session of the reply that called it"
            raise BadSetting(what, hint="return True from `cancelled`, and use the session after the reply")
        return self._working

    def _request(self, options: Mapping[str, Any]) -> Request:
        self._require_open()
        defaults: dict[str, Any] = {**self._defaults}
        if options.get("seed", "left out") is None:
            defaults.pop("seed", None)
        given = {name: value for name, value in options.items() if value is not None}
        request = request_from({**defaults, **given}, self.pair.sampling, self.pair.vocabulary.tokenize)
        return replace(request, owner=self._owner, conversation=self._stored_as)

    def _require_process(self) -> None:
        leave_at_end()
        if self._in_use.process != os.getpid():
            hint = "load the pair in this process: a child of fork() cannot use its parent's models"
            raise BadSetting("this pair was loaded in another process", hint=hint)

    def _require_open(self) -> None:
        self._require_process()
        if self._closed:
            raise BadSetting("this session is closed", hint="load the pair again: localspec.load(...)")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        self._require_process()  # check this before the lock, which a child of fork() may wait for without end
        with self.pair.slots.changed:
            self._require_open()
            yield

    def _converse(self, request: Request, cancelled: Cancelled, conversation: object) -> Iterator[Event]:
        for event in self._reply(cancelled, lambda: self._in_use.job(request, cancelled)):
            if isinstance(event, Finished):
                # A conversation that was reset during the reply stays reset.
                if event.reply.tokens and self._conversation is conversation:
                    self._messages = with_reply(request.messages, event.reply)
                if not request.begun:
                    self._in_use.reasoning.keep(request.messages, event.reply, request.beside)
            yield event

    def _reply(self, cancelled: Cancelled, job_of: Callable[[], ReplyJob]) -> Iterator[Event]:
        self._require_process()
        with self._work:
            if self._running and not self._running():
                hint = "wait for that reply, or call cancel() first"
                raise BadSetting("this session is busy with another reply", hint=hint)
            self._running = cancelled
            self._end_reply()
        try:
            with self._work:
                self._require_open()
                job = job_of()
            count, capacity = len(job.prompt), self.pair.target.capacity
            if count >= capacity:
                raise ContextFull.of("prompt", count, capacity, hint=SHORTEN)
            # `closing` frees the slot of `steps` at once, because a handled error may keep this frame alive.
            with closing(self._in_use.writer.reply(job)) as steps:
                self._steps = steps
                while True:
                    self._require_process()
                    with self._work:
                        if self._closed or self._running is not cancelled:
                            what = "the session was closed while it replied, or got another request"
                            raise BadSetting(what, hint="read each reply to its end, or cancel() it")
                        event = next(steps, None)
                    if event is None:
                        return
                    yield event
        finally:
            if self._running is cancelled:
                self._running = None

    def _end_reply(self) -> None:
        steps, self._steps = self._steps, None
        while steps is not None:
            try:
                steps.close()
                return
            except ValueError:  # another thread is running the generator now
                sleep(_LOOK_SECONDS)
