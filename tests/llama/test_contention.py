"""A simulated machine: threads share its cores with busy programs, and all wait for the slowest of them."""

import os
import subprocess
import sys
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.llama import threads
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.threads import JUDGED_PASSES, Contention, count_fastest, fast_cpus

WORK = 0.02  # seconds of one thread for a token


class Machine:
    """Passes take as long as their slowest thread, which shares its core where more run than there are cores."""

    def __init__(self, cores, usual):
        self.now, self.cores, self.usual, self.others = 100.0, cores, usual, 0
        self.contention = Contention(cores, clock=lambda: self.now)
        self.used = []

    def step(self, width=1, stopped=0.0):
        threads = self.contention.threads(self.usual, width, self.usual)
        share = min(1.0, self.cores / (threads + self.others))
        # A thread without its core holds up the others: twice as long as the lost share alone.
        seconds = width * WORK / threads / (share if share == 1.0 or threads == 1 else share / 2)
        self.now += seconds + stopped
        self.contention.learn(threads, width, seconds + stopped, seconds * threads * share)
        self.used.append(threads)
        return seconds

    def run(self, passes, width=1):
        return sum(self.step(width) for _ in range(passes))


@pytest.mark.parametrize(("cores", "others", "left"), [(2, 1, 1), (2, 8, 1), (4, 2, 2), (8, 3, 5)])
def test_busy_programs_are_noticed_within_a_few_passes_and_left_their_cores(cores, others, left):
    machine = Machine(cores, usual=cores)
    machine.run(10)
    machine.others = others
    machine.run(5 * JUDGED_PASSES)
    assert machine.used[-1] == left


def test_one_crowded_pass_that_takes_long_is_enough():
    machine = Machine(cores=2, usual=2)
    machine.others = 1
    machine.step(width=128)
    machine.step()
    assert machine.used == [2, 1]


@pytest.mark.parametrize("others", [0, 2])
@pytest.mark.parametrize("stopped", [0.0, 1.0, 3600.0])
def test_all_threads_are_back_soon_after_it_is_over_or_the_process_was_stopped(stopped, others):
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


def test_trying_takes_little_of_the_time_and_a_pass_of_any_width_is_a_try():
    machine, alone = Machine(cores=2, usual=2), Machine(cores=2, usual=1)
    machine.others = alone.others = 1
    machine.run(10)
    assert machine.run(2000) < 1.06 * alone.run(2000)
    machine.now += 60.0
    machine.run(2, width=64)
    assert machine.used[-2:] == [2, 1]
    machine.others = 0
    machine.now += 60.0
    machine.run(1, width=128)
    machine.run(2)
    assert machine.used[-3:] == [2, 2, 2]


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
        threads = contention.threads(4, 1, 4)
        seconds = 0.1 / threads
        now += seconds
        contention.learn(threads, 1, seconds, 0.5 * seconds * threads)
        used.append(threads)
    assert used[-20:] == [4] * 20


@pytest.mark.parametrize(("used", "left"), [(0.0, 4), (0.3, 4), (2.0, 2)])
def test_passes_that_get_too_little_are_contended_only_if_other_programs_used_the_cores(used, left):
    """Short passes get too little by the system's clock, which counts in steps, or while threads wait for a disk."""
    now, others = 100.0, 0.0
    contention = Contention(4, others=lambda: others, clock=lambda: now)
    for _ in range(JUDGED_PASSES):
        threads = contention.threads(4, 1, 4)
        now, others = now + 0.1, others + 0.1 * used
        contention.learn(threads, 1, 0.1, 0.27 if used else 0.2)
    with contention.reply():  # a first reply begins with what was learned while the model loaded
        assert contention.threads(4, 1, 4) == left
        assert contention.contended == (left < 4)


