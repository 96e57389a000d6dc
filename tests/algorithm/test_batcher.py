"""Several replies in one pass, on exact models: every text is the one that the reply has alone."""

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest

from localspec.algorithm.batcher import Batcher
from localspec.algorithm.loop import speculate
from localspec.algorithm.pass_order import FORGOTTEN, MEASURED, Part, PassSeconds
from localspec.algorithm.verification import make_rule
from localspec.drafters.copies import CopyDrafter
from localspec.drafters.model import ModelDrafter
from localspec.drafters.selection import Fixed, Plain
from localspec.errors import BackendFailure
from localspec.sampler.passes import ForwardPass
from localspec.sampler.sampling import Sampling
from tests.algorithm.exact_models import VOCABULARY, Blend, ExactModel
from tests.algorithm.test_loop import Scripted, is_end

FREE = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


class SharedModels:
    """One model a slot and one buffer of rows for all, which the next pass overwrites."""

    def __init__(self, models, *, fails=lambda: False, seconds=lambda parts: 0.0):
        self.models, self.fails, self.seconds = models, fails, seconds
        self.kept = [0] * len(models)  # tokens that each slot wants of its model's cache
        self.buffer = np.zeros((64, VOCABULARY), np.float32)
        self.passes = []
        self.busy = threading.Lock()

    def decode(self, parts):
        assert self.busy.acquire(blocking=False), "two passes at once"
        try:
            assert len({part.slot for part in parts}) == len(parts), "a slot twice in a pass"
            assert len(parts) == 1 or not any(part.alone for part in parts)
            self.passes.append(tuple(parts))
            self.buffer[:] = np.nan
            time.sleep(self.seconds(parts))
            if self.fails():
                raise BackendFailure("the pass failed", hint="none")
            return [self.one(part, first) for part, first in zip(parts, self.firsts(parts), strict=True)]
        finally:
            self.busy.release()

    def firsts(self, parts):
        rows = [part.rows for part in parts]
        return [sum(rows[:i]) for i in range(len(rows))]

    def one(self, part, first):
        model = self.models[part.slot]
        model.rollback(self.kept[part.slot])
        found = model.decode(part.tokens, part.rows)
        self.kept[part.slot] = model.length
        rows = self.buffer[first : first + part.rows]
        for row, exact in zip(rows, found.rows, strict=True):
            row[:] = exact
        return ForwardPass(found.start, part.tokens, tuple(rows), found.hidden)


class SharedSlot(ExactModel):
    """A `Decoder` that is one slot of shared models."""

    def __init__(self, batcher, shared, slot):
        super().__init__(0)
        self.batcher, self.shared, self.slot = batcher, shared, slot

    @property
    def length(self):
        return self.shared.kept[self.slot]

    @property
    def tokens(self):
        return self.shared.models[self.slot].cache[: self.length]

    def decode(self, tokens, rows):
        return self.batcher.decode(self.shared, Part(self.slot, tokens, rows))

    def prefill(self, tokens, cancelled=lambda: False):
        start = 0
        while start < len(tokens):
            chunk = self.batcher.prompt_chunk(self.shared, self.slot, self.chunk)
            yield self.decode(tokens[start : start + chunk], rows=0)
            start += chunk

    def rollback(self, keep):
        assert keep <= self.length
        self.shared.kept[self.slot] = keep


@dataclass
class Job:
    """One reply: what it reads, how it draws and drafts, and when somebody cancels it."""

    seed: int
    prompt: list
    room: int
    rule: str
    drafter: str
    depths: list
    cycles: int  # that somebody reads
    timed: bool = False  # depths follow the passes of all as well


@dataclass
class Side:
    """The models of one slot, or of a reply alone."""

    target: object
    draft: object
    replies: object = field(default=lambda: 1)


class Changing(Fixed):
    """Depths that change from cycle to cycle, with the number of replies where they follow the clock."""

    def __init__(self, drafter, rule, job, replies):
        super().__init__(drafter, 0, rule)
        self.job, self.replies, self.cycle = job, replies, 0

    def propose(self, tokens, room):
        self.cycle += 1
        at = self.cycle * (self.replies() if self.job.timed else 1)
        self._depth = self.job.depths[at % len(self.job.depths)]
        return super().propose(tokens, room)


def rule_of(job):
    if job.rule == "greedy":
        return make_rule("auto", Sampling(temperature=0), 0)
    return make_rule(job.rule, FREE, job.seed)


