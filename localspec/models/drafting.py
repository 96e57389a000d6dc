"""The drafting of a loaded pair: makes the strategy of each reply, and stores what the pair teaches."""

import functools
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from types import MappingProxyType

from localspec import settings
from localspec.algorithm.protocols import Drafter, Rule, Strategy, Vocabulary
from localspec.chat.options import Request, seed_fixes_depth
from localspec.control.calibration import NARROW, WIDE, calibrate
from localspec.drafters.drafting import DEPTHS, Drafting, TunedState, guess_for
from localspec.drafters.model import FAILURES
from localspec.files import Store
from localspec.llama.context import Context
from localspec.llama.devices import backend_summary, devices
from localspec.llama.threads import Threads
from localspec.models.plan import Plan
from localspec.models.registry import Pair

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32)  # that verify batches mostly have
DRAFT_WIDTHS = (1, 2)
CPU_SECONDS = 0.1  # nothing is compiled there: a first pass takes 1.0 to 1.4 times as long as a later one
GPU_SECONDS = 3.0
CALIBRATION_SECONDS = 2.0  # once for a pair on a GPU: the costs are stored

PARAGRAPH = """\
The ferry left at ten past six, two hours late, with nineteen passengers and a dog. Mrs Okafor, who had kept the \
ticket office since 1987, counted them twice and wrote the number on the back of an envelope. "You will want the \
other harbour," she told the engineer, "the one behind the salt works; ours has been too shallow since the storm." \
He thanked her in three languages and asked what a room cost. Prices had gone up: 42.50 for a single, 61.00 with \
breakfast, and nothing at all if you could mend the pump. So he wrote a short program to find out how long that \
would take:

def hours(litres: float, rate: float = 3.2) -> float:
    return round(litres / rate / 60, 1)

for name, litres in {"cellar": 1200, "yard": 450}.items():
    print(f"{name}: {hours(litres)} h")
"""


def ordinary_tokens(vocabulary: Vocabulary) -> list[int]:
    """Tokens of a text of many kinds, to measure on: what a mixture of experts costs depends on them."""
    return list(vocabulary.tokenize(PARAGRAPH, parse_special=False))


class _GivenUp(Exception):
    """A measurement that somebody waits for the end of."""


class PairDrafting:
    """Who drafts for a target: its draft model, lookup in the text, or nobody."""

    def __init__(
        self,
        target: Context,
        drafters: Sequence[Drafter],
        *,
        threads: Sequence[Threads] = (),
        run_shares: Mapping[str, float] = MappingProxyType({}),
        starting_depth: int,
        deepest: int,
        device: str = "cpu",
        key: Mapping[str, str] | None = None,
    ) -> None:
        """`drafters` run models, with these `threads`; `run_shares`: what a run of one probably takes of a plain step,
        by `Drafter.source`. `starting_depth` is for seeded replies.

        `deepest`: what one verify batch can hold of a draft.

        `device`: where the target is: cuda, cpu, ... `key`: the files, devices and threads that the lessons
        belong to; without one nothing is stored.
        """
        limit = target.rollback_limit
        self._target = target
        self._drafters = drafters
        self._threads = (target.threads, *threads)
        self._starting_depth = starting_depth
        self.seeds_keep_threads = True  # those that a measurement draws for itself do not
        self._store = Store(settings.data_dir() / "lessons")
        self._key = key
        known = self._store.load(key, TunedState) if key else None
        self.drafting = Drafting(
            drafters,
            guess_for(device, run_shares),
            DEPTHS,
            most=deepest if limit is None else min(deepest, limit),
            lessons=known,
            # Rows that fill a batch have to be taken back, and would ask a mixture for experts of their own.
            pads=device != "cpu" and target.model.can_roll_back and target.model.expert_count == 0,
            threads=lambda: target.threads.now,
        )

    def strategy(self, rule: Rule, request: Request, predicted: Sequence[int] = ()) -> Strategy:
        """The strategy of one reply: automatic, at a fixed depth, or none; `predicted`: tokens expected of it."""
        for threads in self._threads:
            threads.fixed = self.seeds_keep_threads and request.seed is not None and not rule.seed_decides
        depth = request.depth if request.speculate else 0
        if seed_fixes_depth(request, rule):
            known = self.drafting.seeded_depth
            depth = self._starting_depth if known is None else known
        return self.drafting.strategy(
            rule,
            depth=depth,
            sampled=not request.sampling.greedy,
            seeded=request.seed is not None,
            predicted=predicted,
        )

    @property
    def crowded(self) -> bool:
        """Whether other programs keep the processor busy that a model is on."""
        return any(threads.crowded for threads in self._threads)

    def store(self) -> None:
        """Keep what was learned for the next run; a folder that cannot be written costs only that."""
        try:
            if self._key is not None:
                self._store.save(self._key, self.drafting.lessons)
        except OSError as error:
            tell_not_stored(settings.data_dir(), error.strerror or str(error))

    def calibrate(self, text: Sequence[int], budget_seconds: float, stop: Callable[[], bool]) -> None:
        """Measure what batches of such tokens cost, unless that is known already; the caches end as they began."""
        if self.drafting.costs.measured or self.drafting.failed or self._target.rollback_limit is not None:
            return  # a recurrent state cannot step back over the widest batches
        widths = [width for width in NARROW + WIDE if width <= self._target.rows_max]
        length = self._target.length

        def clock() -> float:
            """Read between any two batches, so that whoever waits is noticed in time."""
            if stop():
                raise _GivenUp
            return perf_counter()

        try:
            table = calibrate(
                self._target, self._drafters, text, budget_seconds=budget_seconds, clock=clock, widths=widths
            )
        except (_GivenUp, *FAILURES):  # a drafter without room cannot be timed, and is no free one
            self._target.rollback(length)
            return
        if table is not None:
            self.drafting.calibrated(table)
            self.store()


