"""A conversation with a loaded pair: messages in, events out, both KV caches reused from turn to turn."""

import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from time import perf_counter
from typing import Any, TypeVar, Unpack

from localspec.algorithm.protocols import Vocabulary
from localspec.chat.constraints import ConstraintBuilder
from localspec.chat.fitting import Cut, Fitted, Fitter, Messages
from localspec.chat.loaded_pair import LoadedPair
from localspec.chat.messages import Message, Reasoning, are_continued, as_messages, with_reply, with_system
from localspec.chat.options import Request, request_from
from localspec.chat.prompt import Prompt, encode, opening_of
from localspec.chat.reply import ReplyJob, ReplyWriter
from localspec.chat.text import TextStream
from localspec.chat.tools import spelled_out
from localspec.errors import BadSetting, ContextFull
from localspec.events import Event, Finished, Reply
from localspec.health.stopping import Closing
from localspec.options import ReplyOptions

Asked = str | Sequence[Mapping[str, Any] | Message]
MEASURED_TOKENS = 64  # the newest ones of the context: costs are measured on them
_closing = threading.Lock()
_OTHER = "\u2063"  # the question of another conversation: no question begins so
_LONG = 256  # tokens of instructions
_CUTS = 8  # the latest ones: programs may hold several conversations at a time


_Event = TypeVar("_Event")


def never() -> bool:
    """Whether a reply is cancelled that nobody can cancel."""
    return False