def strategy_of(job, side):
    rule = rule_of(job)
    if job.drafter == "none":
        return Plain(), rule
    drafter = {
        "scripted": lambda: Scripted(job.seed),
        "lookup": CopyDrafter,
        "model": lambda: ModelDrafter(side.draft, is_end),
    }[job.drafter]()
    return Changing(drafter, rule, job, side.replies), rule


def texts(jobs, side, *, running=nullcontext, pause=lambda: None):
    """The texts of these replies, one after the other on one slot: a cache keeps what two of them share."""
    for job in jobs:
        tokens, target = list(job.prompt), side.target
        if side.draft is not None:
            side.draft.rollback(0)
        shared = next(
            (i for i, (a, b) in enumerate(zip(target.tokens, tokens[:-1], strict=False)) if a != b), None
        )
        target.rollback(min(target.length, len(tokens) - 1) if shared is None else shared)
        strategy, rule = strategy_of(job, side)
        for batch in target.prefill(tokens[target.length : -1]):
            strategy.observe(batch, kept=len(batch.tokens))
        steps = speculate(target, strategy, tokens, rule=rule, room=job.room, is_end=is_end)
        with running():
            for _, _ in zip(range(job.cycles), steps, strict=False):
                pause()
        yield tokens


def random_jobs(random, count):
    jobs, text = [], []
    for _ in range(count):
        edited = text[: random.randint(0, len(text))]
        text = edited + random.choices(range(1, VOCABULARY), k=random.choice([1, 2, 9, 40]))
        timed = random.random() < 0.5
        jobs.append(
            Job(
                seed=random.randrange(10**6),
                prompt=text,
                room=random.randint(1, 24),
                rule=random.choice(["greedy", "coupled"] if timed else ["greedy", "coupled", "block"]),
                drafter=random.choice(["none", "scripted", "lookup", "model"]),
                depths=[random.randint(0, 6) for _ in range(5)],
                cycles=100 if timed else random.choice([2, 100]),
                timed=timed,
            )
        )
    return jobs


class Schedule:
    """A random schedule with 1 to 4 slots, each with replies one after the other and a draft of its own."""

    def __init__(self, seed, *, fails=False):
        self.seed, dice = seed, random.Random(seed)
        self.slots = range(dice.randint(1, 4))
        self.targets = SharedModels([ExactModel(7) for _ in self.slots])
        self.drafts = SharedModels([Blend(7, 0.7) for _ in self.slots])
        if fails:
            self.targets.fails = lambda: len(self.targets.passes[-1]) > 1 and dice.random() < 0.3
        self.jobs = [random_jobs(random.Random(seed * 10 + n), dice.randint(1, 2)) for n in self.slots]
        self.batcher = Batcher(self.targets, threading.Condition())
        self.batcher.order.seconds = lambda *_: Tossed(dice, len(self.targets.passes))

    def texts(self, slot, **more):
        target, draft = (SharedSlot(self.batcher, shared, slot) for shared in (self.targets, self.drafts))
        return list(texts(self.jobs[slot], Side(target, draft, lambda: len(self.targets.passes)), **more))

    @property
    def alone(self):
        return [list(texts(jobs, Side(ExactModel(7), Blend(7, 0.7)))) for jobs in self.jobs]


class Tossed(PassSeconds):
    """Whether sharing pays is a toss. The length of a chunk varies with the passes."""

    def __init__(self, dice, passes):
        super().__init__()
        self.dice, self.passes, self.token_seconds = dice, passes, 1.0

    @property
    def plain_seconds(self):
        return 1 + self.passes % 5

    def pays(self, widths, width):
        return self.dice.random() < 0.9


def repeatable(seed):
    """Run a schedule in which all replies count as running from the beginning."""
    schedule = Schedule(seed)
    ends = [schedule.batcher.running(slot) for slot in schedule.slots]
    for end in ends:
        end.__enter__()

    def reply(slot):
        try:
            return schedule.texts(slot)
        finally:
            ends[slot].__exit__(None, None, None)

    with ThreadPoolExecutor(len(schedule.slots)) as threads:
        written = list(threads.map(reply, schedule.slots))
    return schedule, written


