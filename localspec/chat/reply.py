"""One reply: prefill, cycles, text and statistics."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from time import perf_counter
from typing import Any

from localspec.algorithm.ahead import ahead
from localspec.algorithm.images import ImageChunk, TextDecoder, observed, stretches, without_images
from localspec.algorithm.loop import speculate
from localspec.algorithm.noise import fresh_seed
from localspec.algorithm.protocols import Decoder, Rule, Strategy
from localspec.algorithm.verification import ScoringRule, make_rule
from localspec.chat.constraints import Ending, PromptBuilder, ReplyForm
from localspec.chat.loaded_pair import DEMO_OFF, LoadedPair, Slot, best_slot
from localspec.chat.request import Request
from localspec.chat.text import repeated_block
from localspec.control.timing import Tally
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
    Stats,
    ToolCall,
)
from localspec.prompt.template import NO_TEMPLATE
from localspec.prompt.thinking import ThinkingStyle
from localspec.sampler.chain import Chain
from localspec.sampler.passes import ForwardPass, common_prefix_length
from localspec.structure.forcing import Forcing
from localspec.structure.read_calls import TextPart

UNSEEN_IMAGE = "the draft model does not see the image, so it drafts from the text alone"
GENERIC_CALLS = (
    "this model's chat template does not support tools: a system message describes them, in a tool-call format "
    "that the model may not be trained for"
)
DRAFT_CHUNK = 128  # largest number of tokens in a draft model's pass while it reads ahead
WORTH_A_NOTICE = 16  # a notice appears after this many cycles without drafting; shorter pauses are normal
READ_AHEAD_SECONDS = 60.0  # longest time of reading ahead after a reply
AHEAD = 2  # cycles computed before the reader takes them; with fewer, a device may be idle


# A cycle, the scores of its tokens, and the state after it: the strategy's `why_off` and `failure`, the form's `ends`.
_State = tuple[Cycle, Sequence[Scored], str | None, LocalspecError | None, Ending]


class ReplyBuilder:
    def __init__(self, job: "ReplyJob", form: ReplyForm, tally: Tally, pair: LoadedPair) -> None:
        self.job, self.form = job, form
        self.tokens: list[int] = []
        self.ended = False  # whether an end token, a stop string or a grammar ended the reply
        self.ends = form.ends()  # the form's `ends` after the newest cycle
        self._text, self._tally, self._pair = form.text, tally, pair
        self._parts: dict[Kind, list[str]] = {kind: [] for kind in Kind}
        self._kind = Kind.ANSWER  # the kind of the newest text
        self._reasoning_tokens = 0
        self._unsettled: list[Scored] = []  # scores of the newest tokens, whose text is not complete yet

    def absorb(self, cycle: Cycle, scores: Sequence[Scored] = ()) -> Iterator[Event]:
        """Yield the cycle, cut at the end of the reply, then the scores and the text of its tokens."""
        began = perf_counter()
        pieces: list[Piece] = []
        settled: list[Scored] = []
        used = 0
        while used < len(cycle.tokens) and not self.ended:
            token, origin = cycle.tokens[used], cycle.origins[used]
            used += 1
            if self._pair.vocabulary.is_end(token):
                self.ended = True
                break
            parts = self._text.push(token)
            pieces += self._pieces(parts, origin, cycle.source)
            self._reasoning_tokens += self._kind is Kind.REASONING
            settled += self._settled(scores[used - 1 : used], parts) if scores else ()
            self.ended = bool(self._text.stopped_by) or self._text.repeats
        cycle = replace(
            cycle,
            tokens=cycle.tokens[:used],
            origins=cycle.origins[:used],
            accepted=cycle.origins[:used].count(Origin.ACCEPTED),
            # A pair that runs ahead computes its next cycle meanwhile, so the time of this text delays nothing.
            other_seconds=cycle.other_seconds + (0.0 if self._pair.runs_ahead else perf_counter() - began),
        )
        if not self.tokens:
            waited = perf_counter() - self.job.requested
            self._tally.sums = replace(self._tally.sums, first_token_seconds=waited)
        self.tokens += cycle.tokens
        self._tally.add(cycle)
        yield cycle
        if settled:
            yield Scores(tuple(settled))
        yield from pieces

    def finish(self) -> Iterator[Event]:
        # A grammar that allows nothing more has ended the reply, even if the limit of tokens is reached, too.
        self.ended = self.ended or self.ends.finished
        parts = self._text.flush(cut=not self.ended)
        if settled := self._settled((), parts):
            yield Scores(tuple(settled))
        yield from self._pieces(parts, Origin.PLAIN, Source.PLAIN)

    def result(self, seed: int, *, cancelled: bool) -> Reply:
        early = FinishReason.CANCELLED if cancelled else FinishReason.LENGTH
        calls = self._text.calls
        return Reply(
            text="".join(self._parts[Kind.ANSWER]),
            reasoning="".join(self._parts[Kind.REASONING]),
            tokens=tuple(self.tokens),
            seed=seed,
            finish_reason=FinishReason.STOP if self.ended and not self.ends.closed else early,
            stats=replace(self._tally.stats(), thinking_cut=self.ends.budget_spent),
            tool_calls=tuple(self._called(call) for call in calls if not call.unreadable),
            cut_calls=tuple(self._called(call) for call in calls if call.unreadable),
            reasoning_tokens=self._reasoning_tokens,
            stopped_by=self._text.stopped_by,
            target=self._pair.target_name,
        )

    def _settled(self, scores: Sequence[Scored], parts: Sequence[TextPart]) -> list[Scored]:
        """Return the scores of the tokens whose text begins in `parts`, or none if `parts` have no answer."""
        found = [*self._unsettled, *scores]
        answered, held = any(part.kind is Kind.ANSWER for part in parts), self._text.held
        waiting = 0 if answered or not held else len(found)
        while answered and waiting < len(found) and held >= (size := len(found[-1 - waiting].chosen.piece)):
            waiting, held = waiting + 1, held - size
        self._unsettled = found[len(found) - waiting :]
        return found[: len(found) - waiting] if answered else []

    def _pieces(self, parts: Sequence[TextPart], origin: Origin, source: Source) -> list[Piece]:
        for part in parts:
            self._kind = part.kind
            self._parts[part.kind].append(part.text)
        return [
            Piece(part.text, part.kind, origin, source, part.call and self._called(part.call))
            for part in parts
        ]

    def _called(self, call: ToolCall) -> ToolCall:
        """Return a call with the name that the caller gave to its tool."""
        return replace(call, name=self.job.request.called.get(call.name, call.name))


def read(target: Decoder, strategy: Strategy, job: "ReplyJob") -> Iterator[Prefill]:
    """Prefill the prompt's uncached tokens, except the last one; keep checkpoints at branch points."""
    prompt, text, cancelled = job.prompt, job.text_prompt, job.cancelled
    total, done, seconds = len(prompt) - 1 - target.length, 0, 0.0

    def passes() -> Iterator[ForwardPass | ImageChunk]:
        for branch_point in sorted(min(each, len(prompt) - 1) for each in job.branch_points):
            if target.needs_checkpoints and target.length < branch_point and not cancelled():
                yield from passes_to(branch_point)
                target.checkpoint(lasting=True)
        yield from passes_to(len(prompt) - 1)

    def passes_to(end: int) -> Iterator[ForwardPass | ImageChunk]:
        """Yield each pass, and each image before it is encoded."""
        for begin, stop, image in stretches(prompt, target.length, end):
            if target.length < begin:  # the passes before this part were stopped
                return
            if image and not image.is_encoded and not cancelled():
                yield image
                image.encode()
            yield from target.prefill(prompt[begin:stop], cancelled)

    batches, began = passes(), perf_counter()
    while not cancelled() and (batch := next(batches, None)):
        encoded = 0 if isinstance(batch, ForwardPass) else batch.count
        if isinstance(batch, ForwardPass):
            done += len(batch.tokens)
            strategy.learn_prefill(batch, perf_counter() - began)
            batch = observed(batch, prompt) if len(text) < len(prompt) else batch
            strategy.observe(batch, len(batch.tokens))
        seconds += perf_counter() - began
        yield Prefill(done, total, seconds, encoded)
        began = perf_counter()


