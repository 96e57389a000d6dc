"""What replies of several slots share: every method of it, from two threads that take turns at every step."""

import inspect
import random
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import is_dataclass, replace
from enum import Enum
from functools import partial
from time import monotonic
from typing import get_type_hints

import pytest

from localspec.algorithm.protocols import Backlog, Drafter, Proposal, Rule
from localspec.algorithm.verification import make_rule
from localspec.chat.options import Request, request_from
from localspec.control.concurrent import SlotState
from localspec.control.costs import Costs, CostTable
from localspec.events import Cycle, Source
from localspec.llama.context import Context
from localspec.llama.context import SlotDecoder as Decoded
from localspec.llama.threads import Threads, processor_time, yield_threads
from localspec.loading.drafting import Drafting, estimated_costs
from localspec.sampler.passes import ForwardPass
from localspec.sampler.sampling import Sampling
from tests.drafters.machine import Machine, cycle_of

SECONDS = 4.0
FIRST_SLOT = "_first"  # an attribute that leads from one slot to everything of another


def rule():
    return make_rule("greedy", Sampling(temperature=0.0), 0)


class Slot:
    """A slot's own part of drafting, and the reply on it."""

    def __init__(self, drafting):
        self.drafting = drafting
        self.strategy = drafting.strategy_at(None, rule(), sampled=False)
        self.processor_time = processor_time


class Decoding:
    """The part of a slot of llama.cpp that drafting sees."""

    def __init__(self):
        self.threads = Threads(4)
        self.alone = False


def slots(folder):
    """Two slots of one pair on a CPU, with a draft."""
    own = [Decoding(), Decoding()]
    yield_threads(each.threads for each in own)
    machines = [Machine(lambda width: 0.01 * width, 0.001, lambda position: position % 5) for _ in own]
    guess = estimated_costs("cpu", {"model": 0.1})
    first = Drafting(machines[:1], guess, most=8, decoding=own[:1], stored=folder / "lessons")
    return Slot(first), Slot(Drafting(machines[1:], guess, most=8, decoding=own[1:], first=first))


def attributes(owner):
    if isinstance(owner, Mapping):
        return [*owner.keys(), *owner.values()]
    if isinstance(owner, (list, tuple, set, frozenset)):
        return list(owner)
    if not type(owner).__module__.startswith(("localspec", __name__)):
        return []
    slots = {name for kind in type(owner).__mro__ for name in getattr(kind, "__slots__", ())}
    names = (vars(owner).keys() if hasattr(owner, "__dict__") else set()) | slots
    if hasattr(owner, "lock"):  # nobody else calls what is inside
        names = {name for name in names if not name.startswith("_")}
    return [getattr(owner, name) for name in names - {FIRST_SLOT} if hasattr(owner, name)]


def reached(owner):
    """All objects that an object leads to, by identity."""
    found, left = {}, [owner]
    while left:
        if id(each := left.pop()) not in found:
            found[id(each)] = each
            left += attributes(each)
    return found


def changes(owner):
    """Whether an object is one of localspec's that can change."""
    frozen = is_dataclass(owner) and type(owner).__dataclass_params__.frozen
    return type(owner).__module__.startswith("localspec") and not frozen and not isinstance(owner, Enum)


def entrances(slot, other):
    """The objects of one slot that are, or lead to, what another slot reaches as well."""
    own = {number: each for number, each in reached(slot).items() if changes(each)}
    shared = own.keys() & reached(other).keys()
    return [each for each in own.values() if shared & reached(each).keys()]


def calls_of(owner):
    """Every public method and property of an object, as a function of arguments, with the types of these."""
    for name in (name for name in dir(type(owner)) if not name.startswith("_")):
        member = inspect.getattr_static(type(owner), name)
        if isinstance(member, property):
            yield name, partial(getattr, owner, name), {}
        elif inspect.isfunction(member):
            hints = get_type_hints(member)
            yield name, getattr(owner, name), {n: h for n, h in hints.items() if n != "return"}


