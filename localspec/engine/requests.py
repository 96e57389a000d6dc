"""Does in the engine process what requests ask for, with a session of `localspec.api`."""

import logging
import platform
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, assert_never

import localspec
from localspec import api
from localspec.algorithm.protocols import Vocabulary
from localspec.engine.messages import (
    Answer,
    Compared,
    CompareReplies,
    Detokenize,
    Infill,
    LoadPair,
    LoadStage,
    ProposalText,
    Ready,
    Render,
    Rendered,
    Report,
    Request,
    Stopped,
    Text,
    Tokenize,
    Tokens,
)
from localspec.errors import BadSetting, LocalspecError
from localspec.events import Cycle, Event, Finished, FinishReason, Notice, Piece
from localspec.health.check import remember_trial, try_without_extra_buffers
from localspec.health.servers import addresses_of, answering_servers

if TYPE_CHECKING:
    from localspec.measure.compare import Comparison

Send = Callable[[Report], None]
Cancelled = Callable[[], bool]
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
        raise NoInfill(f"{target} cannot fill in text: it has no infill tokens", hint="use a code model")
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


Asked = Render | Tokenize | Detokenize


def answer(session: api.Session, request: Answer, send: Send, cancelled: Cancelled) -> None:
    """Generate the reply; a client that draws cycles also gets the text of proposals."""
    options, limit = dict(request.options), LineLimit(request.line_end_after_seconds)

    def over() -> bool:
        return limit.reached or cancelled()

    if request.messages:
        events = session.stream(list(request.messages), cancelled=over, **options)
    else:
        events = session.stream_complete(continued(session, request), cancelled=over, **options)
    finished = None
    for event in map(limit.seen, events):
        if isinstance(event, Finished):
            finished = event  # told once its lane is free: the next reply may continue its text
        elif request.cycles or not isinstance(event, Cycle):
            send(event)
        if request.cycles and isinstance(event, Cycle) and event.proposal:
            send(ProposalText(tuple(map(session.text_of, event.proposal))))
    if finished is not None:
        send(finished)


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


def continued(session: api.Session, request: Answer) -> str | list[int]:
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


def told(session: api.Session, request: Asked) -> Rendered | Tokens | Text:
    """Answers that need no generation."""
    vocabulary = session.pair.vocabulary
    match request:
        case Render():
            prompt = session.prompt_of(request.messages, **request.options)
            return Rendered(prompt.text, tuple(prompt.tokens))
        case Tokenize():
            tokens = vocabulary.tokenize(
                request.text, parse_special=request.parse_special, add_special=request.add_special
            )
            return Tokens(tuple(tokens), tuple(map(session.text_of, tokens)))
        case Detokenize():
            if not all(0 <= token < vocabulary.size for token in request.tokens):
                raise BadSetting("token id out of range", hint=f"use ids from 0 to {vocabulary.size - 1}")
            pieces = (vocabulary.piece(token) or vocabulary.text(token).encode() for token in request.tokens)
            return Text(b"".join(pieces).decode(errors="replace"))
    assert_never(request)


def ready(session: api.Session, seconds: float) -> Ready:
    """The report about a loaded pair."""
    pair = session.pair
    vocabulary, model = pair.vocabulary, getattr(pair.target, "model", None)
    return Ready(
        pair=session.name,
        target=session.target_name,
        draft=session.draft_name,
        context_length=session.context_length,
        seconds=seconds,
        parallel=len(pair.lanes.all),
        machine=machine(),
        template=pair.template.source,
        bos="" if vocabulary.bos is None else vocabulary.text(vocabulary.bos),
        eos="" if vocabulary.eos is None else vocabulary.text(vocabulary.eos),
        vocabulary_size=vocabulary.size,
        metadata={k: v for k, v in (model.metadata if model else {}).items() if len(v) <= 500},
        reasons=pair.template.thinking_style("") is not None,
    )


MANY_CORES = 4  # from here on one core is left to the terminal; with fewer, the models need them all