@dataclass(frozen=True)
class ReplyJob:
    request: Request
    prompt: Sequence[int]
    branch_points: Sequence[int]  # positions at which a later prompt may differ from this one
    cancelled: Callable[[], bool]
    style: ThinkingStyle | None = None  # how the model writes its reasoning
    trimmed_messages: int = 0  # number of messages left out of the prompt
    requested: float = field(default_factory=perf_counter)
    sent: int | None = None  # number of tokens before a text that is typed but not sent; None: no such text
    changed: str = ""  # a notice about changes that make the messages fit the template
    spelled: Sequence[Sequence[int]] = ()  # texts to copy from, in another spelling than the prompt's
    # Returns a job whose prompt is the certain beginning of the next prompt; None if `ends()` becomes true first.
    following: "Callable[[Reply, Ends], ReplyJob | None] | None" = None

    @cached_property
    def text_prompt(self) -> Sequence[int]:
        """The prompt as drafters and rules read it."""
        return without_images(self.prompt)


Ends = Callable[[], bool]
Ahead = Callable[[Ends], ReplyJob | None]


@dataclass(slots=True)
class Upcoming:
    ahead: Ahead
    seconds: float  # time that is left to read the prompt ahead


class ReplyWriter:
    def __init__(self, pair: LoadedPair, prompts: PromptBuilder) -> None:
        self._pair, self._prompts = pair, prompts
        self._sent: dict[str, object] = {}  # each sent notice, with its sender
        # For each slot, the messages of its latest prompt except the assistant's, or the tokens of a raw prompt.
        self._latest: dict[Slot, Sequence[Any]] = {}
        # For each slot, the next prompt to read ahead, until it is read or another reply takes the slot.
        self._upcoming: dict[Slot, Upcoming] = {}
        self._read: dict[Slot, range] = {}  # for each slot, the positions of the tokens that were read ahead

    def reply(self, job: ReplyJob) -> Generator[Event]:
        form = self._prompts.form(job.request, job.style, len(job.text_prompt))
        began = perf_counter()
        with self._pair.slots.claimed(job.prompt, job.cancelled) as slot:
            if slot is not None:
                self._upcoming.pop(slot, None)
                with self._pair.threads.reply():
                    yield from self._written(slot, job, form, perf_counter() - began)
            else:
                tally = Tally(Stats(prompt_tokens=len(job.prompt)))
                empty = ReplyBuilder(job, form, tally, self._pair)
                yield Finished(empty.result(job.request.seed or 0, cancelled=True))

    def read_ahead(self, stop: Ends) -> None:
        """Prefill the certain beginnings of the next prompts of all conversations, until `stop()` returns true."""
        for slot, upcoming in list(self._upcoming.items()):
            began, done = perf_counter(), True
            try:
                done = self.prefill(upcoming.ahead, stop, slot, seconds=upcoming.seconds)
            finally:
                upcoming.seconds -= perf_counter() - began
                if (done or upcoming.seconds <= 0) and self._upcoming.get(slot) is upcoming:
                    del self._upcoming[slot]

    def prefill(self, ahead: Ahead, stop: Ends, slot: Slot | None = None, *, seconds: float) -> bool:
        """Prefill the prompt of a job until a reply waits for a slot. Return whether the whole prompt is read."""
        pair, deadline = self._pair, perf_counter() + seconds

        def ends() -> bool:
            return stop() or pair.slots.awaited > 0 or perf_counter() >= deadline

        job = None if ends() else ahead(ends)
        # Claim all slots: a new reply then waits, and finds the tokens that are being read in its slot.
        with pair.slots.unused(ends) as free:
            if job is None or free is None:
                return False
            slot = slot or best_slot(pair.slots.all, job.prompt)
            if common_prefix_length(slot.target.tokens, 0, job.prompt) >= len(job.prompt) - 1:
                return True
            rule = make_rule(job.request.rule, job.request.sampling, job.request.seed or 0)
            with pair.threads.reply():
                strategy = self._strategy(slot, rule, job)
                kept, _ = self._rewind(slot, strategy, job)
                if job.sent is None:
                    slot.target.checkpoint(lasting=False)  # a stopped pass returns to this checkpoint
                else:
                    pair.slots.sent[slot] = job.sent
                for _ in read(slot.target, strategy, job):
                    pass
                before = self._read.get(slot, range(kept, 0))
                self._read[slot] = range(min(kept, before.start), slot.target.length)
                text = job.text_prompt
                for drafter in slot.drafters if job.request.drafts and not strategy.why_off else ():
                    while not ends() and drafter.backlog(text).unread:
                        drafter.read(text, DRAFT_CHUNK)
            return not ends()

    def _written(self, slot: Slot, job: ReplyJob, form: ReplyForm, waited_seconds: float) -> Iterator[Event]:
        pair, request, prompt, forcer = self._pair, job.request, job.prompt, form.forcer
        seed = fresh_seed() if request.seed is None else request.seed
        rule = make_rule(request.rule, request.sampling, seed, forcer)
        scoring = None
        if request.logprobs is not None:
            chain = Chain(request.sampling, forcer) if request.post_sampling_probs else None
            rule = scoring = ScoringRule(rule, pair.vocabulary, request.logprobs, chain)
        strategy = self._strategy(slot, rule, job)
        if forcer:
            strategy = Forcing(strategy, forcer, pair.widest_batch * request.drafts)
        reused, restore_seconds = self._rewind(slot, strategy, job)
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
        yield from self._take_notices(job, form)
        begun = Stats(
            prompt_tokens=len(prompt),
            reused_tokens=reused,
            restored_tokens=reused if restore_seconds else 0,
            restore_seconds=restore_seconds,
            read_ahead_tokens=sum(position < reused for position in self._read.pop(slot, ())),
            waited_seconds=waited_seconds,
        )
        tally = Tally(begun, lambda: strategy.plain_step)
        yield from self._prefilled(slot, strategy, job, tally)
        if changed := pair.threads.settle():
            yield Notice(changed)
        reply = ReplyBuilder(job, form, tally, pair)
        needed = request.sampling.logits_needed
        # With a grammar, only sampling needs whole rows: a grammar seldom forbids all of a row's top tokens.
        whole = scoring or (form.constraint and needed != 1)
        try:
            slot.target.late = pair.runs_ahead
            slot.target.top_k_rows(None if whole else needed)
            yield from self._generate(slot, rule, strategy, reply)
        finally:
            slot.target.late = False
            slot.target.top_k_rows(None)
        slot.drafting.store()
        result = reply.result(seed, cancelled=job.cancelled())
        if pair.is_demo:  # the demo has no real models, so its speed-up misleads
            result = replace(result, stats=replace(result.stats, plain_seconds=0.0, plain_error_seconds=0.0))
        if form.constraint is not None and not reply.ends.complete and not form.text.repeats:
            why = f"the reply was cut off before it matched {form.constraint.name}"
            result = replace(result, unmatched=why)
            yield Notice(why)
        # Read ahead only after a complete reply, because a reply that was cut off may be continued from its own tokens.
        if job.following and pair.reads_ahead and result.finish_reason is FinishReason.STOP:
            self._upcoming[slot] = Upcoming(partial(job.following, result), READ_AHEAD_SECONDS)
        yield Finished(result)

    def _prefilled(self, slot: Slot, strategy: Strategy, job: ReplyJob, tally: Tally) -> Iterator[Prefill]:
        for event in read(slot.target, strategy, job):
            tally.sums = replace(tally.sums, prefill_seconds=event.seconds)
            yield event
        busy = strategy.busy_seconds
        for _ in strategy.sync(job.text_prompt):
            spent = strategy.busy_seconds - busy
            tally.sums = replace(tally.sums, draft_seconds=spent, draft_prefill_seconds=spent)
            if job.cancelled():
                return

    def _strategy(self, slot: Slot, rule: Rule, job: ReplyJob) -> Strategy:
        predicted = self._pair.vocabulary.tokenize(job.request.prediction, parse_special=False)
        return slot.drafting.strategy(rule, job.request, predicted, job.spelled)

    def _rewind(self, slot: Slot, strategy: Strategy, job: ReplyJob) -> tuple[int, float]:
        """Keep the common prefix of KV cache and prompt; return its length, and the seconds to restore a state."""
        # Compare messages without replies: a later prompt lacks their reasoning, and a reply may be generated again.
        text = job.request.questions if job.request.continued is None else job.prompt
        before = self._latest.get(slot, ())
        self._latest[slot] = text
        continues = list(text[: len(before)]) == list(before)
        if continues:
            self._pair.slots.sent.pop(slot, None)
        else:
            self._pair.slots.forget_typed(slot)
        seconds = slot.target.recall(job.prompt, save=not continues)
        keep = slot.target.rewind(common_prefix_length(slot.target.tokens, 0, job.prompt[:-1]))
        # Without images the two texts are equal, so no placeholders are needed.
        same = len(job.text_prompt) == len(job.prompt)
        kept = list(job.text_prompt[:keep]) if same else without_images(job.prompt[:keep])
        strategy.observe(ForwardPass(0, kept), len(kept))
        slot.target.conversation = job.request.conversation
        return keep, seconds

    def _generate(self, slot: Slot, rule: Rule, strategy: Strategy, reply: ReplyBuilder) -> Iterator[Event]:
        pair, job, form = self._pair, reply.job, reply.form
        forcer, limit = form.forcer, job.request.max_tokens
        room, text = pair.target.capacity - len(job.prompt), list(job.text_prompt)
        lacking = len(job.prompt) - len(text)
        target = TextDecoder(slot.target, lacking) if lacking else slot.target
        if not job.cancelled():
            most, is_end = room if limit is None else min(limit, room), pair.vocabulary.is_end
            if form.constraint:
                form.constraint.limit = most

            def states() -> Generator[_State]:
                with slot.running():
                    for cycle in speculate(target, strategy, text, rule=rule, room=most, is_end=is_end):
                        if forcer:
                            forcer.settle(text)
                        scores = rule.scores if isinstance(rule, ScoringRule) else ()
                        yield cycle, scores, strategy.why_off, strategy.failure, form.ends()

            # If a GPU computes, the text of a cycle is made while the next cycle runs.
            # On a CPU with several slots, a thread makes the events, so that a slow client slows no other reply.
            found = ahead(states(), AHEAD, slot.away) if pair.runs_ahead else states()
            events = self._absorbed(found, reply)
            if len(pair.slots.all) > 1 and not pair.runs_ahead:
                events = ahead(events, 1, slot.away)
            with closing(events):
                for several in events:
                    yield from several
        yield from reply.finish()
        if reply.ends.closed and reply.ended:
            yield Notice("the reply came near its limit of tokens, so its JSON was closed early")
        if not reply.ended and not job.cancelled() and len(reply.tokens) == room:
            full = f"the context of {pair.target.capacity:,} tokens is full, so the reply was cut off"
            hint = ""
            if repeated_block(reply.tokens):
                hint = "; it repeats itself, and --max-tokens (-n) limits it"
            elif not pair.trained_context or pair.target.capacity < pair.trained_context:
                hint = "; load the pair with a larger context (--context)"
            yield Notice(full + hint)

    def _absorbed(self, states: Generator[_State], reply: ReplyBuilder) -> Generator[list[Event]]:
        """Yield the events of each cycle as one list."""
        cycles_off, off_sent, failure_sent = 0, False, False
        with closing(states):
            for cycle, scores, why_off, failure, reply.ends in states:
                events = list(reply.absorb(cycle, scores))
                cycles_off = cycles_off + 1 if why_off else 0
                if why_off and cycles_off >= WORTH_A_NOTICE and not off_sent:
                    off_sent = True
                    events.append(Notice(DEMO_OFF if self._pair.is_demo else why_off))
                if failure and not failure_sent:
                    failure_sent = True
                    what = f"the draft model failed, and the reply continues without it: {failure}"
                    events.append(Notice(what))
                yield events
                if reply.ended or reply.job.cancelled():
                    return

    def _take_notices(self, job: ReplyJob, form: ReplyForm) -> Iterator[Notice]:
        unseen = job.request.drafts and bool(self._pair.draft_name) and len(job.text_prompt) < len(job.prompt)
        is_raw = job.request.continued is not None
        notices = (n for n in self._pair.notices if not (is_raw and n.startswith(NO_TEMPLATE)))
        once = (*notices, *([GENERIC_CALLS] * form.generic_calls), *([UNSEEN_IMAGE] * unseen))
        mine = object()  # `setdefault` lets only one of several threads send a notice: the first
        yield from (Notice(text) for text in once if self._sent.setdefault(text, mine) is mine)
        yield from (Notice(tool.notice) for tool in job.request.tools if tool.notice)
        if form.constraint and form.constraint.ignored:
            yield Notice(form.constraint.ignored)
        if job.changed:
            yield Notice(job.changed)
        if job.trimmed_messages:
            yield Notice(f"the context is full: the oldest {job.trimmed_messages} messages were left out")