class Arguments:
    """A value of every type that a method takes: a method with another type needs a line here."""

    def __init__(self, slot, seed):
        self.random = chance = random.Random(seed)
        self.slot = slot
        proposal = Proposal((1, 2, 3), (None,) * 3, (0.9, 0.8, 0.7), Source.MODEL, depth=3, runs=3)
        table = CostTable((1, 2, 8), (0.01, 0.012, 0.02), {"model": 0.001})
        self.values = {
            bool: lambda: chance.random() < 0.5,
            int: lambda: chance.choice((1, 1, 2, 3, chance.randrange(1, 20))),
            float: lambda: chance.uniform(0.01, 0.02),
            str: lambda: "model",
            int | None: lambda: chance.choice((None, 0, 2)),
            float | None: lambda: chance.choice((None, 0.02)),
            Context | None: lambda: None,
            Sequence[int]: lambda: [5] * chance.randrange(1, 50),
            Sequence[Drafter]: list,
            Sequence[Decoded]: lambda: [Decoding()],
            Callable[[], bool]: lambda: lambda: False,
            Backlog: lambda: Backlog(chance.randrange(50), 20, 9),
            Costs: lambda: slot.drafting.costs,
            CostTable: lambda: replace(table, replies=chance.randrange(1, 3)),
            Cycle: lambda: cycle_of(
                proposal, chance.randrange(4), replies=chance.randrange(1, 3), pass_width=6
            ),
            ForwardPass: lambda: ForwardPass(0, (1, 2, 3)),
            Proposal: lambda: proposal,
            Request: lambda: request_from({"depth": "auto"}, Sampling()),
            Rule: rule,
            SlotState: lambda: slot.strategy._slot,
        }

    def of(self, name, hint):
        if name == "context_tokens":
            return self.random.choice((100, 3000, 5000, 9000, 20000))
        assert hint in self.values, f"say which {hint} a method can be given as {name}"
        return self.values[hint]()


def calls_from(slot, other, number):
    """Two methods of one class, or all of all: the calls of a thread, found while no other thread runs."""
    calls = [(type(o).__name__, call) for o in entrances(slot, other) for call in calls_of(o)]
    kinds = sorted({kind for kind, _ in calls})
    if (place := number % (len(kinds) + 1)) == len(kinds):
        return [call for _, call in calls]
    calls = [call for kind, call in calls if kind == kinds[place]]
    names = sorted({name for name, _, _ in calls})
    names = random.Random(number).sample(names, min(2, len(names)))  # the same in both threads: they meet
    return [call for call in calls if call[0] in names]


def use(slot, calls, seed, failures):
    """Call methods with arguments, in any order; contexts that they return are entered."""
    arguments, name = Arguments(slot, seed), ""
    try:
        for _ in range(150):
            name, call, hints = arguments.random.choice(calls)
            given = {each: arguments.of(each, hint) for each, hint in hints.items()}
            found = call(**given)
            with found if hasattr(found, "__enter__") else nullcontext():
                pass
    except Exception as error:  # noqa: BLE001  any of them is the finding
        failures.append(f"{name}: {error!r} {traceback.format_exc()[-600:]}")


@pytest.mark.nightly
def test_every_method_of_what_replies_share_stands_two_threads(tmp_path):
    failures, before = [], sys.getswitchinterval()
    end, number = monotonic() + SECONDS, 0
    sys.setswitchinterval(1e-6)
    try:
        while monotonic() < end and not failures:
            both, number = slots(tmp_path / str(number)), number + 1
            calls = [calls_from(slot, other, number) for slot, other in (both, both[::-1])]
            own = [
                threading.Thread(target=use, args=(slot, each, f"{number} {thread}", failures))
                for thread, (slot, each) in enumerate(zip(both, calls, strict=True))
            ]
            for thread in own:
                thread.start()
            for thread in own:
                thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not failures, failures[0]


def test_the_objects_that_replies_share_are_found(tmp_path):
    found = {type(each).__name__ for each in entrances(*slots(tmp_path))}
    shared = {"ConcurrentReplies", "Costs", "CostsByContext", "PlainProbes", "Contention", "ProcessorTime"}
    assert found == shared | {"Drafting", "DrafterSelection", "DepthControl", "Threads"}
