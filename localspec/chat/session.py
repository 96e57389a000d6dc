"""A conversation with a loaded pair: messages in, events out, both caches reused from turn to turn."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol, Unpack

from localspec.chat.calls import spelled_out
from localspec.chat.fitting import Fitter
from localspec.chat.messages import Message, as_history, as_messages
from localspec.chat.options import ReplyOptions, Request, request_from, seed_fixes_depth
from localspec.chat.prompt import Prompt, encode
from localspec.chat.shaping import Shaping
from localspec.chat.template import ChatTemplate, tool_variables
from localspec.chat.text import TextStream
from localspec.chat.vocabulary import Vocabulary
from localspec.chat.writing import Writing
from localspec.errors import BadSetting, ContextFull
from localspec.events import (
    Event,
    Finished,
    Notice,
    Prefill,
    Reply,
    Started,
)
from localspec.speculation.loop import speculate
from localspec.speculation.protocols import Decoder, Rule, Strategy
from localspec.speculation.randomness import fresh_seed
from localspec.speculation.sampling import Sampling
from localspec.speculation.verification import make_rule
from localspec.stats import Tally
from localspec.structure.constraint import Constrained
from localspec.structure.forcing import Forcing
from localspec.timing import PlainClock

REPLY_RESERVE = (
    256  # tokens that trimming leaves free for a reply of unknown length, a quarter of the context at most
)
DEPTH_FIXED = (
    "a reply with a seed drafts at a fixed depth, as measured time must not decide what the seed reproduces; "
    "the rule coupled keeps the depth automatic"
)


class Drafting(Protocol):
    """Makes the strategy of each reply, and keeps what drafting learns between replies."""

    def strategy(self, rule: Rule, request: Request) -> Strategy:
        """Who drafts for this reply, and how much."""

    def store(self, reply: Sequence[int]) -> None:
        """Keep what was learned for the next run, and the reply if the user wants it remembered."""

    def calibrate(self, token: int, budget_seconds: float, stop: Callable[[], bool]) -> None:
        """Measure what batches cost, unless that is known already or `stop` turns true."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A loaded pair, ready to run; `close` frees it."""

    name: str
    target_name: str
    draft_name: str  # "" when there is no draft model
    target: Decoder
    draft: Decoder | None
    can_roll_back: bool
    vocabulary: Vocabulary
    template: ChatTemplate
    sampling: Sampling  # the model's own defaults
    notices: tuple[str, ...]  # what the user should know about this pair, said with the first reply
    drafting: Drafting
    close: Callable[[], None]
    widest_batch: int = 33  # tokens that the target verifies at once


