"""A conversation with a loaded pair: it turns messages into events, and keeps the KV caches between turns."""

import json
import os
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Unpack

from localspec.algorithm.images import without_images
from localspec.chat.constraints import PromptBuilder
from localspec.chat.loaded_pair import LoadedPair
from localspec.chat.options import SAMPLING_NAMES, Request, request_from
from localspec.chat.reply import READ_AHEAD_SECONDS, Ends, ReplyJob, ReplyWriter
from localspec.chat.text import TextStream
from localspec.chat.thinking_budget import ThinkingBudget
from localspec.errors import BadSetting, ContextFull, LocalspecError
from localspec.events import Event, Finished, Reply
from localspec.options import ReplyOptions
from localspec.prompt.fitting import Fitted, Fitter, Messages, Omission
from localspec.prompt.images import Image
from localspec.prompt.messages import Infill, Message, Reasoning, are_continued, as_messages, with_reply
from localspec.prompt.tokens import Prompt, following_messages, tokens_of
from localspec.sampler.passes import common_prefix_length
from localspec.stopping import Closing, leave_at_end
from localspec.structure.json_calls import JsonCallReader
from localspec.structure.read_calls import CallReader

PromptOrMessages = str | Sequence[Mapping[str, Any] | Message]
Images = Sequence[str | Path | bytes | Image]
Cancelled = Callable[[], bool]
_LOOK_SECONDS = 0.001
_SHORTEN = "shorten the prompt, or start again with a larger context: --context N"


