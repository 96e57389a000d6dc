"""One reply: prefill, cycles, text and statistics."""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from localspec.algorithm.loop import speculate
from localspec.algorithm.noise import fresh_seed
from localspec.algorithm.protocols import Decoder, Rule, Strategy, Vocabulary
from localspec.algorithm.verification import make_rule
from localspec.chat.loaded_pair import TOY_OFF, Lane, LoadedPair
from localspec.chat.options import Request, seed_fixes_depth
from localspec.chat.scoring import Scoring, WatchedRule
from localspec.chat.tally import Tally
from localspec.chat.text import TextStream
from localspec.control.timing import PlainClock
from localspec.errors import LocalspecError
from localspec.events import (
    Cycle,
    Event,
    Finished,
    FinishReason,
    Kind,
    Notice,
    Origin,
    Piece,
    Prefill,
    Reply,
    Scored,
    Scores,
    Source,
    Started,
)
from localspec.sampler.passes import Pass, standing
from localspec.structure.constraint import Constrained
from localspec.structure.forcing import Forcing
from localspec.structure.read_calls import TextPart

DEPTH_FIXED = (
    "with a seed the depth is fixed, so that the text repeats; --rule coupled keeps the depth automatic"
)

GENERIC_CALLS = (
    "the model's template cannot tell of these tools: a system message describes them, and the model may not be "
    "trained for the form of calls that it asks for"
)

WORTH_A_WORD = 16  # cycles without drafting: it may be tried again and found good before


class ReplyBuilder:
    """Collects one reply; `absorb` passes events on, `result` is the whole."""

    def __init__(self, job: "ReplyJob", tally: Tally, vocabulary: Vocabulary) -> None:
        self.tokens: list[int] = []
        self.ended = False  # by an end-of-generation token, a stop string or a grammar
        self._job = job
        self._tally = tally
        self._vocabulary = vocabulary
        self._parts: dict[Kind, list[str]] = {kind: [] for kind in Kind}
        self._kind = Kind.ANSWER  # of the newest text
        self._reasoning_tokens = 0

    def absorb(self, cycle: Cycle, scores: Sequence[Scored] = ()) -> Iterator[Event]:
        """The cycle, cut where a stop string ended the reply, and the text that it completed.

        `scores` of its tokens are passed on for those of the answer.
        """
        began = perf_counter()
        pieces: list[Piece] = []
        of_answer: list[Scored] = []
        used = 0
        for token, origin in zip(cycle.tokens, cycle.origins, strict=True):
            used += 1
            if self._vocabulary.is_end(token):
                self.ended = True
                break
            pieces += self._pieces(self._job.text.push(token), origin, cycle.source)
            self._reasoning_tokens += self._kind is Kind.REASONING
            if self._kind is Kind.ANSWER:
                of_answer += scores[used - 1 : used]
            if self._job.text.stopped_by:
                self.ended = True
                break
        cycle = replace(
            cycle,
            tokens=cycle.tokens[:used],
            origins=cycle.origins[:used],
            accepted=cycle.origins[:used].count(Origin.ACCEPTED),
            other_seconds=cycle.other_seconds + perf_counter() - began,
        )
        if not self.tokens:
            self._tally.first_token_seconds = perf_counter() - self._job.asked
        self.tokens += cycle.tokens
        self._tally.add(cycle)
        yield cycle
        if of_answer:
            yield Scores(tuple(of_answer))
        yield from pieces

    def finish(self) -> Iterator[Piece]:
        """The text that was held back for a possible stop string."""
        # Cut just before the end that a grammar left as the only choice: nothing is missing.
        constraint = self._job.constraint
        self.ended = self.ended or (constraint is not None and constraint.finished)
        yield from self._pieces(self._job.text.flush(), Origin.PLAIN, Source.PLAIN)

    def result(self, seed: int, *, cancelled: bool) -> Reply:
        # A reply that ended by itself in the very cycle in which it was cancelled is a finished reply.
        reason = FinishReason.LENGTH
        if self.ended:
            reason = FinishReason.STOP
        elif cancelled:
            reason = FinishReason.CANCELLED
        calls, rest = self._job.text.calls()
        return Reply(
            text="".join([*self._parts[Kind.ANSWER], rest]),
            reasoning="".join(self._parts[Kind.REASONING]),
            tokens=tuple(self.tokens),
            seed=seed,
            finish_reason=reason,
            stats=self._tally.stats(),
            tool_calls=calls,
            reasoning_tokens=self._reasoning_tokens,
            stopped_by=self._job.text.stopped_by,
        )

    def _pieces(self, parts: Sequence[TextPart], origin: Origin, source: Source) -> list[Piece]:
        for part in parts:
            self._kind = part.kind
            self._parts[part.kind].append(part.text)
        return [Piece(part.text, part.kind, origin, source, part.call) for part in parts]


