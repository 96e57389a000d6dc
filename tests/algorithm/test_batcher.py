"""Several replies in one pass, on exact models: every text is the one that the reply has alone."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest

from localspec.algorithm.batcher import FORGOTTEN, Batcher, Part, PassSeconds
from localspec.algorithm.loop import speculate
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
    """A `Decoder` that is one slot of shared models; a draft's rows are copies, so that nobody waits for them."""

    def __init__(self, batcher, shared, slot, *, copies=False, alone=False):
        super().__init__(0)
        self.batcher, self.shared, self.slot = batcher, shared, slot
        self.copies, self.alone = copies, alone

    @property
    def length(self):
        return self.shared.kept[self.slot]

    @property
    def tokens(self):
        return self.shared.models[self.slot].cache[: self.length]

    def decode(self, tokens, rows):
        found = self.batcher.decode(Part(self.slot, tokens, rows, self.alone))
        if self.copies:
            found = ForwardPass(
                found.start, found.tokens, [np.array(row) for row in found.rows], found.hidden
            )
            self.batcher.release(self.slot)
        return found

    def prefill(self, tokens, cancelled=lambda: False):
        start = 0
        while start < len(tokens):
            chunk = self.batcher.prompt_chunk(self.slot, self.chunk)
            yield self.decode(tokens[start : start + chunk], rows=0)
            start += chunk

    def rollback(self, keep):
        assert keep <= self.length
        self.shared.kept[self.slot] = keep
        self.batcher.release(self.slot)


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
    alone: bool = False
    timed: bool = False  # depths follow the clock as well


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


def texts(jobs, side, *, pause=lambda: None):
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
                alone=random.random() < 0.2,
                timed=timed,
            )
        )
    return jobs


def together(seed, *, fails=False):
    """The texts of a random schedule with 1 to 4 slots, and those of its replies alone."""
    dice = random.Random(seed)
    slots = dice.randint(1, 4)
    targets = SharedModels([ExactModel(7) for _ in range(slots)])
    drafts = SharedModels([Blend(7, 0.7) for _ in range(slots)])
    if fails:
        targets.fails = lambda: len(targets.passes[-1]) > 1 and dice.random() < 0.3
    batcher, draft_batcher = Batcher(targets), Batcher(drafts)
    schedules = [random_jobs(random.Random(seed * 10 + slot), dice.randint(1, 3)) for slot in range(slots)]

    def reply(slot):
        mine = random.Random(seed * 100 + slot)
        side = Side(
            SharedSlot(batcher, targets, slot),
            SharedSlot(draft_batcher, drafts, slot, copies=True),
            lambda: batcher.replies,
        )
        written = []
        for job in schedules[slot]:
            side.target.alone = job.alone
            time.sleep(mine.choice([0, 0, 1e-4]))
            batcher.join(slot), draft_batcher.join(slot)
            try:
                written += texts([job], side, pause=lambda: time.sleep(mine.choice([0] * 9 + [1e-4])))
            finally:
                batcher.leave(slot), draft_batcher.leave(slot)
        return written

    with ThreadPoolExecutor(slots) as threads:
        written = list(threads.map(reply, range(slots)))
    alone = [list(texts(jobs, Side(ExactModel(7), Blend(7, 0.7)))) for jobs in schedules]
    return written, alone, targets


def rounds(count):
    return [range(start, start + 100) for start in range(0, count, 100)]


@pytest.mark.process
@pytest.mark.parametrize("seeds", rounds(1000))
def test_every_text_of_a_random_schedule_is_the_one_its_reply_has_alone(seeds):
    shared = 0
    for seed in seeds:
        written, alone, targets = together(seed)
        assert written == alone, f"seed {seed}"
        shared += sum(len(parts) > 1 for parts in targets.passes)
    assert shared > 100, "the replies hardly met in a pass"


@pytest.mark.process
def test_a_failed_pass_is_tried_again_reply_by_reply():
    for seed in range(100):
        written, alone, _ = together(seed, fails=True)
        assert written == alone, f"seed {seed}"


