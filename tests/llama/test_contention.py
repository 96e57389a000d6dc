"""A simulated machine: threads share its cores with busy programs, and all wait for the slowest of them."""

from functools import partial
from itertools import repeat

import pytest

from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.threads import JUDGED_PASSES, NARROW, Contention

WORK = 0.02  # seconds of one thread for a token


class Machine:
    """Passes take as long as their slowest thread, which shares its core where more run than there are cores."""

    def __init__(self, cores, usual):
        self.now, self.cores, self.usual, self.others = 100.0, cores, usual, 0
        self.contention = Contention(cores, clock=lambda: self.now)
        self.used = []

    def step(self, width=1, stopped=0.0):
        threads = self.contention.threads(self.usual, width)
        share = min(1.0, self.cores / (threads + self.others))
        # A thread without its core holds up the others: twice as long as the lost share alone.
        seconds = width * WORK / threads / (share if share == 1.0 or threads == 1 else share / 2)
        self.now += seconds + stopped
        self.contention.learn(threads, width, seconds + stopped, seconds * threads * share)
        self.used.append(threads)
        return seconds

    def run(self, passes, width=1):
        return sum(self.step(width) for _ in range(passes))


def test_idle_cores_are_all_used():
    machine = Machine(cores=4, usual=4)
    machine.run(50)
    assert set(machine.used) == {4}


@pytest.mark.parametrize(("cores", "others", "left"), [(2, 1, 1), (2, 8, 1), (4, 2, 2), (8, 3, 5)])
def test_busy_programs_are_noticed_within_a_few_passes_and_left_their_cores(cores, others, left):
    machine = Machine(cores, usual=cores)
    machine.run(10)
    machine.others = others
    machine.run(2 * JUDGED_PASSES)
    assert machine.used[-1] == left


def test_one_crowded_pass_that_takes_long_is_enough():
    machine = Machine(cores=2, usual=2)
    machine.others = 1
    machine.step(width=128)
    machine.step()
    assert machine.used == [2, 1]


def test_all_threads_are_back_soon_after_it_is_over():
    machine = Machine(cores=4, usual=4)
    machine.others = 2
    machine.run(10)
    machine.others = 0
    began = machine.now
    while machine.contention.limit is not None:
        machine.step()
    assert machine.now - began < 5.0
    assert machine.used[-1] == 4


@pytest.mark.parametrize("others", [0, 2])
@pytest.mark.parametrize("stopped", [1.0, 5.0, 3600.0])
def test_all_threads_are_back_soon_after_the_process_was_stopped(stopped, others):
    """By Ctrl-Z, or with the laptop."""
    machine = Machine(cores=4, usual=4)
    machine.others = others
    machine.run(10)
    while machine.used[-1] < 4:  # the pass that is stopped comes after a try
        machine.step()
    machine.step(stopped=stopped)
    machine.others = 0
    began = machine.now
    machine.run(JUDGED_PASSES)
    while machine.contention.limit is not None:
        machine.step()
    assert machine.now - began < 5.0
    machine.run(50)
    assert machine.used[-50:] == [4] * 50


def test_trying_takes_little_of_the_time():
    machine = Machine(cores=2, usual=2)
    machine.others = 1
    machine.run(10)
    alone = Machine(cores=2, usual=1)
    alone.others = 1
    assert machine.run(2000) < 1.06 * alone.run(2000)


def test_wide_passes_are_no_tries():
    machine = Machine(cores=2, usual=2)
    machine.others = 1
    machine.run(10)
    machine.now += 60.0
    machine.step(width=64)
    machine.step()
    assert machine.used[-2:] == [1, 2]


def test_a_try_that_is_crowded_tells_how_many_cores_are_left_now():
    machine = Machine(cores=8, usual=8)
    machine.others = 5
    machine.run(10)
    assert machine.used[-1] == 3
    machine.others = 3
    machine.run(500)
    assert machine.used[-1] == 5


def test_fewer_threads_that_are_no_faster_are_given_up():
    """Passes are crowded because something else holds them up, not because cores are missing."""
    contention, now = Contention(4, clock=lambda: now), 100.0
    used = []
    for _ in range(40):
        threads = contention.threads(4, 1)
        seconds = 0.1 / threads
        now += seconds
        contention.learn(threads, 1, seconds, 0.5 * seconds * threads)
        used.append(threads)
    assert used[-20:] == [4] * 20


def test_a_context_decodes_with_the_threads_that_are_chosen(tiny_gguf):
    class Two:
        def threads(self, usual, width):
            return 2 if width == 1 else usual

        def learn(self, *measured):
            seen.append(measured[:2])

    seen = []
    with Model(tiny_gguf(), gpu_layers=0) as model:
        context = Context(model, length=64, threads=3)
        context.threads.contention = Two()
        for tokens in ([1], [1, 2], [3]):
            context.decode(tokens, 1)
        context.threads.fixed = True
        context.decode([4], 1)
    assert seen == [(2, 1), (3, 2), (2, 1), (3, 1)]


def test_no_clock_decides_how_a_prompt_is_cut(tiny_gguf):
    """A narrow pass leads a long prompt, because a wide one with too many threads can take a minute."""
    with Model(tiny_gguf(), gpu_layers=0) as model:
        for seconds in (0, 10):  # between passes
            clock = iter(range(0, 10**6, seconds)) if seconds else repeat(0)
            adapts = Context(model, length=256, threads=2)
            adapts.threads.contention = Contention(2, clock=partial(next, clock))
            assert widths(adapts, 200) == [NARROW, 128, 64]
            assert widths(adapts, 30) == [30]
            adapts.threads.contention.limit = 1
            adapts.threads.fixed = True
            assert widths(adapts, 200) == [NARROW, 128, 64]
        assert widths(Context(model, length=256, threads=2), 200) == [128, 72]


def widths(context, count):
    context.rollback(0)
    return [len(batch.tokens) for batch in context.prefill([1] * count)]
