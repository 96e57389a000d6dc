"""Requests of programs, which the endpoint passes on: replies to messages or texts, prompts, tokens."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, assert_never

from localspec.algorithm.protocols import Vocabulary
from localspec.chat.session import Session
from localspec.engine.messages import (
    Answer,
    Describe,
    Description,
    Detokenize,
    Infill,
    ProposalText,
    Render,
    Rendered,
    Report,
    Text,
    Tokenize,
    Tokens,
)
from localspec.errors import BadSetting, LocalspecError
from localspec.events import Cycle, Event, Finished, FinishReason, Piece

_MARKS: Final = (  # before a beginning, an end and a middle, in the vocabularies of several families
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
)
_FILES: Final = ("<|file_sep|>", "<file_sep>")  # before the name of a file


class NoInfill(LocalspecError):
    """The model was not trained to write text in the middle."""


def prompt_of(infill: Infill, vocabulary: Vocabulary, target: str, room: int) -> list[int]:
    """The tokens, `room` of them at most. Raises NoInfill."""
    known = vocabulary.control_texts()
    names = next((names for names in _MARKS if all(name in known for name in names)), None)
    if names is None:
        raise NoInfill(f"{target} has no tokens for text in the middle", hint="ask a model of code")
    files = file_tokens(infill.files, vocabulary, known)
    before = vocabulary.tokenize(infill.before, parse_special=False)
    after = vocabulary.tokenize(infill.after, parse_special=False)
    begun = vocabulary.tokenize(infill.begun, parse_special=False)
    bos = [vocabulary.bos] if vocabulary.add_bos and vocabulary.bos is not None else []
    room -= len(bos) + len(names) + len(begun)
    of_files, of_before, of_after = shares(len(files), len(before), len(after), room)
    prefix, suffix, middle = (known[name] for name in names)
    return [
        *bos,
        *files[len(files) - of_files :],
        prefix,
        *before[len(before) - of_before :],
        suffix,
        *after[:of_after],
        middle,
        *begun,
    ]


def file_tokens(
    files: tuple[tuple[str, str], ...], vocabulary: Vocabulary, known: Mapping[str, int]
) -> list[int]:
    """Other files, each after its name, and after the model's own mark where it has one."""
    mark = [known[name] for name in _FILES if name in known][:1]
    found: list[int] = []
    for name, text in files:
        found += mark + vocabulary.tokenize(f"{name}\n{text}\n", parse_special=False)
    return found


def shares(files: int, before: int, after: int, room: int) -> tuple[int, int, int]:
    """Tokens to keep of files, beginning and end: first around the hole, three parts before it to one after it."""
    room = max(room, 0)
    few_after = min(after, max(room // 4, room - before))
    few_before = min(before, room - few_after)
    return min(files, room - few_before - few_after), few_before, few_after


Asked = Render | Tokenize | Detokenize | Describe


def answer(
    session: Session, request: Answer, send: Callable[[Report], None], cancelled: Callable[[], bool]
) -> None:
    """Generate the reply; a client that draws cycles also gets the text of proposals."""
    options, limit = dict(request.options), LineLimit(request.line_end_after_seconds)

    def over() -> bool:
        return limit.reached or cancelled()

    if request.messages:
        events = session.stream(list(request.messages), cancelled=over, **options)
    else:
        events = session.stream_complete(continued(session, request), cancelled=over, **options)
    for event in map(limit.seen, events):
        if request.cycles or not isinstance(event, Cycle):
            send(event)
        if request.cycles and isinstance(event, Cycle) and event.proposal:
            send(ProposalText(tuple(map(session.text_of, event.proposal))))


class LineLimit:
    """Ends a reply at a line end after a time limit; this counts as a limit, not a cancel."""

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.reached = False
        self._seconds = seconds
        self._clock = clock
        self._began: float | None = None  # with the first text

    def seen(self, event: Event) -> Event:
        """The event in the form for the reader."""
        if isinstance(event, Piece) and self._seconds is not None:
            self._began = self._clock() if self._began is None else self._began
            late = self._clock() - self._began > self._seconds
            self.reached = self.reached or (late and "\n" in event.text)
        if self.reached and isinstance(event, Finished):
            reason = event.reply.finish_reason
            cut = FinishReason.LENGTH if reason is FinishReason.CANCELLED else reason
            return Finished(replace(event.reply, finish_reason=cut))
        return event


def continued(session: Session, request: Answer) -> str | list[int]:
    """The text that the reply continues, if it is not a conversation. Raises NoInfill."""
    vocabulary = session.pair.vocabulary
    if request.infill is not None:
        reply = min(request.options.get("max_tokens") or session.context_length, session.context_length // 4)
        room = session.context_length - reply - 1
        return prompt_of(request.infill, vocabulary, session.target_name, room)
    if request.parts is None:
        return request.text or ""
    tokens: list[int] = []
    for number, part in enumerate(request.parts):
        if isinstance(part, str):
            tokens += vocabulary.tokenize(part, parse_special=True, add_special=not number)
        else:
            tokens.append(part)
    return tokens


def told(session: Session, request: Asked) -> Rendered | Tokens | Text | Description:
    """Answers that need no generation."""
    vocabulary = session.pair.vocabulary
    match request:
        case Render():
            prompt = session.prompt_of(request.messages, **request.options)
            return Rendered(request.serial, prompt.text, tuple(prompt.tokens))
        case Tokenize():
            tokens = vocabulary.tokenize(
                request.text, parse_special=request.parse_special, add_special=request.add_special
            )
            return Tokens(request.serial, tuple(tokens), tuple(map(session.text_of, tokens)))
        case Detokenize():
            if not all(0 <= token < vocabulary.size for token in request.tokens):
                raise BadSetting("token id out of range", hint=f"use ids from 0 to {vocabulary.size - 1}")
            pieces = (vocabulary.piece(token) or vocabulary.text(token).encode() for token in request.tokens)
            return Text(request.serial, b"".join(pieces).decode(errors="replace"))
        case Describe():
            return description(session)
    assert_never(request)


def description(session: Session) -> Description:
    engine = session.pair
    vocabulary, template = engine.vocabulary, engine.template
    model: Any = getattr(engine.target, "model", None)
    return Description(
        template=template.source,
        bos="" if vocabulary.bos is None else vocabulary.text(vocabulary.bos),
        eos="" if vocabulary.eos is None else vocabulary.text(vocabulary.eos),
        vocabulary_size=vocabulary.size,
        metadata={k: v for k, v in (model.metadata if model else {}).items() if len(v) <= 500},
        reasons=template.thinking_style("") is not None,
    )