def test_a_part_that_fails_alone_fails_for_its_own_slot():
    models = SharedModels([ExactModel(7), ExactModel(7)])
    models.fails = lambda: any(part.slot == 1 for part in models.passes[-1])
    batcher, words = Batcher(models), [None, None]

    def reply(slot):
        target = SharedSlot(batcher, models, slot)
        try:
            tokens = [1, 2]
            target.decode([1], rows=0)
            steps = speculate(target, Plain(), tokens, rule=rule_of(GREEDY), room=9, is_end=is_end)
            words[slot] = list(steps) and tokens
        except BackendFailure as error:
            words[slot] = error
        finally:
            batcher.leave(slot)

    batcher.join(0), batcher.join(1)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(reply, range(2)))
    (alone,) = texts([GREEDY], Side(ExactModel(7), None))
    assert words[0] == alone
    assert isinstance(words[1], BackendFailure)


GREEDY = Job(seed=0, prompt=[1, 2], room=9, rule="greedy", drafter="none", depths=[0], cycles=100)


def test_a_reply_that_nobody_reads_holds_up_no_other():
    models = SharedModels([ExactModel(7), ExactModel(7)])
    batcher = Batcher(models)
    batcher.join(0), batcher.join(1)
    target = SharedSlot(batcher, models, 0)
    for _ in range(5):
        target.decode([1], rows=1)
        target.rollback(target.length)
    assert all(len(parts) == 1 for parts in models.passes)


def test_an_interrupted_wait_leaves_the_others_alone():
    """The thread that waits is interrupted while another one decodes for both."""
    models = SharedModels([ExactModel(7), ExactModel(7)], seconds=lambda parts: 1e-3)
    batcher = Batcher(models)
    batcher.join(0), batcher.join(1)
    batcher._reading.add(1)  # the leader waits for these rows

    class Interrupted(BaseException):
        pass

    def interrupted():
        raise Interrupted

    with ThreadPoolExecutor(2) as threads:
        leader = threads.submit(batcher.decode, Part(0, [1], 1))
        while not batcher._led:
            time.sleep(1e-3)
        wait, batcher._changed.wait = batcher._changed.wait, interrupted
        try:
            with pytest.raises(Interrupted):
                batcher.decode(Part(1, [1], 1))
        finally:
            batcher._changed.wait = wait
        batcher.release(1)
        assert len(leader.result(timeout=5).rows) == 1
    assert [len(parts) for parts in models.passes] == [1]


def test_a_wait_is_worth_what_a_pass_of_these_widths_saves():
    """The dear pass of two long proposals says nothing about one of two short ones."""
    pass_seconds, part = PassSeconds(), Part(0, [1], 1)
    for width, seconds in ((1, 14.0), (2, 28.0), (3, 26.0), (6, 30.0), (12, 60.0)):
        pass_seconds.learn([part], width, seconds)
    assert pass_seconds.saved([3], 3) == pytest.approx(22.0)
    assert pass_seconds.saved([1], 1) == 0.0
    assert pass_seconds.saved([6], 6) == 0.0


class PromptsFirst:
    """A token of a prompt takes 1 s before the pass of the replies, which takes 1 s; on a clock of its own."""

    def __init__(self):
        self.now, self.came = 0.0, threading.Event()

    def decode(self, parts):
        prompts = [len(part.tokens) for part in parts if not part.rows]
        rows, began = len(parts) > len(prompts), self.now
        for _ in range(sum(prompts)):
            self.now += 1.0
            if self.now == 4.0:
                assert self.came.wait(5), "the reply comes while the prompt is read"
        waited = self.now - began if rows else 0.0
        self.now += float(rows)
        return [
            ForwardPass(0, part.tokens, [0] * part.rows, waited_seconds=waited * bool(part.rows))
            for part in parts
        ]


