"""Perform requests in the engine process, with a session of `localspec.api`."""

import logging
import math
import platform
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import localspec
from localspec import api
from localspec.algorithm.protocols import Vocabulary
from localspec.embedding.model import EmbeddingModel, Turns
from localspec.engine import messages
from localspec.engine.limits import LOOPED, Limit, LineLimit, LoopLimit
from localspec.engine.messages import Generate, LoadPair, Question, Ready, Rendered, Report
from localspec.errors import BadSetting
from localspec.events import Cycle, Finished, FinishReason, Notice
from localspec.machine.devices import on_battery
from localspec.machine.servers import addresses_of, answering_servers

if TYPE_CHECKING:
    from localspec.llama.context import SlotDecoder
    from localspec.measure.compare import Comparison

Send = Callable[[Report], None]
Cancelled = Callable[[], bool]
Warned = Callable[[], Sequence[Notice]]


def reply(
    session: api.Session, request: Generate, send: Send, cancelled: Cancelled, warnings: Warned = tuple
) -> None:
    """Generate a reply and send its events. `warnings`: returns the notices to send before Finished."""
    options, limit = request.options, limit_of(request, session)
    if request.ignore_eos:
        banned = dict.fromkeys(end_tokens(session.pair.vocabulary), -math.inf)
        options = {**options, "logit_bias": {**(options.get("logit_bias") or {}), **banned}}
    begin = partial(session.stream, request.messages) if request.messages else None
    begin = begin or partial(session.stream_complete, request.continued)
    finished = None
    for event in map(limit.seen, begin(cancelled=lambda: limit.reached or cancelled(), **options)):
        if isinstance(event, Finished):
            finished = event  # sent once the slot is free, because the next request may continue this reply
        elif request.cycles or not isinstance(event, Cycle):
            send(event)
        if request.cycles and isinstance(event, Cycle) and event.proposal:
            send(messages.ProposalText(tuple(map(session.text_of, event.proposal))))
    if finished is not None:
        for notice in warnings():
            send(notice)
        if finished.reply.finish_reason is FinishReason.REPETITION:
            send(Notice(LOOPED))
        send(finished)


def limit_of(request: Generate, session: api.Session) -> Limit:
    if request.stops_loops:
        return LoopLimit(lambda tokens: "".join(map(session.text_of, tokens)))
    seconds = request.line_end_after_seconds
    return Limit() if seconds is None else LineLimit(seconds)


def end_tokens(vocabulary: Vocabulary) -> tuple[int, ...]:
    return tuple(sorted({t for t in vocabulary.special_tokens().values() if vocabulary.is_end(t)}))


def answer(session: api.Session, question: Question) -> Rendered:
    vocabulary = session.pair.vocabulary
    if asked := question.asked:
        with session.another(asked.owner) as own:
            prompt = own.prompt_of(asked.messages, **asked.options)
        return Rendered(prompt.text, tuple(map(int, prompt.tokens)))
    if question.tokens is not None:
        if not all(isinstance(part, str) or part in range(vocabulary.size) for part in question.tokens):
            raise BadSetting("a token id is out of range", hint=f"use ids from 0 to {vocabulary.size - 1}")
        joined = b"".join(bytes_of(part, vocabulary) for part in question.tokens)
        return Rendered(joined.decode(errors="replace"))
    special = {"parse_special": question.parse_special, "add_special": question.add_special}
    tokens = vocabulary.tokenize(question.text, **special)
    pieces = list[str | tuple[int, ...]]()
    for piece in (bytes_of(token, vocabulary) for token in (tokens if question.with_pieces else ())):
        try:
            pieces.append(piece.decode())
        except UnicodeDecodeError:  # the token has only a part of a character
            pieces.append(tuple(piece))
    return Rendered("", tuple(tokens), tuple(pieces))