def test_passes_of_another_pair_of_this_process_leave_too_little_as_other_programs_do():
    """The process's processor time is that of both pairs, so it looked as if each pass had all of its cores."""
    now, own = 100.0, []
    contention = Contention(2, others=lambda: 0.0, clock=lambda: now)
    first, second = threads.beside(2), threads.beside(2)
    early, late = first.__enter__(), second.__enter__()
    for each in (first, second):
        each.__exit__(None, None, None)
    assert (max(early), max(late), threads._running) == (4, 4, [])
    for counts in (early, late, early):
        share, now = 2 / max(counts), now + 0.1
        own.append(contention.threads(2, 1, 2))
        contention.learn(own[-1], 1, 0.1, share * 0.2, share < 1)
    assert contention.threads(2, 1, 2) == 1
    with threads.beside(2) as alone:
        pass
    assert max(alone) == 2


def test_the_clock_of_others_counts_a_busy_program():
    clock = threads.clock_of_others()
    if clock is None:
        pytest.skip("this process may not use all cores")
    before, began = clock(), perf_counter()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            while (counted := clock() - before) < 0.2:
                assert counted <= (perf_counter() - began) * (os.cpu_count() or 1) + 0.1
        finally:
            busy.kill()


def spins_of(contention, passes, switches=1000):
    """Make passes of 4 threads, of which other programs leave half the processor time; return the calls by pass.

    `switches`: how often a program takes a core from a thread before the passes are judged.
    """
    calls, so_far = [], contention._switched
    looks = count(1)
    contention.switches = lambda: so_far + switches * next(looks)
    contention.spin_less = lambda seconds: calls.append((len(used), seconds))
    used = []
    for _ in range(passes):
        used.append(contention.threads(4, 1, 4))
        contention.learn(used[-1], 1, 0.1, 0.05 * used[-1])
    return used, calls


def test_a_number_of_threads_that_the_user_chose_stays_and_they_spin_less_beside_busy_programs():
    now = 100.0
    contention = Contention(4, fixed=True, clock=lambda: now)
    with contention.reply():
        used, calls = spins_of(contention, 20)
        assert (used, len(calls)) == ([4] * 20, 1)
        assert contention.threads(4, 128, 4) == 4
        ((_, seconds),) = calls
        now += seconds / 0.9
        assert len(spins_of(contention, 20)[1]) == 1  # it is judged again, and the programs still run
        now += seconds / 0.9
        for _ in range(JUDGED_PASSES):
            contention.learn(4, 1, 0.1, 0.4)
        contention.threads(4, 1, 4)
        assert not contention.contended
        assert contention.settle() == ""
        assert spins_of(contention, 20, switches=10)[1] == []  # something else held up the passes


def test_threads_spin_less_where_a_reply_keeps_too_many_and_not_where_they_give_way():
    contention = Contention(4, clock=lambda: 100.0)
    assert spins_of(contention, 20)[1] == []
    contention = Contention(4, clock=lambda: 100.0)
    with contention.keeping():  # the programs begin after the reply's first token
        used, calls = spins_of(contention, 20)
        assert (used, len(calls)) == ([4] * 20, 1)


def test_a_context_decodes_with_the_threads_that_are_chosen(tiny_gguf):
    class Two:
        def threads(self, usual, width, reading):
            return 2 if width == 1 else usual

        def learn(self, *measured):
            seen.append(measured[:2])

    seen = []
    with Model(tiny_gguf(), gpu_layers=0) as model:
        context = Context(model, length=64, threads=3)
        context.threads.contention = Two()
        for tokens in ([1], [1, 2], [3]):
            context.decode(tokens, 1)
    assert seen == [(2, 1), (3, 2), (2, 1)]


def test_contention_does_not_decide_how_a_prompt_is_cut(tiny_gguf):
    with Model(tiny_gguf(), gpu_layers=0) as model:
        for limit in (None, 1):
            context = Context(model, length=512, threads=2)
            context.threads.contention = Contention(2, limit=limit)
            assert [len(batch.tokens) for batch in context.prefill([1] * 300)] == [128, 128, 44]


