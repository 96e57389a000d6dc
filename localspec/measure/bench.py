"""Plain against speculative decoding on the same prompts, in turns, until the time is up."""

import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from importlib.resources import files
from itertools import chain, zip_longest
from time import perf_counter

from localspec.chat.session import Session
from localspec.errors import ContextFull
from localspec.events import Cycle, Event, Finished, FinishReason, Piece, Prefill, Reply, Started, Stats
from localspec.options import ReplyOptions


class Category(StrEnum):
    """The kind of text that a prompt asks for; the acceptance rate depends on it most."""

    CODE = "code"
    CHAT = "chat"
    PROSE = "prose"
    JSON = "json"
    EDIT = "edit"  # a text to be returned with few changes
    LONG = "long"  # a question about a long document


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    name: str
    category: Category
    text: str


def _prompts(kind: str) -> tuple[BenchPrompt, ...]:
    """The prompts of one table of prompts.toml, each behind the document that it is about."""
    table = tomllib.loads(files("localspec.measure").joinpath("prompts.toml").read_text("utf-8"))
    found = []
    for entry in table[kind]:
        parts = [table["documents"][entry["document"]]] if "document" in entry else []
        text = "\n\n".join(part.strip() for part in [*parts, entry["text"]])
        found.append(BenchPrompt(entry["name"], Category(entry["category"]), text))
    return tuple(found)


def built_in_prompts() -> tuple[BenchPrompt, ...]:
    """Every prompt of bench that comes with localspec."""
    return _prompts("prompt")


def in_turn(prompts: Sequence[BenchPrompt]) -> tuple[BenchPrompt, ...]:
    """The first prompt of every category, then the second of each: wherever one stops, all had their turn."""
    by_category = [[p for p in prompts if p.category is category] for category in Category]
    return tuple(p for p in chain.from_iterable(zip_longest(*by_category)) if p is not None)


VERIFY_PROMPTS = _prompts("verify")


WARM_UP_TOKENS = 12


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to decode."""

    depth: int | None  # None is auto, 0 plain decoding

    @property
    def name(self) -> str:
        return "auto" if self.depth is None else f"depth {self.depth}" if self.depth else "plain"

    def options(self) -> ReplyOptions:
        if self.depth == 0:
            return {"speculate": False}
        return {"speculate": True, "depth": "auto" if self.depth is None else self.depth}


PLAIN, AUTO = Arm(0), Arm(None)


@dataclass(frozen=True, slots=True)
class Block:
    """One prompt, once with every arm, one right after the other."""

    prompt: BenchPrompt
    temperature: float
    round: int
    arms: tuple[Arm, ...]  # in the order in which they run


@dataclass(frozen=True, slots=True)
class Measurement:
    """One reply of one arm."""

    prompt: str
    category: Category
    temperature: float
    round: int
    arm: str
    prompt_tokens: int
    reused_tokens: int  # of the prompt, found in the cache
    prefill_seconds: float
    decode_seconds: float  # from the end of the prefill to the end of the reply, by the clock on the wall
    emitted: int
    cycles: int
    drafted: int
    accepted: int
    draft_seconds: float  # inside the draft model
    finish_reason: FinishReason

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens / decode seconds: replies may differ in length, so seconds are not compared."""
        return self.emitted / self.decode_seconds


@dataclass(frozen=True, slots=True)
class BenchStep:
    """The progress of a bench: the next reply."""

    block: Block
    arm: Arm
    blocks_done: int
    seconds: float  # since the bench began


@dataclass(frozen=True, slots=True)
class Limits:
    """When a bench ends: after the rounds, or when the time is up, whichever comes first."""

    rounds: int | None = None  # over all prompts
    seconds: float | None = None
    max_tokens: int = 128  # of every reply, with every arm


@dataclass(frozen=True, slots=True)
class BenchOutcome:
    """The measurements of every block that all arms finished."""

    measurements: tuple[Measurement, ...]
    too_long: tuple[str, ...]  # prompts that the context has no room for
    stopped: bool  # by the user, before the limits