class Session(Closing):
    """One conversation on one loaded pair, from `localspec.load`.

        session.run("Hello")          # a Reply; the next run continues the conversation
        session.stream("And you?")    # the same, event by event
        session.reset()               # forget the conversation

    It gives one reply at a time. `cancel` works from any thread: the stream of that reply ends.
    """

    def __init__(self, pair: LoadedPair, defaults: ReplyOptions | None = None) -> None:
        """`defaults` are options for every reply whose caller does not set them."""
        self._pair = pair
        self._defaults = defaults or ReplyOptions()
        self._messages: Messages = ()
        self._conversation = object()  # another one with every reset() and resume()
        self._reasoning = Reasoning()
        self._cuts: list[Cut] = []  # what prompts left out, the latest first
        self._latest_cancel = object()  # another one with every cancel()
        self._latest_reply: Callable[[], bool] | None = None  # that has begun and not ended: is it cancelled?
        self._steps: Generator[Event] | None = None  # of that reply
        self._working = threading.Lock()  # held while the models work, never while the caller has an event
        self._closed = False
        self._constraints = ConstraintBuilder(pair.vocabulary, pair.template)
        self._writer = ReplyWriter(pair)
        self._open = {self}  # the sessions of the pair

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._messages)} messages"
        return (
            f"<Session on {self.name}: {self.target_name}, drafted by {self.draft_name or 'lookup'}, {state}>"
        )

    def another(self) -> "Session":
        """Another conversation on the same pair, with the same defaults.

        Replies of several sessions run at once on as many lanes as were loaded (`parallel`); others wait for one. A
        stream that is neither read nor closed keeps its lane. The pair is freed with the last of its sessions.
        """
        self._require_open()
        other = Session(self._pair, self._defaults)
        other._constraints, other._writer, other._open = self._constraints, self._writer, self._open
        other._reasoning, other._cuts = self._reasoning, self._cuts
        self._open.add(other)
        return other

    def close(self) -> None:
        """Cancel the running reply, whose stream ends; the last session of a pair frees its models."""
        self.cancel()
        with self._working:
            self._closed = True
            self._end_reply()
            with _closing:
                self._open.discard(self)
                if not self._open:
                    self._pair.close()

    def cancel(self) -> None:
        """Stop all replies requested so far, after their cycle, and keep their text. Safe from any thread."""
        self._latest_cancel = object()

    def reset(self) -> None:
        """Forget the conversation, with a reply in progress."""
        self._messages, self._conversation = (), object()

    def resume(self, messages: Sequence[Mapping[str, Any] | Message]) -> None:
        """Continue a conversation from elsewhere; the next reply reads it."""
        self._require_open()
        self._messages, self._conversation = as_messages(messages), object()

    def calibrate(self, budget_seconds: float = 3.0, stop: Callable[[], bool] | None = None) -> None:
        """Measure the cost of batches here, unless it is known.

        Call it when nobody waits for a reply; `stop` ends it early.
        """
        with self._working, self._pair.lanes.unused() as lane:
            if lane and lane.target.tokens and not self._closed:
                text = list(lane.target.tokens[-MEASURED_TOKENS:])
                lane.drafting.calibrate(text, budget_seconds, stop or never)

    @property
    def pair(self) -> LoadedPair:
        """The loaded pair itself, for measuring it while no reply runs."""
        return self._pair

    @property
    def messages(self) -> Messages:
        """The conversation so far, reasoning left out."""
        return self._messages

    @property
    def name(self) -> str:
        """The pair's name."""
        return self._pair.name

    @property
    def target_name(self) -> str:
        """The target model's name, as its file gives it."""
        return self._pair.target_name

    @property
    def draft_name(self) -> str:
        """The draft model's name; "" when there is none."""
        return self._pair.draft_name

    def text_of(self, token: int) -> str:
        """The text of one token, for display: incomplete characters become U+FFFD."""
        piece = self._pair.vocabulary.piece(token)
        return piece.decode(errors="replace") if piece else self._pair.vocabulary.text(token)

    @property
    def context_length(self) -> int:
        """The largest number of tokens that prompt and reply may have together."""
        return self._pair.target.capacity

    def run(self, prompt_or_messages: Asked, **options: "Unpack[ReplyOptions]") -> Reply:
        """Answer in the conversation: a text continues it, a list of messages replaces it.

        If the last message is the assistant's, the reply continues it and holds only the new text.
        help(localspec.run) lists the options.
        """
        return last_reply(self.stream(prompt_or_messages, **options))

    def stream(
        self,
        prompt_or_messages: Asked,
        *,
        cancelled: Callable[[], bool] | None = None,
        **options: "Unpack[ReplyOptions]",
    ) -> Iterator[Event]:
        """The same as `run`, event by event; the last one is Finished. `cancelled` ends this reply alone."""
        cancelled, request = self._watch(cancelled), self._request(options)
        messages, conversation = self._asked(prompt_or_messages, request, options), self._conversation
        return self._converse(messages, request, cancelled, conversation)

    async def arun(self, prompt_or_messages: Asked, **options: "Unpack[ReplyOptions]") -> Reply:
        """`run` for asyncio: the models work in a thread; a job that is cancelled stops the reply."""
        return last_reply([event async for event in self.astream(prompt_or_messages, **options)])

    def astream(self, prompt_or_messages: Asked, **options: "Unpack[ReplyOptions]") -> AsyncIterator[Event]:
        """`stream` for asyncio; leaving it early stops the reply."""
        return in_a_thread(
            lambda left: self.stream(prompt_or_messages, cancelled=left, **options), ThreadPoolExecutor(1)
        )

    def regenerate(self, **options: "Unpack[ReplyOptions]") -> Reply:
        """Answer the last question again, in place of the last reply. Raises BadSetting without a question."""
        return self.run(self._messages[: self._last_question() + 1], **options)

    def edit(self, text: str, *, message: int | None = None, **options: "Unpack[ReplyOptions]") -> Reply:
        """Change a user message, by index or the last one, and answer from there."""
        index = self._last_question() if message is None else message
        if not 0 <= index < len(self._messages) or self._messages[index].role != "user":
            raise BadSetting(f"message {index} is not a user message", hint="see session.messages")
        return self.run((*self._messages[:index], Message("user", text)), **options)

    def count_tokens(self, prompt_or_messages: Asked, **options: "Unpack[ReplyOptions]") -> int:
        """How many tokens a reply would read: the whole conversation with this prompt, or these messages alone."""
        request = self._request(options)
        messages = self._reasoning.put_back(self._asked(prompt_or_messages, request, options))
        return len(self._encode(messages, request).tokens)

    def _asked(self, prompt_or_messages: Asked, request: Request, options: ReplyOptions) -> Messages:
        """The whole conversation that a reply answers."""
        messages = as_messages(prompt_or_messages)
        if isinstance(prompt_or_messages, str):
            messages = (*(replace(message, reasoning="") for message in self._messages), *messages)
        # A configured system message is a default: it gives way to one that the caller's messages begin with.
        if request.system is not None and (options.get("system") is not None or messages[0].role != "system"):
            messages = with_system(messages, request.system)
        return messages

    def _last_question(self) -> int:
        """The index of the user's last message."""
        for index in reversed(range(len(self._messages))):
            if self._messages[index].role == "user":
                return index
        raise BadSetting("nothing was asked in this conversation yet", hint="ask something first")

    def prompt_of(
        self, messages: Sequence[Mapping[str, Any] | Message], **options: "Unpack[ReplyOptions]"
    ) -> Prompt:
        """The prompt of a reply to these messages; nothing is generated."""
        return self._fitter(self._request(options)).encode(self._reasoning.put_back(as_messages(messages)))

    def complete(self, text: str | Sequence[int], **options: "Unpack[ReplyOptions]") -> Reply:
        """Continue a raw text or tokens: no template, no conversation; control tokens written in it count as such."""
        return last_reply(self.stream_complete(text, **options))

    def stream_complete(
        self,
        text: str | Sequence[int],
        *,
        cancelled: Callable[[], bool] | None = None,
        **options: "Unpack[ReplyOptions]",
    ) -> Iterator[Event]:
        """The same as `complete`, event by event; `cancelled` as in `stream`."""
        cancelled, request = self._watch(cancelled), self._request(options)
        vocabulary = self._pair.vocabulary
        tokens = tokens_of(text, vocabulary)
        text_stream = TextStream(vocabulary, None, request.stop, continues_text=True)
        if request.tools:
            raise BadSetting("tools need a conversation", hint="leave out complete() or --raw")
        constraint = self._constraints.constraint(request, None, len(tokens))
        job = ReplyJob(tokens, (len(tokens),), request, text_stream, cancelled, constraint)
        return self._reply(cancelled, lambda: job)

    def _watch(self, cancelled: Callable[[], bool] | None) -> Callable[[], bool]:
        """Whether this reply is cancelled, or cancel() was called since now."""
        latest = self._latest_cancel
        return lambda: self._latest_cancel is not latest or (cancelled or never)()

    def _request(self, options: Mapping[str, Any]) -> Request:
        self._require_open()
        defaults: dict[str, Any] = {**self._defaults}
        if options.get("seed", "left out") is None:
            defaults.pop("seed", None)
        given = {name: value for name, value in options.items() if value is not None}
        return request_from({**defaults, **given}, self._pair.sampling)

    def _require_open(self) -> None:
        if self._closed:
            raise BadSetting("this session is closed", hint="load the pair again: localspec.load(...)")

    def _converse(
        self, messages: Messages, request: Request, cancelled: Callable[[], bool], conversation: object
    ) -> Iterator[Event]:
        asked = perf_counter()
        for event in self._reply(cancelled, lambda: self._job(messages, request, cancelled, asked)):
            # A conversation that was reset during the reply stays reset.
            if isinstance(event, Finished) and event.reply.tokens and self._conversation is conversation:
                self._messages = with_reply(messages, event.reply)
            if isinstance(event, Finished) and not are_continued(messages):
                self._reasoning.keep(messages, event.reply)
            yield event

    def _job(
        self, messages: Messages, request: Request, cancelled: Callable[[], bool], asked: float
    ) -> ReplyJob:
        whole = self._reasoning.put_back(messages)
        fitted = self._fitter(request).fit(whole, trim=request.overflow == "trim", earlier=self._cuts)
        if fitted.cut:
            others = [cut for cut in self._cuts if cut != fitted.cut]
            self._cuts[:] = [fitted.cut, *others][:_CUTS]
        prompt, template = fitted.prompt, self._pair.template
        style = template.thinking_style(prompt.text)
        constraint = self._constraints.constraint(request, style, len(prompt.tokens))
        # A grammar's text is shown exactly, with a space at its beginning.
        calls = self._constraints.call_form(request)
        text = TextStream(
            self._pair.vocabulary,
            style,
            (*template.stops, *request.stop),
            continues_text=constraint is not None or are_continued(messages),
            calls=calls if request.tool_choice != "none" else None,
            functions=request.functions,
        )
        return ReplyJob(
            prompt.tokens,
            self._partings(fitted, request),
            request,
            text,
            cancelled,
            constraint,
            fitted.dropped_messages,
            asked,
            calls is not None and not calls.native,
            tuple((message.role, message.content) for message in messages if message.role != "assistant"),
        )

    def _partings(self, fitted: Fitted, request: Request) -> Sequence[int]:
        """The positions at which the prompt opens the reply, and at which another conversation would begin."""
        if not self._pair.target.needs_checkpoints:
            return ()

        def shared(messages: Messages) -> int:
            told, arguments = self._told(messages, request)
            closed = self._pair.template.render(
                told, think=request.think, arguments=arguments, add_generation_prompt=False
            )
            return opening_of(fitted.prompt, closed, self._pair.vocabulary)

        whole = fitted.messages
        instructions = whole[:1] if whole[0].role == "system" else ()
        other = shared((*instructions, Message("user", _OTHER))) if instructions or request.tools else 0
        return (*([other] if other >= _LONG else []), shared(whole))

    def _fitter(self, request: Request) -> Fitter:
        return Fitter(
            lambda messages: self._encode(messages, request),
            self._pair.target.capacity,
            request.max_tokens,
            thinks=request.think is not False and self._pair.template.thinking_style("") is not None,
        )

    def _encode(self, messages: Messages, request: Request) -> Prompt:
        told, arguments = self._told(messages, request)
        return encode(
            self._pair.vocabulary, self._pair.template, told, think=request.think, arguments=arguments
        )

    def _told(self, messages: Messages, request: Request) -> tuple[Sequence[Message], dict[str, Any]]:
        """The messages and arguments that the template is given."""
        native = (self._constraints.call_form(request) or self._pair.template.call_form).native
        tools = self._pair.template.tool_variables(request.tools) if native and request.tools else None
        told = messages if native else spelled_out(messages, request.tools)
        return told, {**(tools or {}), **request.template_arguments}

    def _reply(self, cancelled: Callable[[], bool], job_of: Callable[[], ReplyJob]) -> Iterator[Event]:
        with self._working:
            if self._latest_reply and not self._latest_reply():
                raise BadSetting(
                    "this session is busy with another reply", hint="wait for it, or cancel() it first"
                )
            self._latest_reply = cancelled
            self._end_reply()
        try:
            with self._working:
                self._require_open()
                job = job_of()
            count, capacity = len(job.prompt), self._pair.target.capacity
            if count >= capacity:
                raise ContextFull(
                    f"the prompt has {count:,} tokens, but the context holds only {capacity:,}",
                    hint="shorten the prompt, or start again with a larger context: --context N",
                )
            # Closed here: the traceback of an error that was handled on the way can keep this frame alive.
            with closing(self._writer.reply(job)) as steps:
                self._steps = steps
                while self._latest_reply is cancelled and (event := self._step(steps)) is not None:
                    yield event
        finally:
            if self._latest_reply is cancelled:
                self._latest_reply = None

    def _end_reply(self) -> None:
        """Let a reply that was cancelled, and is not read to its end, give back its lane."""
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.close()

    def _step(self, steps: Iterator[Event]) -> Event | None:
        """The next event; None after the last one or after the session closed."""
        with self._working:
            return None if self._closed else next(steps, None)