def test_a_prompt_gives_way_where_one_thread_decodes():
    """As in a chat on two cores: both read a prompt, as long as nobody else uses them, whatever a reply keeps."""
    now, counts = 100.0, Contention(2, clock=lambda: now)
    share, read = 1.0, []

    def chunk(width):
        nonlocal now
        used = counts.threads(1, width, 2)
        now += 0.3
        counts.learn(used, width, 0.3, 0.3 * used * (1.0 if used == 1 else share))
        return used

    with counts.keeping():
        read += [chunk(128), chunk(128)]
        share = 0.5
        read += [chunk(128), chunk(128), chunk(1), chunk(128)]
    assert read == [2, 2, 2, 1, 1, 1]
    assert counts.settle() == ""  # nothing that could change a text
    share, now = 1.0, now + 60.0
    with counts.reply():
        assert [chunk(128), chunk(128), chunk(1)] == [2, 2, 1]
        assert counts.settle() == ""


SHARES = st.sampled_from([0.2, 0.5, 1.0])  # of a pass's threads that get a core
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["begin", "settle", "end"]), st.integers(0, 2)),
        st.tuples(st.sampled_from([1, 5, 8, 128]), SHARES),
    ),
    max_size=80,
)


@given(EVENTS)
def test_the_number_stays_from_the_first_token_until_no_reply_runs_and_each_later_change_has_a_notice(events):
    now, running, first, reported = 0.0, {}, None, []
    counts = Contention(4, clock=lambda: now, usual=4)
    with ExitStack() as at_end:
        for kind, value in events:
            now += 0.7
            match kind:
                case "begin" if value not in running:
                    running[value] = at_end.enter_context(ExitStack())
                    running[value].enter_context(counts.reply())
                case "end" if value in running:
                    running.pop(value).close()
                    first = first if running else None
                case "settle" if value in running:
                    words = counts.settle()
                    used = counts.threads(4, 1, 4)
                    assert bool(words) == bool(reported and used != reported[-1])
                    assert f"{used} thread" in words or not words
                    reported.append(used)
                    assert used == (first or used)
                    first = used
                case int():
                    used = counts.threads(4, kind, 4)
                    if running and (first or kind == 1) and kind <= threads.WIDEST_DRAFT:
                        assert used == (first or used)
                        first = used
                    counts.learn(used, kind, 0.3, 0.3 * used * value)


def written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_on_intel_hybrids_linux_lists_the_performance_cores(tmp_path):
    """An i7-13700: eight of them with two threads each, eight slow cores."""
    devices = written(tmp_path, cpu_core__cpus="0-15\n", cpu_atom__cpus="16-23\n")
    assert fast_cpus(set(range(24)), devices) == set(range(16))
    assert fast_cpus({3, 15, 20}, devices) == {3, 15}


def test_a_process_that_may_run_on_slow_cores_alone_uses_them(tmp_path):
    devices = written(tmp_path, cpu_core__cpus="0-15")
    assert fast_cpus({16, 17}, devices) == {16, 17}


def test_on_arm_the_little_cores_have_less_capacity(tmp_path):
    capacities = {0: 1024, 1: 1024, 2: 870, 3: 430, 4: 430}
    files = {f"system__cpu__cpu{cpu}__cpu_capacity": f"{value}\n" for cpu, value in capacities.items()}
    assert fast_cpus(set(capacities), written(tmp_path, **files)) == {0, 1, 2}


@pytest.mark.parametrize("text", ["", "none"])
def test_where_linux_tells_nothing_every_core_counts(tmp_path, text):
    assert fast_cpus({0, 1, 2}, tmp_path) == {0, 1, 2}
    assert fast_cpus({0, 1, 2}, written(tmp_path, cpu_core__cpus=text)) == {0, 1, 2}


def test_on_windows_the_highest_efficiency_class_counts():
    """Two entries of 48 bytes for performance cores, three for efficiency cores."""

    def entry(efficiency_class: int) -> bytes:
        return bytes(4) + (48).to_bytes(4, "little") + bytes([1, efficiency_class]) + bytes(38)

    assert count_fastest(entry(1) + entry(0) + entry(1) + entry(0) * 2) == 2
    assert count_fastest(entry(0) * 6) == 6