def rewind(target: Decoder, strategy: Strategy, prompt: Sequence[int], *, save: bool) -> tuple[int, float]:
    """Keep the common prefix of cache and prompt, without the prompt's last token; returns its length.

    It is less where the cache cannot step back so far. `save`, and the seconds: as for `Decoder.recall`.
    """
    seconds = target.recall(prompt, save=save)
    keep = target.rewind(standing(target.tokens, 0, prompt[:-1]))
    strategy.observe(Pass(0, prompt[:keep]), keep)
    return keep, seconds


def read(
    target: Decoder,
    strategy: Strategy,
    prompt: Sequence[int],
    partings: Sequence[int],
    cancelled: Callable[[], bool],
) -> Iterator[Prefill]:
    """Read the rest of the prompt but its last token, until `cancelled`.

    Checkpoints are taken at `partings`, the positions where a later prompt may differ, if they are needed.
    """
    total, done, seconds = len(prompt) - 1 - target.length, 0, 0.0
    passes = _passes(target, prompt, partings, cancelled)
    while not cancelled():
        began = perf_counter()
        batch = next(passes, None)
        if batch is None:
            break
        strategy.observe(batch, len(batch.tokens))
        done += len(batch.tokens)
        seconds += perf_counter() - began
        yield Prefill(done, total, seconds)


def _passes(
    target: Decoder, prompt: Sequence[int], partings: Sequence[int], cancelled: Callable[[], bool]
) -> Iterator[Pass]:
    for parting in sorted(min(parting, len(prompt) - 1) for parting in partings):
        if target.needs_checkpoints and target.length < parting and not cancelled():
            yield from target.prefill(prompt[target.length : parting], cancelled)
            target.checkpoint(lasting=True)
    yield from target.prefill(prompt[target.length : -1], cancelled)


@dataclass(frozen=True, slots=True)
class ReplyJob:
    """A reply that is wanted."""

    prompt: Sequence[int]
    partings: Sequence[int]  # positions at which a later prompt may differ
    request: Request
    text: TextStream
    cancelled: Callable[[], bool]
    constraint: Constrained | None = None
    trimmed_messages: int = 0  # left out of the prompt
    asked: float = field(default_factory=perf_counter)  # when the reply was wanted, on that clock
    generic_calls: bool = False  # the prompt asks for tool calls in a form that is not the model's own
    questions: tuple[Any, ...] | None = None  # all messages but the assistant's; None for a raw text


def unmatched(job: ReplyJob) -> str:
    """Why an answer does not follow its grammar."""
    if job.constraint is None or job.constraint.complete:
        return ""
    return f"the reply was cut, so it does not fulfil {job.constraint.name}"


class DraftingNotices:
    """Notices about drafting in one reply, each sent once."""

    def __init__(self) -> None:
        self._cycles_off = 0  # in a row
        self._said_off = self._said_failure = False

    def after_cycle(self, why_off: str | None, failure: LocalspecError | None) -> Iterator[Notice]:
        self._cycles_off = self._cycles_off + 1 if why_off else 0
        if why_off and self._cycles_off >= WORTH_A_WORD and not self._said_off:
            self._said_off = True
            yield Notice(why_off)
        if failure and not self._said_failure:
            self._said_failure = True
            yield Notice(f"the draft model failed, and the reply continues without it: {failure}")


