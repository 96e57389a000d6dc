"""What replies of several slots share, used from two threads that take turns at every step."""

import random
import sys
import threading
import traceback
from time import monotonic
from types import SimpleNamespace

import pytest

from localspec.algorithm.protocols import Proposal
from localspec.algorithm.verification import make_rule
from localspec.chat.request import Request
from localspec.events import Source
from localspec.llama.threads import Threads, yield_threads
from localspec.loading.drafting import Drafting, estimated_costs
from localspec.sampler.passes import ForwardPass
from localspec.sampler.sampling import Sampling
from tests.drafters.machine import Machine, cycle_of

SECONDS = 4.0
PROPOSAL = Proposal((1, 2, 3), (None,) * 3, (0.9, 0.8, 0.7), Source.MODEL, depth=3, runs=3)


def slots(folder):
    """The drafting of two slots of one pair on a CPU, with a draft, and the threads of each."""
    calling = threading.Condition()
    own = [SimpleNamespace(threads=Threads(4), calling=calling) for _ in range(2)]
    clocks = {"spin_less": float, "switches": int}
    yield_threads((each.threads for each in own), calling, fixed=False, **clocks)
    machines = [Machine(lambda width: 0.01 * width, 0.001, lambda position: position % 5) for _ in own]
    guess = estimated_costs("cpu", {"model": 0.1})
    first = Drafting(machines[:1], guess, most=8, decoding=own[:1], stored=folder / "lessons")
    second = Drafting(machines[1:], guess, most=8, decoding=own[1:], first=first)
    return (first, own[0].threads), (second, own[1].threads)


def reply(drafting, threads, seed, failures):
    """Do what a reply does with these, in any order."""
    chance, contention = random.Random(seed), threads.contention
    greedy = Sampling(temperature=0.0)
    strategy = drafting.strategy(make_rule("greedy", greedy, 0), Request(greedy))

    def cycle():
        replies = chance.randrange(1, 3)
        return cycle_of(PROPOSAL, chance.randrange(4), replies=replies, pass_width=4 * replies)

    steps = (
        lambda: strategy.propose(range(chance.choice((100, 3000, 5000, 20000))), 9),
        lambda: strategy.learn(cycle()),
        lambda: strategy.learn_prefill(ForwardPass(chance.choice((0, 4000)), (1,) * 20), chance.random()),
        lambda: (strategy.why_off, strategy.plain_step),
        drafting.store,
        contention.settle,
        lambda: contention.learn(threads.wanted(chance.choice((1, 4, 99))), 1, 0.3, chance.random()),
    )
    try:
        for _ in range(50):
            with contention.reply():
                for step in chance.choices(steps, k=4):
                    step()
    except Exception:  # noqa: BLE001  any of them is the finding
        failures.append(traceback.format_exc())


@pytest.mark.nightly
def test_two_replies_may_use_at_once_what_they_share(tmp_path):
    failures, before = [], sys.getswitchinterval()
    end, number = monotonic() + SECONDS, 0
    sys.setswitchinterval(1e-6)
    try:
        while monotonic() < end and not failures:
            number += 1
            own = [
                threading.Thread(target=reply, args=(*slot, f"{number} {thread}", failures))
                for thread, slot in enumerate(slots(tmp_path / str(number)))
            ]
            for thread in own:
                thread.start()
            for thread in own:
                thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not failures, failures[0]