async def in_a_thread(
    begin: Callable[[Callable[[], bool]], Iterator[_Event]], threads: Executor
) -> AsyncIterator[_Event]:
    """The events of an iterator that runs in one of these threads; its errors are raised here.

    `begin` gets a function that tells whether the reader left. Leaving early waits for the thread, unless it has not
    started.
    """
    import asyncio  # takes 30 ms, which every other start would wait for

    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[_Event | None] = asyncio.Queue()
    left = threading.Event()

    def work() -> None:
        try:
            for event in begin(left.is_set):
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
            done.exception()  # nobody is left to hear of it


def tokens_of(text: str | Sequence[int], vocabulary: Vocabulary) -> list[int]:
    """The tokens of a raw text. Raises BadSetting for an empty one or another type."""
    if isinstance(text, str):
        tokens = vocabulary.tokenize(text, parse_special=True, add_special=True)
        if vocabulary.bos is not None and tokens[:2] == [vocabulary.bos] * 2:
            del tokens[0]  # the text brings its own
    elif not isinstance(text, list | tuple):
        raise BadSetting(f"the text is of type {type(text).__name__}", hint="give a str to continue")
    elif not all(type(token) is int and 0 <= token < vocabulary.size for token in text):
        raise BadSetting("token id out of range", hint=f"use ids from 0 to {vocabulary.size - 1}")
    else:
        tokens = list(text)
    if not tokens:
        raise BadSetting("the text is empty", hint="give at least one character to continue")
    return tokens


def last_reply(events: Iterable[Event]) -> Reply:
    """The reply at the end of a stream. Raises BadSetting if the session was closed before."""
    replies = [event.reply for event in events if isinstance(event, Finished)]
    if replies:
        return replies[-1]
    raise BadSetting(
        "the session was closed while it replied, or got another request",
        hint="wait for its replies before you close it, ask it again, or load another pair",
    )