def test_a_reply_reports_how_long_it_waited_for_the_prompts_of_others():
    decoder = PromptsFirst()
    batcher = Batcher(decoder, lambda: decoder.now)

    def until(true):
        while not true():
            time.sleep(1e-4)

    batcher.join(0), batcher.join(1)
    with ThreadPoolExecutor(2) as threads:
        reader = threads.submit(batcher.decode, Part(1, [1] * 10, 0))
        until(lambda: decoder.now == 4.0)
        reply = threads.submit(batcher.decode, Part(0, [1], 1))
        until(lambda: 0 in batcher._waiting)
        decoder.came.set()
        assert reply.result().waited_seconds == 6.0, "the rest of a prompt"
        assert reader.result().waited_seconds == 0.0
        batcher._reading.add(2)  # the leader waits for these rows
        reader = threads.submit(batcher.decode, Part(1, [1] * 10, 0))
        reply = threads.submit(batcher.decode, Part(0, [1], 1))
        until(lambda: len(batcher._waiting) == 2)
        batcher.release(2)
        assert reply.result().waited_seconds == 10.0, "a prompt in the same call"
        assert reader.result().waited_seconds == 0.0
        batcher.release(0), batcher.leave(1)
        assert batcher.decode(Part(0, [1], 1)).waited_seconds == 0.0


def test_a_shared_pass_that_was_slow_once_is_tried_again():
    """The first one of a kind may build its kernels; no later one would tell if nobody waited for it."""
    pass_seconds, part = PassSeconds(), Part(0, [1], 1)
    pass_seconds.learn([part], 1, 1.0)
    pass_seconds.learn([part], 2, 10.0)
    assert pass_seconds.saved([1], 1) == 0.0
    for _ in range(FORGOTTEN):
        pass_seconds.learn([part], 1, 1.0)
    assert pass_seconds.saved([1], 1) == 1.0


class Priced:
    """A decoder without a model: its clock runs on by the price of each pass, in plain passes."""

    def __init__(self, price):
        self.price, self.now, self.passes = price, 0.0, []

    def decode(self, parts):
        self.now += self.price(sum(len(part.tokens) for part in parts))
        self.passes.append(parts)
        return [ForwardPass(0, part.tokens, ()) for part in parts]


PRICES = {
    "a GPU's kernels, which change at 9 rows": lambda w: (
        1 + 0.07 * (w - 1) if w < 9 else 2.6 + 0.01 * (w - 9)
    ),
    "smooth": lambda w: 1 + 0.04 * (w - 1),
    "a CPU": lambda w: 1 + 0.45 * (w - 1),
}


@pytest.mark.parametrize("prompts", [1, 3])
@pytest.mark.parametrize("name", PRICES)
def test_a_stream_waits_four_plain_passes_at_most_while_prompts_of_8000_tokens_are_read(name, prompts):
    decoder = Priced(PRICES[name])
    batcher, reported, left = Batcher(decoder, lambda: decoder.now), [], list(range(prompts))

    def write():
        batcher.join(0)
        while left:
            batcher.decode(Part(0, [1], 1))
            reported.append(decoder.now)
            batcher.release(0)
        batcher.leave(0)

    def read(slot):
        while len(reported) < 5:
            time.sleep(0.001)
        batcher.join(slot)
        rest = 8000
        while rest:
            chunk = min(batcher.prompt_chunk(slot, 512), rest)
            batcher.decode(Part(slot, [1] * chunk, 0))
            rest -= chunk
        batcher.leave(slot)
        left.pop()

    with ThreadPoolExecutor(1 + prompts) as pool:
        jobs = [pool.submit(write), *(pool.submit(read, 1 + n) for n in range(prompts))]
        for job in jobs:
            job.result(timeout=60)
    read_tokens = sum(len(part.tokens) for parts in decoder.passes for part in parts if not part.rows)
    assert read_tokens == 8000 * prompts
    gap = max(after - before for before, after in pairwise(reported))
    assert gap <= 4.0