def test_400_random_schedules_give_each_reply_the_text_that_it_has_alone():
    sizes = Counter()
    for seed in range(400):
        schedule, written = repeatable(seed)
        assert written == schedule.alone, f"seed {seed}"
        sizes.update(len(parts) for parts in schedule.targets.passes)
    assert min(sizes[count] for count in (1, 2, 3, 4)) > 20, "the replies hardly met in a pass"


def test_a_schedule_has_the_same_passes_each_time():
    for seed in range(20):
        first, again = (repeatable(seed)[0] for _ in range(2))
        assert first.targets.passes == again.targets.passes
        assert first.drafts.passes == again.drafts.passes


def at_any_time(seed, *, fails=False):
    """Run a schedule whose replies come and go, and wait for their readers."""
    schedule = Schedule(seed, fails=fails)

    def reply(slot):
        mine = random.Random(seed * 100 + slot)

        def pause():
            if mine.random() < 0.1:
                with schedule.batcher.away(slot):
                    time.sleep(1e-4)

        time.sleep(mine.choice([0, 0, 1e-4]))
        return schedule.texts(slot, running=lambda: schedule.batcher.running(slot), pause=pause)

    with ThreadPoolExecutor(len(schedule.slots)) as threads:
        return schedule, list(threads.map(reply, schedule.slots))


@pytest.mark.process
@pytest.mark.parametrize("fails", [False, True])
def test_every_text_is_right_at_any_time_also_if_shared_passes_fail(fails):
    for seed in range(400):
        schedule, written = at_any_time(seed, fails=fails)
        assert written == schedule.alone, f"seed {seed}"


def test_a_part_that_fails_alone_fails_for_its_own_slot():
    models = SharedModels([ExactModel(7), ExactModel(7)])
    models.fails = lambda: any(part.slot == 1 for part in models.passes[-1])
    batcher, words = Batcher(models, threading.Condition()), [None, None]
    batcher.order.seconds = lambda *_: Tossed(random.Random(1), 0)

    def reply(slot):
        target = SharedSlot(batcher, models, slot)
        try:
            with batcher.running(slot):
                (words[slot],) = texts([GREEDY], Side(target, None))
        except BackendFailure as error:
            words[slot] = error

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(reply, range(2)))
    (alone,) = texts([GREEDY], Side(ExactModel(7), None))
    assert words[0] == alone
    assert isinstance(words[1], BackendFailure)


GREEDY = Job(seed=0, prompt=[1, 2], room=9, rule="greedy", drafter="none", depths=[0], cycles=100)


class Pays(PassSeconds):
    """Sharing always pays."""

    def pays(self, widths, width):
        return True


@contextmanager
def waiting(batcher, models, slot, part=([1], 1), running=lambda _: nullcontext()):
    """Let a thread wait for a pass of this slot while another reply runs; yield its result."""

    def decoded():
        with running(slot):
            return batcher.decode(models, Part(slot, *part))

    with ThreadPoolExecutor(1) as threads:
        job = threads.submit(decoded)
        while slot not in batcher._waiting:
            assert not job.done(), "the pass waits for the other reply"
            time.sleep(1e-4)
        yield job


class Interrupted(BaseException):
    """As Ctrl-C comes."""


def test_an_interrupted_wait_leaves_the_others_alone(monkeypatch):
    models = SharedModels([ExactModel(7), ExactModel(7), ExactModel(7)])
    batcher = Batcher(models, threading.Condition())
    batcher.order.seconds = lambda *_: Pays()

    wait = batcher.calling.wait

    def interrupted(timeout=None):
        if threading.current_thread() is threading.main_thread():
            raise Interrupted
        return wait(timeout)

    with batcher.running(0), batcher.running(2):
        with waiting(batcher, models, 0) as other:
            with monkeypatch.context() as patch:
                patch.setattr(batcher.calling, "wait", interrupted)
                with pytest.raises(Interrupted):
                    batcher.decode(models, Part(1, [1], 1))
            batcher.decode(models, Part(2, [1], 1))
        assert other.result().rows
    assert sorted(part.slot for parts in models.passes for part in parts) == [0, 2]


def test_a_shared_pass_pays_if_it_was_measured_to_take_less_time_than_two():
    """The dear pass of two long proposals says nothing about one of two short ones."""
    seconds = PassSeconds()
    for width, took in ((1, 14.0), (2, 33.0), (3, 26.0), (6, 30.0), (12, 67.0)):
        for _ in range(MEASURED):
            seconds.learn(width, took)
    assert seconds.pays([3], 3)
    assert not seconds.pays([1], 1)
    assert not seconds.pays([6], 6)


