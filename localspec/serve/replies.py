"""The replies to one request: their queueing, notices and scores."""

import asyncio
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from localspec.engine.messages import Answer, Report
from localspec.events import Finished, Notice, Piece, Reply, Scored, Scores
from localspec.serve import numbers
from localspec.serve.jobs import Job, Jobs, came
from localspec.serve.pairs import Chosen

BACKGROUND_TOKENS: Final = 64  # a reply so short, without tools, is a title or a tag


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for text from any interface."""

    chosen: Chosen
    prompts: tuple[Answer, ...]  # without serials and options
    options: dict[str, Any]  # of ReplyOptions
    stream: bool
    replies: int = 1  # to each prompt
    unknown: tuple[str, ...] = ()  # fields without effect, which answers name
    notices: tuple[str, ...] = ()  # of other things that were left out
    line_end_after_seconds: float | None = None  # of writing: from then on the next line end ends the reply

    @property
    def count(self) -> int:
        return len(self.prompts) * self.replies

    @property
    def background(self) -> bool:
        """Whether nobody waits for the reply: the request says so, or it is for a title or a tag.

        An editor waits for a continued text.
        """
        short = self.options.get("max_tokens", BACKGROUND_TOKENS + 1) <= BACKGROUND_TOKENS
        small = short and "tools" not in self.options and any(prompt.messages for prompt in self.prompts)
        return small or self.options.get("background", False)


@dataclass(frozen=True)
class Done:
    """A finished reply, with the notices and the scores of its tokens."""

    reply: Reply
    notices: tuple[str, ...]
    scores: tuple[Scored, ...] = ()  # if the request asked for them
    waited_seconds: float = 0.0  # in the queue, and for other replies

    @cached_property
    def timings(self) -> dict[str, Any]:
        return numbers.timings(self.reply, self.notices)


@dataclass(frozen=True, slots=True)
class Open:
    """A reply that waits or is being written, with its notices and scores so far."""

    job: Job
    notices: list[str]
    scores: list[Scored]


class Replies:
    """The replies to one request, a job for each: as many at once as the pair has lanes."""

    def __init__(self, jobs: Jobs, asked: Asked) -> None:
        """Queues the first ones. Raises Problem."""
        self._jobs = jobs
        self.asked = asked
        self.finished: dict[int, Done] = {}  # by number
        self._open: dict[int, Open] = {}
        self._read: set[int] = set()  # numbers of replies whose prompts were read
        self._awake = asyncio.Event()
        self._submit()

    @property
    def done(self) -> list[Done]:
        """The finished replies, in order."""
        return [self.finished[number] for number in sorted(self.finished)]

    @property
    def complete(self) -> bool:
        return len(self.finished) == self.asked.count

    async def next(self, timeout_seconds: float | None = None) -> tuple[int, Report] | None:
        """A report with the number of its reply; None after the timeout. Raises Problem."""
        while not (reported := [n for n, found in self._open.items() if found.job.reported]):
            if not await came(self._awake, timeout_seconds):
                return None
        number, found = reported[0], self._open[reported[0]]
        report = found.job.take()
        match report:
            case Notice(text=text):
                found.notices.append(text)
            case Scores(tokens=tokens):
                found.scores.extend(tokens)
            case Piece():
                self._read.add(number)
            case Finished(reply=reply):
                self._read.add(number)
                waited = found.job.queued_seconds + reply.stats.waited_seconds
                self.finished[number] = Done(reply, tuple(found.notices), tuple(found.scores), waited)
                del self._open[number]
        self._submit()
        return number, report

    async def all(self) -> list[Done]:
        """Every reply, once it has finished. Raises Problem."""
        while not self.complete:
            await self.next()
        return self.done

    def give_up(self) -> None:
        """The client has left."""
        for found in self._open.values():
            found.job.give_up()

    def _submit(self) -> None:
        """Queue replies, as many at once as there are lanes; the first to each prompt reads it for the others."""
        while len(self._open) < min(self._jobs.parallel, self.asked.count - len(self.finished)):
            number = len(self._open) + len(self.finished)
            if number % self.asked.replies and number - number % self.asked.replies not in self._read:
                break
            unknown = (f"the field {name} is not known and has no effect" for name in self.asked.unknown)
            self._open[number] = Open(self._job(number), [*unknown, *self.asked.notices], [])

    def _job(self, number: int) -> Job:
        asked = self.asked
        prompt, options = asked.prompts[number // asked.replies], dict(asked.options)
        if not asked.chosen.speculate:
            options["speculate"] = False
        if asked.background:
            options["background"] = True
        if "seed" in options:
            options["seed"] = (options["seed"] + number % asked.replies) % 2**64
        if prompt.messages and prompt.messages[0]["role"] != "system":
            options["system"] = ""  # the model sees a program's conversation and nothing else
        wanted = replace(prompt, options=options, line_end_after_seconds=asked.line_end_after_seconds)
        return self._jobs.submit(
            asked.chosen.load,
            lambda serial: replace(wanted, serial=serial),
            background=asked.background,
            awake=self._awake,
        )
