"""The replies to one HTTP request: one job for each, in order, with what clients want to know of them afterwards."""

from dataclasses import dataclass
from typing import Any

from localspec.engine.messages import Answer, Infill, Report
from localspec.events import Finished, Notice, Reply, Scored, Scores
from localspec.serve.jobs import Job, Jobs
from localspec.serve.pairs import Chosen
from localspec.serve.wishes import Wishes


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is to be answered or continued: one of these."""

    messages: tuple[dict[str, Any], ...] = ()
    text: str | None = None
    parts: tuple[int | str, ...] | None = None  # tokens, and texts between them
    infill: Infill | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for text, whatever interface it came by."""

    chosen: Chosen
    prompts: tuple[Prompt, ...]
    wishes: Wishes
    stream: bool
    background: bool = False
    unknown: tuple[str, ...] = ()  # fields that nobody knows: they have no effect, and answers say so
    line_end_after_seconds: float | None = None  # of writing: from then on the next line end is the reply's

    @property
    def notices(self) -> tuple[str, ...]:
        return tuple(f"the field {name} is not known and has no effect" for name in self.unknown)

    @property
    def headers(self) -> dict[str, str]:
        return {"x-localspec-unknown": ", ".join(self.unknown)} if self.unknown else {}

    @property
    def count(self) -> int:
        return len(self.prompts) * self.wishes.replies


@dataclass(frozen=True, slots=True)
class Done:
    """A finished reply, and what was said beside it."""

    reply: Reply
    notices: tuple[str, ...]
    scores: tuple[Scored, ...] = ()  # of the answer's tokens, where they were asked for


class Replies:
    """Reports of the current reply; the next one begins when it has finished."""

    def __init__(self, jobs: Jobs, asked: Asked) -> None:
        """Queues the first. Raises RequestFailed."""
        self._jobs = jobs
        self._asked = asked
        self.done: list[Done] = []
        self._notices, self._scores = list[str](), list[Scored]()  # of the current reply
        self._job: Job = self._submit(0)

    @property
    def complete(self) -> bool:
        return len(self.done) == self._asked.count

    @property
    def position(self) -> int:
        """How many requests are answered before the current reply."""
        return self._job.position

    async def next(self, timeout_seconds: float | None = None) -> tuple[int, Report] | None:
        """A report with the number of its reply; None after the timeout. Raises RequestFailed."""
        index = len(self.done)
        report = await self._job.next(timeout_seconds)
        match report:
            case None:
                return None
            case Notice(text=text):
                self._notices.append(text)
            case Scores(tokens=tokens):
                self._scores += tokens
            case Finished(reply=reply):
                notices = (*self._asked.notices, *self._notices)
                self.done.append(Done(reply, notices, tuple(self._scores)))
                self._notices, self._scores = [], []
                if not self.complete:
                    self._job = self._submit(len(self.done))
        return index, report

    def give_up(self) -> None:
        """Nobody reads them any more."""
        self._job.give_up()

    def _submit(self, index: int) -> Job:
        wishes, chosen = self._asked.wishes, self._asked.chosen
        prompt = self._asked.prompts[index // wishes.replies]
        options = dict(wishes.options)
        if not chosen.speculate:
            options["speculate"] = False
        if "seed" in options:
            options["seed"] = (options["seed"] + index % wishes.replies) % 2**64
        if prompt.messages and prompt.messages[0]["role"] != "system":
            options["system"] = ""  # a program's conversation is all that the model sees

        def make(serial: int) -> Answer:
            return Answer(
                serial,
                prompt.messages,
                prompt.text,
                prompt.parts,
                prompt.infill,
                options,
                self._asked.line_end_after_seconds,
            )

        return self._jobs.submit(chosen.load, make, background=self._asked.background)
