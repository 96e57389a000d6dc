"""Find the pair for the model name in a request, and hold the replies to the request."""

import asyncio
import difflib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from localspec.engine.messages import Generate, LoadPair, Options, Report
from localspec.errors import LocalspecError
from localspec.events import Finished, Kind, Notice, Piece, Prefill, Reply, Scored, Scores, ToolCall
from localspec.models.local_models import ModelFile
from localspec.models.own_draft import with_own_draft
from localspec.models.registry import all_pairs, known, named
from localspec.serve import numbers
from localspec.serve.jobs import Job, Jobs, came
from localspec.serve.options import Fields, Problem

FIRST_SECONDS, EACH_SECONDS = 3.0, 5.0  # a prefill is logged after FIRST_SECONDS, then every EACH_SECONDS
TARGET, LATEST = ":target", ":latest"


@dataclass(frozen=True, slots=True)
class Chosen:
    name: str  # the model name in answers
    load: LoadPair
    speculate: bool = True  # whether to draft


@dataclass(frozen=True, slots=True)
class Names:
    """The user's names for the first pair, which the server loads at its start."""

    called: str = ""  # the pair's name on the command line
    aliases: tuple[str, ...] = ()
    beside: tuple["ModelBeside", ...] = ()
    any_model: bool = False  # whether unknown names mean the first pair, too


@dataclass(frozen=True, slots=True)
class ModelBeside:
    """A model beside the pair that makes vectors (capability "embedding") or scores ("rerank")."""

    name: str
    file: ModelFile
    pooling: str
    capability: str

    @property
    def key(self) -> tuple[ModelFile, str]:
        return self.file, self.pooling


class Pairs:
    """The pairs that a request can name: the first pair and the pairs on disk."""

    def __init__(self, jobs: Jobs, given: Names = Names()) -> None:
        self._jobs, self._given = jobs, given
        self._others = {name.casefold() for name in (self._given.called, *self._given.aliases)}
        self.first, self.beside = jobs.first.pair.name, self._given.beside
        self._shown = min(self._given.aliases, default=self.first)  # the first pair's name in answers

    def names(self) -> list[str]:
        others = [pair.name for pair in all_pairs() if pair.on_disk and pair.name != self.first]
        small = (each.name for each in self.beside)
        return list(dict.fromkeys(name for name in [self._shown, *others, *small] if name))

    def small(self, model: str) -> ModelBeside | None:
        """Return the model of this name that runs beside the pair; None if there is none."""
        return next((each for each in self.beside if each.name.casefold() == split_text(model)[0]), None)

    def choose_small(self, fields: Fields, capability: str = "embedding") -> ModelBeside:
        """Return the model beside the pair for a request. Raises Problem if the request names another model."""
        model = fields.take("model", str, "")
        chosen = next((each for each in self.beside if each.capability == capability), None)
        if chosen is None:
            option = "--rerank" if capability == "rerank" else "--embed"
            what = f"there is no model for this: start the server with {option} MODEL"
            raise Problem(501, "not_supported", what)
        if model and self.small(model) != chosen and not self._given.any_model:
            what = f"{model[:80]!r} is not the server's model for {capability}; use {chosen.name!r}"
            raise Problem(404, "model_not_found", what)
        return replace(chosen, name=model or chosen.name)

    def pair_of(self, model: str) -> str | None:
        """Return the name of the pair that a model name means; None if the pair is not on this machine."""
        asked, _ = split_text(model)
        if asked in ("", self.first.casefold()) or asked in self._others:
            return self.first
        if pair := known(asked):
            return pair.name if pair.name == self.first or pair.on_disk else None
        here = {self.first, *(pair.name for pair in all_pairs() if pair.on_disk)}
        begun = [name for name in here if name.casefold().startswith(tuple(asked + mark for mark in "-._+"))]
        return begun[0] if len(begun) == 1 else None  # the only name that begins with this text

    def about(self, model: str) -> dict[str, list[str]]:
        if small := self.small(model):
            return {"aliases": [], "capabilities": [small.capability]}
        pair = self.pair_of(model) or ""
        found, given = known(pair), self._given.aliases if pair == self.first else ()
        return {"aliases": sorted(given or (found.aliases if found else ()))}

    def files(self, model: str) -> dict[ModelFile, os.stat_result]:
        """Return a model's files with sizes and times, the target first; {} for a model that is not on this machine."""
        with suppress(Problem, LocalspecError, OSError):  # another program may have removed a file
            small = self.small(model)
            files = (small.file,) if small else self.choose(model).load.pair.files
            return {file: path.stat() for file in files if (path := file.path)}
        return {}

    def choose(self, model: str) -> Chosen:
        """Return the pair that a model name means; "" is the first pair. Raises Problem, LocalspecError."""
        pair, (_, alone) = self.pair_of(model), split_text(model)
        if pair is None and not self._given.any_model:
            close = difflib.get_close_matches(model, self.names(), n=1) or self.names()[:1]
            hint = f"; use {close[0]!r}" if close else ""
            raise Problem(404, "model_not_found", f"there is no model {model[:80]!r} here{hint}")
        first = self._jobs.first
        load = first if pair in (None, self.first) else replace(first, pair=with_own_draft(named(pair)))
        return Chosen(model or self._shown, load, speculate=pair is None or not alone)


def split_text(model: str) -> tuple[str, bool]:
    """Return the pair's part of a model name, in lower case, and whether the name means only its target."""
    name = model.casefold().removesuffix(LATEST)
    return name.removesuffix(TARGET), name.endswith(TARGET)


