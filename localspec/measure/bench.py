"""A benchmark: decode the same prompts plainly and with drafting, in turns, until the time is up."""

import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from importlib.resources import files
from itertools import chain, count, product, zip_longest
from time import perf_counter
from typing import Unpack

from localspec.chat.session import Session, last_reply
from localspec.errors import ContextFull
from localspec.events import FinishReason, Reply, Stats
from localspec.options import ReplyOptions


class Category(StrEnum):
    """The kind of text that a prompt requests; the acceptance rate depends most on this kind."""

    CODE = "code"
    CHAT = "chat"
    PROSE = "prose"
    JSON = "json"
    EDIT = "edit"  # a request to copy a text with few changes
    LONG = "long"  # a question about a long document
    CALL = "call"  # an edit whose result is an argument of a tool call


_WRITE_FILE = {
    "name": "write_file",
    "description": "Write a file",
    "parameters": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
        "required": ["path", "content"],
    },
}
CALLING = ReplyOptions(tools=[{"type": "function", "function": _WRITE_FILE}], tool_choice="write_file")


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    name: str
    category: Category
    text: str

    @property
    def options(self) -> ReplyOptions:
        """The tools of the request, for a prompt whose reply is a tool call."""
        return CALLING if self.category is Category.CALL else ReplyOptions()


def _prompts(kind: str) -> tuple[BenchPrompt, ...]:
    """Return the prompts of the table `kind` in prompts.toml.

    A prompt has its document before its question. In prompts for tool calls, the edit comes before the question.
    """
    table = tomllib.loads(files("localspec.measure").joinpath("prompts.toml").read_text("utf-8"))
    prompts = []
    for entry in table[kind]:
        parts = [table["documents"][entry["document"]]] if "document" in entry else []
        parts += [each["text"] for each in table[kind] if each["name"] == entry.get("edit")]
        text = "\n\n".join(part.strip() for part in [*parts, entry["text"]])
        prompts.append(BenchPrompt(entry["name"], Category(entry["category"]), text))
    return tuple(prompts)


def in_turn(prompts: Sequence[BenchPrompt]) -> tuple[BenchPrompt, ...]:
    """Return the first prompt of every category, then the second of each, and so on."""
    by_category = [[p for p in prompts if p.category is category] for category in Category]
    return tuple(p for p in chain.from_iterable(zip_longest(*by_category)) if p is not None)


BUILT_IN_PROMPTS, VERIFY_PROMPTS = _prompts("prompt"), _prompts("verify")


@dataclass(frozen=True, slots=True)
class Arm:
    """One of the settings that a bench compares."""

    depth: int | None  # draft depth; None: automatic; 0: plain decoding

    @property
    def name(self) -> str:
        return "auto" if self.depth is None else f"depth {self.depth}" if self.depth else "plain"

    def options(self) -> ReplyOptions:
        if self.depth == 0:
            return {"speculate": False}
        return {"speculate": True, "depth": "auto" if self.depth is None else self.depth}


PLAIN, AUTO = Arm(0), Arm(None)


@dataclass(frozen=True, slots=True)
class BenchBlock:
    """One prompt that is answered once with each compared setting (arm)."""

    prompt: BenchPrompt
    temperature: float
    round: int
    arms: tuple[Arm, ...]  # the settings in the order in which they run


@dataclass(frozen=True, slots=True)
class Measurement:
    """The measured values of one reply."""

    prompt: str
    category: Category
    temperature: float
    round: int
    arm: str
    prompt_tokens: int
    reused_tokens: int  # prompt tokens that were in the KV cache
    prefill_seconds: float
    decode_seconds: float
    emitted: int
    cycles: int
    drafted: int
    accepted: int
    draft_seconds: float
    verify_seconds: float  # seconds of the target's passes
    finish_reason: FinishReason

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens / decode seconds."""
        return self.emitted / self.decode_seconds


COUNTS = [field.name for field in fields(Measurement) if hasattr(Stats, field.name)]


@dataclass(frozen=True, slots=True)
class BenchOutcome:
    """The measurements of every block that was finished with all settings."""

    measurements: tuple[Measurement, ...]
    too_long: tuple[str, ...]  # names of prompts that did not fit in the context
    stopped: bool  # whether the user ended the bench before a limit


def blocks(
    prompts: Sequence[BenchPrompt], temperatures: Sequence[float], arms: Sequence[Arm]
) -> Iterator[BenchBlock]:
    """Yield endless rounds of blocks. A round has each prompt once, and its categories take turns.

    The order of a prompt's arms changes from round to round, because a machine slows down as it warms up.
    """
    ordered = in_turn(prompts)
    places = {p.name: [q for q in ordered if q.category is p.category].index(p) for p in ordered}
    for number in count():
        for prompt, (nth, temperature) in product(ordered, enumerate(temperatures)):
            turn = places[prompt.name] + nth + number
            start = turn // 2 % len(arms)
            order = (*arms[start:], *arms[:start])
            yield BenchBlock(prompt, temperature, number, order[::-1] if turn % 2 else order)


def bench(
    session: Session,
    prompts: Sequence[BenchPrompt],
    arms: Sequence[Arm],
    temperatures: Sequence[float],
    rounds: int | None = None,
    seconds: float | None = None,
    max_tokens: int = 128,
    *,
    on_step: Callable[[BenchBlock, Arm, float], None] = lambda *step: None,
    stopped: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = perf_counter,
) -> BenchOutcome:
    """Run blocks for `rounds` rounds over the prompts or for `seconds`, or until `stopped` returns True.

    `on_step`: called before each reply, with the seconds since the bench began.
    """
    began, measured, too_long = clock(), list[Measurement](), list[str]()
    with session.pair.threads.keeping():
        for arm in arms:  # first an untimed reply with each setting, because a first reply allocates memory
            if not stopped():
                answer(session, "Say hello.", arm, temperature=temperatures[0], max_tokens=12)
        session.calibrate(stop=stopped)
        for block in blocks(prompts, temperatures, arms):
            time_is_up = seconds is not None and clock() - began >= seconds
            nothing_left = block.round == rounds or len(too_long) == len(prompts)
            if stopped() or nothing_left or (time_is_up and measured):
                break
            if block.prompt.name in too_long:
                continue
            try:
                found = list[Measurement]()
                for arm in block.arms:
                    on_step(block, arm, clock() - began)
                    limited = ReplyOptions(
                        temperature=block.temperature, max_tokens=max_tokens, overflow="error"
                    )
                    reply = answer(session, block.prompt.text, arm, **(limited | block.prompt.options))
                    about = block.prompt.name, block.prompt.category, block.temperature, block.round, arm.name
                    counts = {name: getattr(reply.stats, name) for name in COUNTS}
                    found.append(Measurement(*about, finish_reason=reply.finish_reason, **counts))
                    if stopped():
                        return BenchOutcome(tuple(measured), tuple(too_long), True)
            except ContextFull:
                too_long.append(block.prompt.name)
                continue
            measured += found
    return BenchOutcome(tuple(measured), tuple(too_long), stopped())


def answer(session: Session, prompt: str, arm: Arm, **options: Unpack[ReplyOptions]) -> Reply:
    """Answer a prompt in an empty conversation, without a seed, because a seed would change the acceptance rule."""
    session.reset()
    return last_reply(session.stream(prompt, **ReplyOptions(seed=None) | arm.options() | options))