def test_a_pass_is_measured_alone_then_shared_and_a_slow_one_is_tried_again_later():
    """The first one of a kind may build its kernels, and no later one would tell if it were never tried."""
    seconds = PassSeconds()
    for _ in range(MEASURED):
        assert not seconds.pays([1], 1)
        seconds.learn(1, 1.0)
    for _ in range(MEASURED):
        assert seconds.pays([1], 1)
        seconds.learn(2, 10.0)
    assert not seconds.pays([1], 1)
    for _ in range(FORGOTTEN):
        seconds.learn(1, 1.0)
    assert seconds.pays([1], 1)


class Priced:
    """A decoder without a model: its clock runs on by the price of each pass, in plain passes."""

    def __init__(self, price):
        self.price, self.now, self.passes = price, 0.0, []

    def decode(self, parts):
        self.now += self.price(sum(len(part.tokens) for part in parts))
        self.passes.append(parts)
        return [ForwardPass(0, part.tokens, ()) for part in parts]


def test_a_reply_reports_how_long_it_waited_for_passes_of_others():
    models = Priced(float)
    batcher = Batcher(models, threading.Condition(), lambda: models.now)
    for _ in range(MEASURED):
        batcher.order.seconds(models).learn(1, 1.0), batcher.order.seconds(models).learn(2, 3.0)
    with batcher.running(0):
        with waiting(batcher, models, 1, ([1] * 10, 0)) as prompt:
            assert batcher.decode(models, Part(0, [1], 1)).waited_seconds == 10.0, "one chunk comes first"
        assert prompt.result().waited_seconds == 0.0
        assert batcher.decode(models, Part(0, [1], 1)).waited_seconds == 0.0
        with waiting(batcher, models, 1, running=batcher.running) as other:
            assert batcher.decode(models, Part(0, [1], 1)).waited_seconds == 1.0, "they take turns"
        assert other.result().waited_seconds == 0.0
        assert other.result().running == 2, "they run at the same time, although each pass is of one"


def test_a_draft_that_waits_to_read_its_prompt_has_waited_too():
    """Without this, the time counted as work of the cycle, and one cycle of a first reply switched drafting off."""
    models = Priced(float)
    batcher = Batcher(models, threading.Condition(), lambda: models.now)
    with batcher.running(0):
        batcher.decode(models, Part(0, [1], 1))
        with waiting(batcher, models, 1, ([1] * 10, 0)):
            batcher.decode(models, Part(0, [1] * 3, 0))
        assert batcher.decode(models, Part(0, [1], 1)).waited_seconds == 10.0


PRICES = {
    "a GPU's kernels, which change at 9 rows": lambda w: (
        1 + 0.07 * (w - 1) if w < 9 else 2.6 + 0.01 * (w - 9)
    ),
    "smooth": lambda w: 1 + 0.04 * (w - 1),
    "a CPU": lambda w: 1 + 0.45 * (w - 1),
}


@pytest.mark.parametrize("prompts", [1, 3])
@pytest.mark.parametrize("name", PRICES)
def test_a_stream_waits_four_plain_passes_at_most_while_prompts_of_800_tokens_are_read(name, prompts):
    decoder = Priced(PRICES[name])
    batcher, reported, left = (
        Batcher(decoder, threading.Condition(), lambda: decoder.now),
        [],
        list(range(prompts)),
    )

    def write():
        with batcher.running(0):
            while left:
                batcher.decode(decoder, Part(0, [1], 1))
                reported.append(decoder.now)

    def read(slot):
        while len(reported) < 5:
            time.sleep(0.001)
        rest = 800
        while rest:
            chunk = min(batcher.prompt_chunk(decoder, slot, 512), rest)
            batcher.decode(decoder, Part(slot, [1] * chunk, 0))
            rest -= chunk
        left.pop()

    with ThreadPoolExecutor(1 + prompts) as pool:
        jobs = [pool.submit(write), *(pool.submit(read, 1 + n) for n in range(prompts))]
        for job in jobs:
            job.result(timeout=60)
    read_tokens = sum(len(part.tokens) for parts in decoder.passes for part in parts if not part.rows)
    assert read_tokens == 800 * prompts
    gap = max(after - before for before, after in pairwise(reported))
    assert gap <= 4.0