class Session:
    """One conversation on one loaded pair; one run at a time, `cancel` from any thread."""

    def __init__(self, engine: Engine, defaults: ReplyOptions | None = None) -> None:
        """`defaults` are options that every reply takes where its caller says nothing."""
        self._engine = engine
        self._defaults = defaults or ReplyOptions()
        self._messages: tuple[Message, ...] = ()
        self._cancelled = threading.Event()
        self._replying = threading.Lock()  # held from the first event of a reply to its last
        self._working = threading.Lock()  # held while the models work, never while the caller has an event
        self._closed = False
        self._notices = engine.notices
        self._told_of_depth = False
        self._dropped_turns = 0  # that no longer fit
        self._shaping = Shaping(engine.vocabulary, engine.template)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what runs, then free both models. A reply that is still being read just ends."""
        self.cancel()
        with self._working:
            self._closed = True
            self._engine.close()

    def cancel(self) -> None:
        """Stop the running reply after its cycle; what was generated is kept. Safe from any thread."""
        self._cancelled.set()

    def reset(self) -> None:
        """Forget the conversation."""
        self._messages = ()
        self._dropped_turns = 0

    def calibrate(self, budget_seconds: float = 3.0, stop: Callable[[], bool] = lambda: False) -> None:
        """Measure what batches cost here, if that is not known; for a moment when nobody waits for a reply.

        It is given up, to be done another time, once `stop` says that somebody does.
        """
        with self._working:
            tokens = self._engine.target.tokens
            if tokens and not self._closed:
                self._engine.drafting.calibrate(tokens[-1], budget_seconds, stop)

    @property
    def engine(self) -> Engine:
        """The loaded pair itself, for measuring it while no reply runs."""
        return self._engine

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation so far, reasoning left out."""
        return self._messages

    @property
    def name(self) -> str:
        """The pair's name."""
        return self._engine.name

    @property
    def target_name(self) -> str:
        """The target model's name, as its file gives it."""
        return self._engine.target_name

    @property
    def draft_name(self) -> str:
        """The draft model's name; "" when there is none."""
        return self._engine.draft_name

    def text_of(self, token: int) -> str:
        """What a single token stands for, for showing it: incomplete characters become U+FFFD."""
        piece = self._engine.vocabulary.piece(token)
        return piece.decode(errors="replace") if piece else self._engine.vocabulary.text(token)

    @property
    def context_length(self) -> int:
        """Tokens that prompt and reply may have together."""
        return self._engine.target.capacity

    def run(
        self, prompt_or_messages: str | Sequence[Mapping[str, Any] | Message], **options: Unpack[ReplyOptions]
    ) -> Reply:
        """Answer in the conversation: a text continues it, a list of messages replaces it."""
        return last_reply(self.stream(prompt_or_messages, **options))

    def stream(
        self, prompt_or_messages: str | Sequence[Mapping[str, Any] | Message], **options: Unpack[ReplyOptions]
    ) -> Iterator[Event]:
        """The same as `run`, event by event; the last one is Finished."""
        request = self._request(options)
        given = as_messages(prompt_or_messages)
        messages = (*self._messages, *given) if isinstance(prompt_or_messages, str) else given
        if request.system is not None:
            messages = with_system(messages, request.system)
        return self._converse(messages, request)

    def complete(self, text: str, **options: Unpack[ReplyOptions]) -> Reply:
        """Continue a raw text: no template, no conversation; control tokens written in it count as such."""
        return last_reply(self.stream_complete(text, **options))

    def stream_complete(self, text: str, **options: Unpack[ReplyOptions]) -> Iterator[Event]:
        """The same as `complete`, event by event."""
        request = self._request(options)
        if not isinstance(text, str):
            raise BadSetting(f"the text is of type {type(text).__name__}", hint="give a str to continue")
        tokens = self._engine.vocabulary.tokenize(text, parse_special=True, add_special=True)
        if not tokens:
            raise BadSetting("the text is empty", hint="give at least one character to continue")
        text_stream = TextStream(self._engine.vocabulary, None, request.stop, continues_text=True)
        if request.tools:
            raise BadSetting("tools need a conversation", hint="leave out complete() or --raw")
        constraint = self._shaping.constraint(request, None, len(tokens))
        return self._generate(tokens, request, text_stream, constraint)

    def _request(self, options: Mapping[str, Any]) -> Request:
        self._require_open()
        defaults: dict[str, Any] = {**self._defaults}
        if options.get("seed", "left out") is None:
            defaults.pop("seed", None)
        given = {name: value for name, value in options.items() if value is not None}
        return request_from({**defaults, **given}, self._engine.sampling)

    def _require_open(self) -> None:
        if self._closed:
            raise BadSetting("this session is closed", hint="load the pair again: localspec.load(...)")

    def _converse(self, messages: tuple[Message, ...], request: Request) -> Iterator[Event]:
        with self._working:
            self._require_open()
            fitted = self._fitter(request).fit(
                messages, trim=request.overflow == "trim", dropped_before=self._dropped_turns
            )
        self._dropped_turns, prompt = fitted.dropped_turns, fitted.prompt
        template = self._engine.template
        stops = (*template.stops, *request.stop)
        style = template.thinking_style(prompt.text)
        constraint = self._shaping.constraint(request, style, len(prompt.tokens))
        # What a grammar asks for is shown as it is, a space at its beginning included.
        calls = self._shaping.call_format(request)
        text = TextStream(
            self._engine.vocabulary, style, stops, continues_text=constraint is not None, calls=calls
        )
        for event in self._generate(prompt.tokens, request, text, constraint, fitted.dropped_messages):
            if isinstance(event, Finished) and event.reply.tokens:
                self._messages = (*messages, as_history(event.reply.text, event.reply.tool_calls))
            yield event

    def _fitter(self, request: Request) -> Fitter:
        engine = self._engine
        calls = self._shaping.call_format(request)
        native = (calls or engine.template.call_format).native
        tools = tool_variables(request.tools) if native and request.tools else {}

        def rendered(messages: tuple[Message, ...]) -> Prompt:
            return encode(
                engine.vocabulary,
                engine.template,
                messages if native else spelled_out(messages, request.tools),
                think=request.think,
                arguments={**tools, **request.template_arguments},
            )

        return Fitter(rendered, engine.target.capacity, request.max_tokens)

    def _generate(
        self,
        prompt: Sequence[int],
        request: Request,
        text: TextStream,
        constraint: Constrained | None,
        trimmed: int = 0,
    ) -> Iterator[Event]:
        if len(prompt) >= self._engine.target.capacity:
            raise ContextFull(
                f"the prompt has {len(prompt)} tokens, the context {self._engine.target.capacity}",
                hint="shorten the prompt, or load the pair with a larger context (--context)",
            )
        if not self._replying.acquire(blocking=False):
            raise BadSetting(
                "this session is busy with another reply", hint="wait for it, or cancel() it first"
            )
        try:
            self._cancelled.clear()
            steps = self._reply(prompt, request, text, constraint, trimmed)
            while (event := self._step(steps)) is not None:
                yield event
        finally:
            self._replying.release()

    def _step(self, steps: Iterator[Event]) -> Event | None:
        """The next event; None after the last one, or when the session was closed meanwhile."""
        with self._working:
            return None if self._closed else next(steps, None)

    def _reply(
        self,
        prompt: Sequence[int],
        request: Request,
        text: TextStream,
        constraint: Constrained | None,
        trimmed: int,
    ) -> Iterator[Event]:
        engine = self._engine
        seed = fresh_seed() if request.seed is None else request.seed
        rule = make_rule(request.rule, request.sampling, seed, constraint)
        strategy = engine.drafting.strategy(rule, request)
        if constraint:
            forces = request.speculate and request.depth != 0
            strategy = Forcing(strategy, constraint, engine.widest_batch if forces else 0)
        reused = rewind(engine.target, prompt, engine.can_roll_back)
        if engine.draft:
            rewind(engine.draft, prompt, can_roll_back=True)
        yield Started(
            target=engine.target_name,
            draft=engine.draft_name,
            prompt_tokens=len(prompt),
            reused_tokens=reused,
            trimmed_messages=trimmed,
            seed=seed,
            rule=rule.name,
            context_length=engine.target.capacity,
        )
        yield from self._take_notices(trimmed, request, rule)
        plain = PlainClock(strategy.plain_step_seconds)
        tally = Tally(prompt_tokens=len(prompt), reused_tokens=reused, plain=plain)
        drafts = request.speculate and request.depth != 0 and strategy.why_off is None
        yield from self._prefill(prompt, tally, drafts=drafts)
        reply = Writing(text, tally, engine.vocabulary, constraint, self._shaping.call_format(request))
        room = engine.target.capacity - len(prompt)
        if not self._cancelled.is_set():
            cycles = speculate(
                engine.target,
                strategy,
                list(prompt),
                rule=rule,
                room=min(request.max_tokens or room, room),
                is_end=engine.vocabulary.is_end,
            )
            was_off: str | None = None
            for cycle in cycles:
                yield from reply.absorb(cycle)
                why_off = strategy.why_off
                if why_off and not was_off:
                    yield Notice(why_off)
                was_off = why_off
                if reply.ended or self._cancelled.is_set():
                    break
        yield from reply.finish()
        if not reply.ended and not self._cancelled.is_set() and len(reply.tokens) == room:
            yield Notice(f"the context of {engine.target.capacity} tokens is full")
        if constraint and not constraint.complete:
            yield Notice(f"the reply was cut: it is only the beginning of what {constraint.name} accepts")
        engine.drafting.store(reply.tokens)
        yield Finished(reply.result(seed, cancelled=self._cancelled.is_set()))

    def _take_notices(self, trimmed: int, request: Request, rule: Rule) -> Iterator[Notice]:
        """What the pair and its seed have to say, once; and what was left out of this prompt."""
        notices, self._notices = self._notices, ()
        yield from map(Notice, notices)
        drafts = self._engine.can_roll_back or self._engine.draft is not None
        if drafts and seed_fixes_depth(request, rule) and not self._told_of_depth:
            self._told_of_depth = True
            yield Notice(DEPTH_FIXED)
        if trimmed:
            yield Notice(f"the oldest {trimmed} messages no longer fit into the context and were left out")

    def _prefill(self, prompt: Sequence[int], tally: Tally, *, drafts: bool) -> Iterator[Prefill]:
        """Read the prompt into both caches, all but its last token; ends early when cancelled."""
        began = perf_counter()
        readers = [self._engine.target]
        if drafts and self._engine.draft and len(prompt) < self._engine.draft.capacity:
            readers.append(self._engine.draft)
        total = sum(len(prompt) - 1 - reader.length for reader in readers)
        done = 0
        for reader in readers:
            start, begun = done, reader.length
            for count in reader.prefill(prompt[begun:-1]):
                done = start + count
                tally.prefill_seconds = perf_counter() - began
                yield Prefill(done, total, tally.prefill_seconds)
                if self._cancelled.is_set():
                    return


def rewind(decoder: Decoder, prompt: Sequence[int], can_roll_back: bool) -> int:
    """Keep what cache and prompt have in common, the prompt's last token excepted; how much that is."""
    common = 0
    for cached, wanted in zip(decoder.tokens, prompt[:-1], strict=False):
        if cached != wanted:
            break
        common += 1
    keep = common if can_roll_back or common == decoder.length else 0
    decoder.rollback(keep)
    return keep


def with_system(messages: tuple[Message, ...], system: str) -> tuple[Message, ...]:
    """The conversation with this system message, in place of the one it had."""
    rest = messages[1:] if messages and messages[0].role == "system" else messages
    return (Message("system", system), *rest) if system else rest


def last_reply(events: Iterator[Event]) -> Reply:
    """The reply that a run ends with."""
    for event in events:
        if isinstance(event, Finished):
            return event.reply
    raise AssertionError("a run ends with Finished")