def bytes_of(part: int | str, vocabulary: Vocabulary) -> bytes:
    """Return the bytes of a text or a token. A token without bytes has the bytes of its name."""
    if isinstance(part, str):
        return part.encode(errors="replace")
    return vocabulary.piece(part) or vocabulary.text(part).encode()


def ready(session: api.Session, seconds: float) -> Ready:
    pair = session.pair
    vocabulary, model = pair.vocabulary, getattr(pair.target, "model", None)
    devices = ", ".join(device.description for device in api.devices())
    system = f"{platform.system()} {platform.machine()}"
    return Ready(
        session.name,
        session.target_name,
        session.draft_name,
        session.context_length,
        seconds,
        parallel=len(pair.slots.all),
        machine=f"{devices}; {system}; localspec {localspec.__version__}",
        path=str(model.path) if model else "",
        template=pair.template.source,
        bos="" if vocabulary.bos is None else vocabulary.text(vocabulary.bos),
        eos="" if vocabulary.eos is None else vocabulary.text(vocabulary.eos),
        vocabulary_size=vocabulary.size,
        end_tokens=end_tokens(vocabulary),
        metadata={k: v for k, v in (model.metadata if model else {}).items() if len(v) <= 500},
        reasons=pair.template.thinking_style("") is not None,
        reads_images=pair.read_image is not None,
        fills_gaps=model is not None and None not in model.vocab.infill_tokens[:3],
        settings=session.settings,
    )


MANY_CORES = 4  # with at least this many cores, one stays free for the client, even if it shows no screen