def lessons_key(pair: Pair, plan: Plan, threads: int) -> dict[str, str]:
    """What lessons belong to: the same files, loaded alike on the same devices with the same llama.cpp."""
    summary, inside = backend_summary(), plan.draft.kind.removeprefix("draft-") if plan.draft else ""
    return {
        "target": identity(pair.target.here),
        "draft": identity(pair.draft.here) if plan.draft and pair.draft else inside,
        "adapters": _adapters(pair),
        "threads": str(threads),
        "devices": ", ".join(device.description for device in devices()),
        "places": f"{plan.target.place}, {plan.draft and plan.draft.place}",
        "caches": f"{plan.target.kv_type}, {plan.draft and plan.draft.kv_type}",
        "build": f"{summary.binding_version} {summary.system_info}",
    }


@functools.cache  # a folder that cannot be written is worth one sentence in a process
def tell_not_stored(folder: Path, why: str) -> None:
    log.warning("what is learned about pairs cannot be stored in %s: %s", folder, why)


def identity(path: Path) -> str:
    facts = path.stat()
    return f"{path.resolve()}:{facts.st_size}:{facts.st_mtime_ns}"


def _adapters(pair: Pair) -> str:
    return ", ".join(f"{identity(path)} x {scale}" for path, scale in pair.lora)


def logit_folder(pair: Pair) -> Path:
    """Where the log of a target and its adapters is: another folder for every version of a file."""
    which = f"{identity(pair.target.here)}\n{_adapters(pair)}"
    return logits_dir() / hashlib.sha256(which.encode()).hexdigest()[:24]


def logits_dir() -> Path:
    return settings.data_dir() / "logits"


def replies_dir() -> Path:
    """Where older versions kept replies, to draft from them."""
    return settings.data_dir() / "replies"


def warm_up(target: Context, drafters: Sequence[Drafter], drafting: PairDrafting) -> None:
    """Decode batches of the common widths on the target and let drafters run their models; all end empty.

    On a GPU costs that nobody knows yet are then measured. Raises what the target's `decode` raises.
    """
    text = ordinary_tokens(target.model.vocab)
    warm(target, WIDTHS, text)
    for drafter in drafters:
        try:
            drafter.warm_up([text[:width] for width in DRAFT_WIDTHS])
        except FAILURES:
            return  # it meets the failure again and tells the user
    if target.model.gpu:
        drafting.calibrate(text, CALIBRATION_SECONDS, stop=lambda: False)


def warm(context: Context, widths: Sequence[int], text: Sequence[int]) -> None:
    began = perf_counter()
    for width in widths:
        tokens = text[: min(width, context.capacity)]
        context.decode(tokens, rows=min(len(tokens), context.rows_max))
        context.rollback(0)
        if perf_counter() - began > (GPU_SECONDS if context.model.gpu else CPU_SECONDS):
            return


log = logging.getLogger(__name__)