def last_reply(events: Iterable[Event]) -> Reply:
    """Return the reply of the Finished event, which is the last of a stream."""
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
        self.pair = pair  # public, because measurements use the pair directly
        self._defaults = defaults or ReplyOptions()
        self._messages: Messages = ()
        self._conversation = object()  # the identity of the conversation: reset() and resume() replace it
        self._owner = ""  # client whose reasoning and omissions are stored; no other client gets them
        self._stored_as = ""  # name of the stored conversation, for its prompt caches
        self._reasoning = Reasoning()
        self._omissions: list[Omission] = []  # a few omissions of earlier prompts, the latest first
        self._latest_cancel = object()  # cancel() replaces it; a reply ends if it began with an older object
        self._running: Cancelled | None = None  # the cancellation check of the reply in progress
        self._steps: Generator[Event] | None = None  # the events of the reply in progress
        self._working = threading.Lock()  # locked while an event is computed, not while the caller uses it
        # All sessions of the pair share this lock. A session holds it to begin, end, or use template or vocabulary.
        self._looking = threading.RLock()
        self._process = os.getpid()
        self._closed = False
        self._prompts = PromptBuilder(pair.vocabulary, pair.template, pair.read_image)
        self._writer = ReplyWriter(pair)
        self._open = {self}  # the open sessions of the pair

    def another(self, owner: str = "", stored_as: str = "") -> "Session":
        """Begin another conversation on the same pair. Closing its last open session frees the models.

        `owner`: the client; one client's reasoning never enters another client's prompts. `stored_as`: the name of the
        stored conversation. A pair with `parallel` slots gives as many replies at a time; an open stream keeps a slot.
        """
        with self._reading():
            other = Session(self.pair, self._defaults)
            for shared in ("_prompts", "_writer", "_open", "_looking", "_reasoning", "_omissions"):
                setattr(other, shared, getattr(self, shared))
            other._owner, other._stored_as = owner, stored_as
            self._open.add(other)
            return other

    def close(self) -> None:
        """Cancel the running reply, whose stream then raises BadSetting. A pair's last session frees the models."""
        if self._process != os.getpid():
            return  # a child of fork() must not free the models of its parent
        self.cancel()
        with self._working, self._looking:
            self._end_reply()
            self._closed = True
            self._open.discard(self)
            if not self._open:
                self.pair.close()

    def cancel(self) -> None:
        """End each reply requested so far, after its current cycle. Its text is kept. Any thread may call this."""
        self._latest_cancel = object()

    def reset(self) -> None:
        """Forget the conversation, including a reply in progress."""
        self._messages, self._conversation = (), object()

    def resume(self, messages: Sequence[Mapping[str, Any] | Message]) -> None:
        """Replace the conversation by these messages; the next reply continues them."""
        self._require_open()
        self._messages, self._conversation = as_messages(messages), object()

    def calibrate(self, budget_seconds: float = 3.0, stop: Callable[[], bool] | None = None) -> None:
        """Measure the cost of batches, unless it is known or a reply runs; end early if `stop` returns true."""
        self._require_process()
        with self._working, self.pair.slots.unused() as slot:
            if slot and slot.target.tokens and not self._closed:
                text = without_images(slot.target.tokens)[-64:]
                slot.drafting.calibrate(text, budget_seconds, stop or bool)

    def read_ahead(self, ends: Ends, typed: Messages = (), **options: "Unpack[ReplyOptions]") -> None:
        """Prefill the certain beginnings of the next prompts of all sessions of the pair, until `ends()` is true.

        `typed`: a conversation whose last message is not sent yet, up to its last whole word; it is prefilled, too.
        """
        ends = self._watch(ends)
        with self._working, suppress(LocalspecError):  # the next reply meets the error again and reports it
            if self._closed or not self.pair.reads_ahead:
                return
            self._writer.read_ahead(ends)
            if typed:
                request = self._request(options)
                *before, last = self._whole(typed, request, options)
                ahead = partial(self._ahead, tuple(before), request, typed=last.content)
                self._writer.prefill(ahead, ends, seconds=READ_AHEAD_SECONDS)

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
        cancelled, request, conversation = self._watch(cancelled), self._request(options), self._conversation
        messages = self._whole(prompt_or_messages, request, options, images)
        return self._converse(messages, request, cancelled, conversation)

    def prompt_of(self, prompt_or_messages: PromptOrMessages, **options: "Unpack[ReplyOptions]") -> Prompt:
        """Return the prompt that `run` would prefill if it left out no messages; nothing is generated."""
        with self._reading():
            request = self._request(options)
            messages = self._whole(prompt_or_messages, request, options)
            return self._prompts.encode(self._reasoning.put_back(messages, self._beside(request)), request)

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
        cancelled, request = self._watch(cancelled), self._request(options)
        vocabulary, capacity = self.pair.vocabulary, self.pair.target.capacity
        text_stream = TextStream(vocabulary, None, request.stop, continues_text=True)
        if request.tools:
            raise BadSetting("a raw prompt cannot have tools", hint="leave out the tools, or send messages")
        with self._reading():
            self._check_space(len(text) if isinstance(text, str) else 0)
            if isinstance(text, Infill):
                reserve = min(request.max_tokens or capacity, capacity // 4) + 1
                tokens = text.prompt(vocabulary, self.target_name, capacity - reserve)
            else:
                tokens = tokens_of(text, vocabulary)
            constraint = self._prompts.constraint(request, None, len(tokens))
            messages = (Message("user", text),) if isinstance(text, str) else ()
            spelled = self._prompts.spelled(messages, request)
        points = (len(tokens),)
        job = ReplyJob(tokens, points, request, text_stream, cancelled, constraint, spelled=spelled)
        return self._reply(cancelled, lambda: job)

    def _whole(
        self,
        prompt_or_messages: PromptOrMessages,
        request: Request,
        options: ReplyOptions,
        images: Images = (),
    ) -> Messages:
        messages = as_messages(prompt_or_messages, images)
        if isinstance(prompt_or_messages, str):
            messages = (*(replace(message, reasoning="") for message in self._messages), *messages)
        # The configured system message is used only if the messages have none.
        if request.system is not None and (options.get("system") is not None or messages[0].role != "system"):
            rest = messages[1:] if messages[0].role == "system" else messages
            messages = (Message("system", request.system), *rest) if request.system else rest
        return messages

    def _watch(self, cancelled: Cancelled | None) -> Cancelled:
        latest = self._latest_cancel
        return lambda: self._latest_cancel is not latest or (cancelled or bool)()  # bool() is False

    def _request(self, options: Mapping[str, Any]) -> Request:
        self._require_open()
        defaults: dict[str, Any] = {**self._defaults}
        if options.get("seed", "left out") is None:
            defaults.pop("seed", None)
        given = {name: value for name, value in options.items() if value is not None}
        return request_from({**defaults, **given}, self.pair.sampling, self.pair.vocabulary.tokenize)

    def _require_process(self) -> None:
        leave_at_end()
        if self._process != os.getpid():
            hint = "load the pair in this process: a child of fork() cannot use its parent's models"
            raise BadSetting("this pair was loaded in another process", hint=hint)

    def _require_open(self) -> None:
        self._require_process()
        if self._closed:
            raise BadSetting("this session is closed", hint="load the pair again: localspec.load(...)")

    def _check_space(self, characters: int) -> None:
        """Refuse a text too long for the context, before seconds are spent to tokenise it."""
        capacity, vocabulary = self.pair.target.capacity, self.pair.vocabulary
        if characters <= 16 * capacity:  # such a text is tokenised quickly
            return
        least = -(-characters // max(len(vocabulary.piece(token)) for token in range(vocabulary.size)))
        if least > capacity:
            raise ContextFull.of("prompt", least, capacity, more=True, hint=_SHORTEN)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        self._require_process()  # before the lock, which may never be free in a child of fork()
        with self._looking:
            self._require_open()
            yield

    def _converse(
        self, messages: Messages, request: Request, cancelled: Cancelled, conversation: object
    ) -> Iterator[Event]:
        requested = perf_counter()
        for event in self._reply(cancelled, lambda: self._job(messages, request, cancelled, requested)):
            if isinstance(event, Finished):
                # A conversation that was reset during the reply stays reset.
                if event.reply.tokens and self._conversation is conversation:
                    self._messages = with_reply(messages, event.reply)
                if not are_continued(messages):
                    self._reasoning.keep(messages, event.reply, self._beside(request))
            yield event

    def _job(self, messages: Messages, request: Request, cancelled: Cancelled, requested: float) -> ReplyJob:
        template, fitted = self.pair.template, self._fit(messages, request)
        prompt = fitted.prompt
        style = template.thinking_style(prompt.text)
        start = len(without_images(prompt.tokens))
        begun = messages[-1].content if are_continued(messages) else ""
        constraint = self._prompts.constraint(request, style, start, begun)
        calls = self._prompts.tool_call_format(request)
        text = TextStream(
            self.pair.vocabulary,
            style,
            (*template.stops, *request.stop),
            # A text must match its grammar exactly, so a space at its beginning stays.
            continues_text=constraint is not None or are_continued(messages),
            calls=calls if request.tool_choice != "none" else None,
            functions=request.functions,
            reader=partial(JsonCallReader, several=request.parallel_tool_calls)
            if request.json_calls and request.tool_choice == "auto" and request.grammar is None
            else partial(CallReader, distinct=request.tool_choice == "required"),
        )
        text.resume(begun)
        needs_checkpoints = self.pair.target.needs_checkpoints
        return ReplyJob(
            prompt.tokens,
            self._prompts.branch_points(fitted.messages, prompt, request) if needs_checkpoints else (),
            request,
            text,
            cancelled,
            constraint,
            trimmed_messages=fitted.dropped_messages,
            requested=requested,
            generic_calls=calls is not None and not calls.native,
            questions=_questions(messages),
            conversation=self._stored_as,
            budget=None
            if isinstance(request.think, bool | None)
            else ThinkingBudget(constraint, request, text, template.thinking_ending, start),
            changed=prompt.notice,
            spelled=self._prompts.spelled(fitted.messages, request),
            following=lambda reply, ends: self._ahead(with_reply(messages, reply), request, ends),
        )

    def _fit(self, messages: Messages, request: Request) -> Fitted:
        trims, beside = request.overflow == "trim", self._beside(request)
        self._check_space(sum(len(message.content) for message in messages[-1 if trims else 0 :]))
        fitter = Fitter(
            lambda messages: self._prompts.encode(messages, request),
            self.pair.target.capacity,
            request.max_tokens,
            thinks=request.think is not False and self.pair.template.thinking_style("") is not None,
            beside=beside,
        )
        fitted = fitter.fit(self._reasoning.put_back(messages, beside), trim=trims, earlier=self._omissions)
        if found := fitted.omission:
            self._omissions[:] = [found, *(o for o in self._omissions if o != found)][:8]
        return fitted

    def _ahead(self, messages: Messages, request: Request, ends: Ends, typed: str = "") -> ReplyJob | None:
        """Return a job that prefills what the next prompt begins with, whatever the next message says.

        `typed`: the certain beginning of that message. Return None if `ends()` came true before.
        """
        counts = list[int]()
        for text in dict.fromkeys(("", typed)):
            prompts = list[Prompt]()
            for following in following_messages(messages, text):
                if ends():
                    return None
                fitted = self._fit((*messages, *following), request)
                prompts.append(fitted.prompt)
            common = (common_prefix_length(prompts[-1].tokens, 0, other.tokens) for other in prompts[:-1])
            counts.append(min(common))
        points: Sequence[int] = ()
        if self.pair.target.needs_checkpoints:
            points = self._prompts.branch_points(fitted.messages, fitted.prompt, request)[:-1]
        return ReplyJob(
            fitted.prompt.tokens[: counts[-1] + 1],  # the last token of a prompt is not prefilled
            (*points, counts[0]),
            request,
            TextStream(self.pair.vocabulary, None, ()),
            ends,
            questions=_questions(messages),
            conversation=self._stored_as,
            sent=counts[0] if typed else None,
        )

    def _beside(self, request: Request) -> str:
        """Return client and tools as one text; a reply depends on both, and on its messages."""
        return json.dumps([self._owner, request.tools], sort_keys=True, default=str)

    def _reply(self, cancelled: Cancelled, job_of: Callable[[], ReplyJob]) -> Iterator[Event]:
        self._require_process()
        with self._working:
            if self._running and not self._running():
                hint = "wait for that reply, or call cancel() first"
                raise BadSetting("this session is busy with another reply", hint=hint)
            self._running = cancelled
            self._end_reply()
        try:
            with self._working:
                self._require_open()
                job = job_of()
            count, capacity = len(job.prompt), self.pair.target.capacity
            if count >= capacity:
                raise ContextFull.of("prompt", count, capacity, hint=_SHORTEN)
            # `closing` frees the slot of `steps` at once, because a handled error may keep this frame alive.
            with closing(self._writer.reply(job)) as steps:
                self._steps = steps
                while True:
                    self._require_process()
                    with self._working:
                        if self._closed or self._running is not cancelled:
                            what = "the session was closed while it replied, or got another request"
                            raise BadSetting(what, hint="read each reply to its end first")
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
            except ValueError:  # another thread is running the generator at this moment
                sleep(_LOOK_SECONDS)


def _questions(messages: Messages) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (m.role, m.content, *(i.digest for i in m.images)) for m in messages if m.role != "assistant"
    )


async def in_a_thread(
    begin: Callable[[Cancelled], Iterator[Event]], threads: Executor
) -> AsyncIterator[Event]:
    """Run `begin` in one of `threads`, and yield its events. Its argument returns whether the reader has left."""
    import asyncio  # not at the top, because it takes 30 ms

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
            done.exception()  # retrieves the error: asyncio logs an error that nobody retrieves