def changed_at(files: Mapping[ModelFile, os.stat_result]) -> datetime:
    """Return the time when the newest of a model's files was written; 1970 without files."""
    return datetime.fromtimestamp(max((stat.st_mtime for stat in files.values()), default=0.0), UTC)


@dataclass(frozen=True, slots=True)
class ReplyRequest:
    chosen: Chosen
    prompts: tuple[Generate, ...]  # the queue sets their field `serial`
    stream: bool
    replies: int = 1  # number of replies to each prompt
    notices: tuple[str, ...] = ()  # notices about ignored fields and tools
    progress: bool = False  # whether a stream reports the progress of prefill
    timed: bool = False  # whether chunks contain timings
    with_usage: bool = False  # whether a stream ends with a chunk of token counts, OpenAI's `usage`

    @property
    def options(self) -> Options:
        return self.prompts[0].options

    @property
    def count(self) -> int:
        return len(self.prompts) * self.replies


@dataclass(slots=True)
class Block:
    """A part of a reply: reasoning, answer, or a tool call with its arguments as JSON."""

    kind: Kind
    call: ToolCall
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def begins(blocks: Sequence[Block], piece: Piece) -> bool:
    return piece.call is not None or not blocks or blocks[-1].kind is not piece.kind


def fold(blocks: list[Block], piece: Piece) -> None:
    """Add a piece to the last block of its reply, or as a new block."""
    if begins(blocks, piece):
        blocks.append(Block(piece.kind, piece.call or ToolCall("", {}, "")))
    blocks[-1].pieces.append(piece.text)


@dataclass(slots=True)
class ServedReply:
    """A reply for a client, from its place in the queue to its end."""

    job: Job
    notices: list[str]
    blocks: list[Block] = field(default_factory=list)
    scores: list[Scored] = field(default_factory=list)  # empty if not requested
    prefill: Prefill | None = None  # the progress of the prefill, until the first text
    logged_seconds: float = 0.0  # time of the prefill at its last line in the log
    finished: Reply | None = None

    @property
    def reply(self) -> Reply:
        assert self.finished is not None
        return self.finished

    @property
    def waited_seconds(self) -> float:
        """The seconds that the reply waited in the queue or for other replies."""
        return self.job.queued_seconds + self.reply.stats.waited_seconds

    @property
    def timings(self) -> dict[str, Any]:
        return numbers.timings(self.reply, self.notices)

    @property
    def cut(self) -> bool:
        return bool(self.blocks) and self.blocks[-1].call.id in {call.id for call in self.reply.cut_calls}

    def text(self, kind: Kind) -> str:
        return "".join(block.text for block in self.blocks if block.kind is kind)


class Replies:
    """The replies to one request, of which at most one runs in each slot of the pair."""

    def __init__(self, jobs: Jobs, asked: ReplyRequest) -> None:
        self._jobs, self.asked = jobs, asked
        self.replies: list[ServedReply] = []  # a reply's number is its index
        self._awake = asyncio.Event()
        self._submit()

    @property
    def done(self) -> list[ServedReply]:
        return [served for served in self.replies if served.finished]

    @property
    def complete(self) -> bool:
        return len(self.done) == self.asked.count

    async def next(self, timeout_seconds: float | None = None) -> tuple[int, Report] | None:
        """Return a report with the number of its reply; None after the timeout. Raises Problem."""
        while not (reported := [n for n, served in enumerate(self.replies) if served.job.reports]):
            if not await came(self._awake, timeout_seconds):
                return None
        number, served = reported[0], self.replies[reported[0]]
        report = served.job.take()
        match report:
            case Notice(text=text):
                served.notices.append(text)
            case Scores(tokens=tokens):
                served.scores.extend(tokens)
            case Prefill():
                self._log(served, report)
            case Piece():
                served.prefill = None
                fold(served.blocks, report)
            case Finished():
                served.finished = report.reply
        self._submit()
        return number, report

    async def all(self) -> list[ServedReply]:
        while not self.complete:
            await self.next()
        return self.done

    def give_up(self) -> None:
        for served in self._open:
            if served.prefill and served.logged_seconds:
                self._jobs.notify(f"{self._prompt(served.prefill)} were read when the client left")
            served.job.give_up()

    @property
    def _open(self) -> list[ServedReply]:
        return [served for served in self.replies if not served.finished]

    def _log(self, served: ServedReply, now: Prefill) -> None:
        """Write the progress of a long prefill to the log, at most every 5 seconds."""
        served.prefill, last = now, served.logged_seconds
        if now.seconds >= (last + EACH_SECONDS if last else FIRST_SECONDS):
            served.logged_seconds = now.seconds
            self._jobs.notify(f"{self._prompt(now)} are read after {now.seconds:.0f} s")

    def _prompt(self, now: Prefill) -> str:
        share = now.done / max(now.total, 1)
        return f"{self.asked.chosen.name}: {now.done:,} of {now.total:,} tokens of a prompt ({share:.0%})"

    def _submit(self) -> None:
        """Queue at most one reply for each slot. A prompt's first reply begins before its other replies are queued."""
        asked = self.asked
        while len(self.replies) < asked.count and len(self._open) < self._jobs.parallel:
            prompt, nth = divmod(len(self.replies), asked.replies)
            if nth and not (first := self.replies[-nth]).finished and not first.blocks:
                break
            request = asked.prompts[prompt]
            if "seed" in request.options:
                seed = (request.options["seed"] + nth) % 2**64
                request = replace(request, options={**request.options, "seed": seed})
            job = self._jobs.submit(asked.chosen.load, request, self._awake)
            self.replies.append(ServedReply(job, [*asked.notices]))