def blocks(
    prompts: Sequence[BenchPrompt], temperatures: Sequence[float], arms: Sequence[Arm]
) -> Iterator[Block]:
    """Endless rounds, one category after the other; the first arm changes every time.

    Within a category, a temperature and a prompt the order of the arms turns around from one block to the
    next, so that first-run costs and a machine that grows warm affect all alike.
    """
    ordered = in_turn(prompts)
    places = {p.name: [q for q in ordered if q.category is p.category].index(p) for p in ordered}
    number = 0
    while True:
        for prompt in ordered:
            for nth, temperature in enumerate(temperatures):
                yield Block(prompt, temperature, number, turned(arms, places[prompt.name] + nth + number))
        number += 1


def turned(arms: Sequence[Arm], number: int) -> tuple[Arm, ...]:
    """Even numbers begin with another arm each time, and the odd number after it has the reverse order."""
    start = number // 2 % len(arms)
    order = (*arms[start:], *arms[:start])
    return order[::-1] if number % 2 else order


def bench(
    session: Session,
    prompts: Sequence[BenchPrompt],
    arms: Sequence[Arm],
    temperatures: Sequence[float],
    limits: Limits,
    *,
    on_step: Callable[[BenchStep], None] = lambda step: None,
    stopped: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = perf_counter,
) -> BenchOutcome:
    """Run blocks until a limit or `stopped`; tries at least one block."""
    began, measured, too_long = clock(), list[Measurement](), list[str]()
    warm_up(session, arms, temperatures, stopped)
    blocks_done = 0
    for block in blocks(prompts, temperatures, arms):
        time_is_up = limits.seconds is not None and clock() - began >= limits.seconds
        nothing_left = block.round == limits.rounds or len(too_long) == len(prompts)
        if stopped() or nothing_left or (time_is_up and measured):
            break
        if block.prompt.name in too_long:
            continue
        try:
            found = list[Measurement]()
            for arm in block.arms:
                on_step(BenchStep(block, arm, blocks_done, clock() - began))
                found.append(measure(session, block, arm, limits.max_tokens, clock))
                if stopped():
                    return BenchOutcome(tuple(measured), tuple(too_long), True)
        except ContextFull:
            too_long.append(block.prompt.name)
            continue
        measured += found
        blocks_done += 1
    return BenchOutcome(tuple(measured), tuple(too_long), stopped())


def warm_up(
    session: Session, arms: Sequence[Arm], temperatures: Sequence[float], stopped: Callable[[], bool]
) -> None:
    """The first reply of each kind allocates memory, so it is not timed."""
    for arm in arms:
        if not stopped():
            session.reset()
            options = ReplyOptions(temperature=temperatures[0], max_tokens=WARM_UP_TOKENS, seed=None)
            for _ in session.stream("Say hello.", **arm.options() | options):
                pass


def measure(
    session: Session, block: Block, arm: Arm, max_tokens: int, clock: Callable[[], float]
) -> Measurement:
    """One reply to a conversation that holds nothing else.

    It ignores a configured seed, which would fix the depth.
    """
    session.reset()
    options = ReplyOptions(temperature=block.temperature, max_tokens=max_tokens, overflow="error", seed=None)
    reply, decode_seconds = timed(session.stream(block.prompt.text, **arm.options() | options), clock)
    counted = {f.name: getattr(reply.stats, f.name) for f in fields(Measurement) if hasattr(Stats, f.name)}
    return Measurement(
        prompt=block.prompt.name,
        category=block.prompt.category,
        temperature=block.temperature,
        round=block.round,
        arm=arm.name,
        finish_reason=reply.finish_reason,
        **counted | {"decode_seconds": decode_seconds},
    )


def timed(events: Iterator[Event], clock: Callable[[], float]) -> tuple[Reply, float]:
    """The reply, and the seconds from the end of its prompt to the end of its text, by a reader's clock."""
    began = ended = clock()
    for event in events:
        match event:
            case Started() | Prefill():
                began = clock()
            case Cycle() | Piece():
                ended = clock()
            case Finished(reply=reply):
                return reply, ended - began
    raise AssertionError("a run ends with Finished")