class Warnings(logging.Handler):
    """A collector of logged warnings. They become notices, because nobody sees the stderr of this process."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._texts: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self._texts[record.getMessage()] = None

    def take(self) -> list[Notice]:
        texts, self._texts = self._texts, {}
        return [*map(Notice, texts)]


class PairRequests:
    """The loaded pair with the requests to it. Several threads may perform requests at once."""

    def __init__(self) -> None:
        self._session: api.Session | None = None
        self._warnings = Warnings()
        logging.getLogger().addHandler(self._warnings)
        self._typed = messages.Typed()  # the latest Typed; an empty Typed once its text is prefilled or sent
        self._asking = threading.Lock()  # locked while a Question is answered, so that only one runs
        self._turns = Turns()
        self._beside: dict[object, EmbeddingModel] = {}  # small models, by file and pooling
        self._opening = threading.Lock()  # locked while a small model is loaded
        self._threads: int | None = None
        self._replied = False

    def perform(self, request: messages.Request, send: Send, cancelled: Cancelled) -> None:
        """Carry out a request and send its reports; return soon after `cancelled()` turns true."""
        match request:
            case LoadPair():
                self._load(request, send)
            case messages.Typed():
                self._typed = request
            case Generate(compares=True):
                self._compare(request, send, cancelled)
            case Generate():
                self._typed = messages.Typed()
                another = self._loaded().another(request.owner, request.conversation)
                with self._turns.reply(), another as session:
                    reply(session, request, send, cancelled, self._warnings.take)
                self._replied = True
            case Question():
                with self._asking:
                    answered = answer(self._loaded(), request)
                send(answered)
            case messages.Embed():
                send(self._embedded(request, cancelled))

    def runs_beside(self, request: messages.Request) -> bool:
        """Return whether a request may run during others: a Question, an Embed, or with several slots a Generate."""
        if self._session is None:
            return False
        if isinstance(request, Generate):
            return len(self._session.pair.slots.all) > 1 and not request.compares
        return isinstance(request, Question | messages.Embed)

    def rest(self, awaited: Callable[[], bool]) -> None:
        """Prefill what the user is typing, and measure for later replies, until `awaited()` is true."""
        if self._session is None:
            return
        typed, self._typed = self._typed, messages.Typed()
        if not on_battery():
            with self._session.another(stored_as=typed.conversation) as session:
                session.read_ahead(awaited, typed.messages, **typed.options)
        self._session.calibrate(stop=awaited)
        if self._replied and not on_battery():
            with self._session.pair.slots.unused() as slot:
                if slot:
                    self._session.pair.when_idle(awaited)

    def unsaved(self) -> bool:
        return self._session is not None and self._session.pair.slots.unsaved()

    def close(self) -> None:
        with self._asking:
            self._beside.clear()
            if self._session is not None:
                self._session.close()

    def _load(self, request: LoadPair, send: Send) -> None:
        began = time.monotonic()
        options = dict(request.options)
        if not request.rpc_required:
            options = without_lost_servers(options, send)
        self._threads, cores = options.get("threads"), api.default_threads()
        # If a decoding thread shared its core with the client, all other threads would wait for it in every pass.
        leaves = cores >= MANY_CORES or (request.draws and api.usable_cores() <= cores)
        self._session = session = api.load(
            request.pair,
            speculate=request.speculate,
            spare_cores=request.spare_cores if leaves else 0,
            owner=request.owner,
            on_stage=lambda stage: send(messages.LoadStage(stage)),
            **options,
        )
        send(ready(session, time.monotonic() - began))

    def _embedded(self, request: messages.Embed, cancelled: Cancelled) -> messages.Embedded:
        key, target = (request.file, request.pooling), cast("SlotDecoder", self._loaded().pair.target)
        if not request.texts:
            self._beside.pop(key, None)  # a running request keeps its model until it ends
            return messages.Embedded(b"", 1, ())
        with self._opening:
            self._turns.held = target.calling  # a pass of this model and one of the target take turns
            if (model := self._beside.get(key)) is None:
                model = EmbeddingModel(*key, self._threads, target.model.gpu, self._turns)
                self._beside[key] = model
        more = {name: getattr(request, name) for name in ("norm", "dimensions", "truncate", "first")}
        rows, tokens = model.read(request.texts, request.query, **more, cancelled=cancelled)
        return messages.Embedded(rows.astype("<f4", copy=False).tobytes(), rows.shape[1], tokens)

    def _compare(self, request: Generate, send: Send, cancelled: Cancelled) -> None:
        # Import late, so that the process starts fast.
        from localspec.measure.compare import SideEvent, compare_events

        options = {name: value for name, value in request.options.items() if name != "speculate"}
        with self._loaded().another(stored_as=request.conversation) as session:
            for event in compare_events(session, request.messages, cancelled=cancelled, **options):
                if isinstance(event, SideEvent):
                    send(event.event)
                elif event.has_verdict:
                    report_comparison(session, event, send)
                    return
        send(messages.ComparisonStopped())

    def _loaded(self) -> api.Session:
        if self._session is None:
            raise BadSetting("no pair is loaded", hint="choose one with Ctrl+O")
        return self._session


def without_lost_servers(options: dict[str, Any], send: Send) -> dict[str, Any]:
    """Remove lost RPC servers from the options; remove `devices` too, because the numbers of devices may change."""
    rpc = options.get("rpc") or ""
    there = answering_servers(rpc) if rpc else []
    lost = [address for address in addresses_of(rpc) if address not in there] if rpc else []
    if not lost:
        return options
    send(Notice(f"No RPC server answers at {', '.join(lost)}, so the models are loaded without it."))
    return options | {"rpc": ",".join(there), "device": "", "split": "", "draft_device": ""}


def report_comparison(session: api.Session, found: "Comparison", send: Send) -> None:
    from localspec.loading.pair_info import remember_speedup
    from localspec.measure.compare import verdicts
    from localspec.measure.race import is_fair

    fair = found.speedup and is_fair(found.measured_ratio, found.speculative.stats)
    if fair and not (found.is_demo or found.contended or found.cancelled):
        remember_speedup(session.name, found.speedup)  # `localspec pairs` shows this speed-up
    verdict = "\n".join(verdicts(found, session.text_of))
    send(messages.Compared(found.speculative, found.plain, verdict))