class Warnings(logging.Handler):
    """Warnings of the program and its libraries, for notices: nobody sees this process's stderr."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._texts: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self._texts[record.getMessage()] = None

    def told_before_the_end(self, send: Send) -> Send:
        def sent(report: Report) -> None:
            if isinstance(report, Finished):
                for text in list(self._texts):
                    send(Notice(text))
                self._texts.clear()
            send(report)

        return sent


class PairRequests:
    """Holds one loaded pair. One thread calls everything but `perform` of requests that run beside others."""

    def __init__(self) -> None:
        self._session: api.Session | None = None
        self._warnings = Warnings()
        logging.getLogger().addHandler(self._warnings)
        self._asking = threading.Lock()  # held while a question is answered beside what runs

    def perform(self, request: Request, send: Send, cancelled: Cancelled) -> None:
        """Carry out a request, sending reports; return soon after `cancelled` turns true."""
        match request:
            case LoadPair():
                self._load(request, send)
            case Answer():
                with self._loaded().another() as session:
                    answer(session, request, self._warnings.told_before_the_end(send), cancelled)
                remember_trial()
            case Render() | Tokenize() | Detokenize():
                with self._asking:
                    found = told(self._loaded(), request)
                send(found)
            case CompareReplies():
                self._compare(request, send, cancelled)

    def runs_beside(self, request: Request) -> bool:
        """Questions to the loaded pair, whose vocabulary is only read, and replies where it has lanes for several."""
        if self._session is None:
            return False
        several = isinstance(request, Answer) and len(self._session.pair.lanes.all) > 1
        return several or isinstance(request, Render | Tokenize | Detokenize)

    def rest(self, awaited: Callable[[], bool]) -> None:
        """Measure what batches cost, once for a pair, while its first reply is being read."""
        if self._session is not None:
            self._session.calibrate(stop=awaited)

    def unsaved(self) -> bool:
        """Whether closing the pair stores caches."""
        return self._session is not None and self._session.pair.lanes.unsaved()

    def close(self) -> None:
        with self._asking:
            if self._session is not None:
                self._session.close()

    def _load(self, request: LoadPair, send: Send) -> None:
        began = time.monotonic()
        if request.died_of:
            try_without_extra_buffers(request.died_of)
        options = dict(request.options)
        if not request.rpc_required:
            options = without_lost_servers(options, send)
        self._session = session = api.load(
            request.pair,
            target=request.target,
            draft=request.draft,
            speculate=request.speculate,
            spare_cores=request.spare_cores if api.default_threads() >= MANY_CORES else 0,
            owner=request.owner,
            on_stage=lambda stage: send(LoadStage(stage)),
            **options,
        )
        send(ready(session, time.monotonic() - began))

    def _compare(self, request: CompareReplies, send: Send, cancelled: Cancelled) -> None:
        # Here, because every start of the process would wait for it.
        from localspec.measure.compare import SideEvent, compare_events

        session = self._loaded()
        options = {name: value for name, value in request.options.items() if name != "speculate"}
        for event in compare_events(session, request.messages, cancelled=cancelled, **options):
            if isinstance(event, SideEvent):
                send(event.event)
            elif not event.cancelled:
                report_comparison(session, event, send)
        if cancelled():
            send(Stopped())

    def _loaded(self) -> api.Session:
        if self._session is None:
            raise BadSetting("no pair is loaded", hint="choose one with Ctrl+O")
        return self._session


def machine() -> str:
    """The devices, the system and the program."""
    devices = ", ".join(device.description for device in api.devices())
    return f"{devices}; {platform.system()} {platform.machine()}; localspec {localspec.__version__}"


def without_lost_servers(options: dict[str, Any], send: Send) -> dict[str, Any]:
    """The options with the servers that answer; devices are numbered by them, so their names no longer count."""
    rpc = options.get("rpc") or ""
    there = answering_servers(rpc) if rpc else []
    lost = [address for address in addresses_of(rpc) if address not in there] if rpc else []
    if not lost:
        return options
    send(Notice(f"No RPC server answers at {', '.join(lost)}: the models are placed without it."))
    return options | {"rpc": ",".join(there), "device": "", "split": "", "draft_device": ""}


def report_comparison(session: api.Session, found: "Comparison", send: Send) -> None:
    """Say how a comparison ended, and keep its speed-up for the picker."""
    from localspec.measure.compare import verdicts
    from localspec.measure.race import is_fair
    from localspec.models.picker import remember_speedup

    fair = found.speedup and is_fair(found.measured_ratio, found.speculative.stats)
    if fair and not (found.toy or found.crowded):
        remember_speedup(session.name, found.speedup)
    verdict = "\n".join(verdicts(found, session.text_of))
    send(Compared(found.speculative.reply, found.plain.reply, verdict))