class ReplyWriter:
    """Writes the replies of a pair, several at once where it has lanes for them, and sends each notice once."""

    def __init__(self, pair: LoadedPair) -> None:
        self._pair = pair
        self._notices = pair.notices
        self._told: set[str] = set()  # notices that are sent once
        # Whether the cache holds a raw text, and which.
        self._latest: dict[Lane, tuple[bool, Sequence[Any]]] = {}

    def reply(self, job: ReplyJob) -> Generator[Event]:
        """The events of a reply, from Started to Finished; it waits for a lane."""
        began = perf_counter()
        with self._pair.lanes.claimed(job.prompt, job.cancelled) as lane:
            if lane is not None:
                yield from self._written(lane, job, perf_counter() - began)
            else:
                empty = ReplyBuilder(job, Tally(len(job.prompt), 0), self._pair.vocabulary)
                yield Finished(empty.result(job.request.seed or 0, cancelled=True))

    def _written(self, lane: Lane, job: ReplyJob, waited_seconds: float) -> Iterator[Event]:
        pair, request, prompt = self._pair, job.request, job.prompt
        seed = fresh_seed() if request.seed is None else request.seed
        rule = make_rule(request.rule, request.sampling, seed, job.constraint)
        scoring = None if request.logprobs is None else Scoring(pair.vocabulary, request.logprobs)
        if scoring:
            rule = WatchedRule(rule, scoring.see)
        strategy = self._strategy(lane, rule, job)
        reused, restore_seconds = rewind(lane.target, strategy, prompt, save=not self._continues(lane, job))
        yield Started(
            target=pair.target_name,
            draft=pair.draft_name,
            prompt_tokens=len(prompt),
            reused_tokens=reused,
            trimmed_messages=job.trimmed_messages,
            seed=seed,
            rule=rule.name,
            context_length=pair.target.capacity,
        )
        yield from self._take_notices(job, rule)
        plain = PlainClock(lambda: strategy.plain_step)
        tally = Tally(
            prompt_tokens=len(prompt),
            reused_tokens=reused,
            restored_tokens=reused if restore_seconds else 0,
            restore_seconds=restore_seconds,
            waited_seconds=waited_seconds,
            plain=plain,
        )
        for event in read(lane.target, strategy, prompt, job.partings, job.cancelled):
            tally.prefill_seconds = event.seconds
            yield event
        busy = strategy.busy_seconds
        for _ in strategy.catch_up(prompt):
            tally.draft_seconds = tally.draft_reading_seconds = strategy.busy_seconds - busy
            if job.cancelled():
                break
        reply = ReplyBuilder(job, tally, pair.vocabulary)
        try:
            lane.target.cut_rows(None if scoring or job.constraint else request.sampling.logits_needed)
            yield from self._generate(lane, job, rule, strategy, reply, scoring)
        finally:
            lane.target.cut_rows(None)
            strategy.end()
        lane.drafting.store()
        result = reply.result(seed, cancelled=job.cancelled())
        if pair.is_toy:  # its speed-up says nothing
            stats = replace(result.stats, plain_seconds=0.0, plain_error_seconds=0.0)
            result = replace(result, stats=stats)
        if why := unmatched(job):
            yield Notice(why)
        yield Finished(replace(result, unmatched=why))

    def _continues(self, lane: Lane, job: ReplyJob) -> bool:
        """Whether the cache holds the same conversation, so that its rest is not worth saving.

        The reasoning of past replies leaves the history, and a repeated reply replaces one.
        """
        raw = job.questions is None
        asked = job.prompt if job.questions is None else job.questions
        was_raw, before = self._latest.get(lane, (True, ()))
        self._latest[lane] = (raw, asked)
        return raw is was_raw and list(asked[: len(before)]) == list(before)

    def _strategy(self, lane: Lane, rule: Rule, job: ReplyJob) -> Strategy:
        """The drafting strategy of this reply; forced tokens of a grammar go first."""
        predicted = self._pair.vocabulary.tokenize(job.request.prediction, parse_special=False)
        strategy = lane.drafting.strategy(rule, job.request, predicted)
        if job.constraint is None:
            return strategy
        forces = job.request.speculate and job.request.depth != 0
        return Forcing(strategy, job.constraint, self._pair.widest_batch if forces else 0)

    def _generate(
        self,
        lane: Lane,
        job: ReplyJob,
        rule: Rule,
        strategy: Strategy,
        reply: ReplyBuilder,
        scoring: Scoring | None,
    ) -> Iterator[Event]:
        """The cycles and their text, and a notice if the context is full."""
        pair, constraint = self._pair, job.constraint
        room = pair.target.capacity - len(job.prompt)
        text = list(job.prompt)
        if not job.cancelled():
            cycles = speculate(
                lane.target,
                strategy,
                text,
                rule=rule,
                room=room if job.request.max_tokens is None else min(job.request.max_tokens, room),
                is_end=pair.vocabulary.is_end,
            )
            notices = DraftingNotices()
            for cycle in cycles:
                yield from reply.absorb(cycle, scoring.scores if scoring else ())
                why_off = strategy.why_off and (TOY_OFF if pair.is_toy else strategy.why_off)
                yield from notices.after_cycle(why_off, strategy.failure)
                if reply.ended or job.cancelled():
                    break
        if constraint:
            constraint.settle(text)
        yield from reply.finish()
        if not reply.ended and not job.cancelled() and len(reply.tokens) == room:
            yield Notice(
                f"the reply was cut: the context of {pair.target.capacity:,} tokens is full; "
                "load the pair with a larger one (--context)"
            )

    def _once(self, text: str) -> Iterator[Notice]:
        if text not in self._told:
            self._told.add(text)
            yield Notice(text)

    def _take_notices(self, job: ReplyJob, rule: Rule) -> Iterator[Notice]:
        """Notices of the pair and its seed, once, and of messages left out of this prompt."""
        notices, self._notices = self._notices, ()
        yield from map(Notice, notices)
        drafts = self._pair.rollback_limit != 0
        if drafts and seed_fixes_depth(job.request, rule):
            yield from self._once(DEPTH_FIXED)
        if job.generic_calls:
            yield from self._once(GENERIC_CALLS)
        if job.constraint and job.constraint.ignored:
            yield Notice(job.constraint.ignored)
        if job.trimmed_messages:
            yield Notice(
                f"the oldest {job.trimmed_messages} messages no longer fit into the context and were left out"
            )
