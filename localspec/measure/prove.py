"""One part of a machine's proof, in a process of its own: a driver can end it.

    python -m localspec.measure.prove JSON        the fields of Part

Prints one JSON object for each finding, as soon as it is known. Ends with its stdin, because its parent may be killed.
"""

import json
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from localspec import api
from localspec.algorithm.protocols import Decoder
from localspec.errors import LocalspecError
from localspec.llama.context import Context
from localspec.llama.first_decode import end_with_stdin
from localspec.llama.model import Model
from localspec.measure import tune as tuning
from localspec.measure.bench import AUTO, PLAIN, Arm, Category, Limits, bench, built_in_prompts
from localspec.measure.race import CROWDED
from localspec.measure.summary import Decision, headlines, report, summarise, verdict
from localspec.measure.verified import missing, problems
from localspec.measure.verified import report as verified
from localspec.measure.verify import DEPTH
from localspec.measure.verify import verify as verify_pair
from localspec.models.drafting import ordinary_tokens
from localspec.models.load import connect
from localspec.sampler.passes import standing

TEXT, KV_TYPES = tuple(range(3, 43)), {"f16": 0.999, "q8_0": 0.99, "q4_0": 0.9}  # least correlation
PROMPT, NEAR_TIES = "What is speculative decoding?", 10  # tokens that must agree
HELD, CYCLES = 5, 24  # of the comparison of padded passes with others
CLEARLY = 0.95  # a ratio nearer to 1 is noise
KINDS = (Category.CODE, Category.CHAT, Category.PROSE)  # of bench: few, so that each has several prompts
LAYERS_1, LAYERS_2 = {"gpu_layers": 1}, {"gpu_layers": 2}


@dataclass(frozen=True, slots=True)
class Part:
    """What a child process is to find out, and within how many seconds about."""

    name: str
    seconds: float
    device: str
    demo: str  # the path of the demo's target
    load: dict[str, Any] = field(default_factory=dict)  # the pair, for `api.load`
    rpc: str = ""
    flash: bool = True  # whether the device can do flash attention, which caches of 8 bits take


@dataclass(frozen=True, slots=True)
class Finding:
    """A paragraph or a row of a table; the head of the page names parts with failed and with missing ones."""

    text: str
    failed: bool = False
    missing: bool = False  # it says what was left out
    pass_seconds: float = 0.0  # of a pass over one token of the demo


def judged(start: str, found: str, needed: str, *, failed: bool) -> Finding:
    """A row of a table of checks."""
    return Finding(f"{start} {found} | {needed} | {'FAILED' if failed else 'passed'} |", failed=failed)


def rows(part: Part) -> Iterator[Finding]:
    """Logits of the demo's target there beside the CPU's, or of its coarse caches beside f16; the time of a pass."""
    begun, on_cpu = perf_counter(), part.device == "CPU"
    whole, _ = rows_on(part.demo, "f16", devices=(part.device,))
    _, seconds = rows_on(part.demo, "f16", devices=(part.device,))
    beside = "those of an f16 cache" if on_cpu else "the CPU's"
    yield Finding(
        f"{len(whole)} rows of logits of the demo's target beside {beside}; a correlation of 1 is equal. "
        f"A pass over one token takes {seconds * 1000:.2f} ms.",
        pass_seconds=seconds,
    )
    yield Finding(f"| KV cache | layers on {part.device} | correlation | at least | |\n|---|---|---|---|---|")
    wanted = [
        (kv, place) for kv in KV_TYPES for place in ({}, *([LAYERS_1, LAYERS_2] if kv == "f16" else []))
    ]
    for kv, place in wanted[3:] if on_cpu else wanted:
        start = f"| {kv} | {place.get('gpu_layers', 'all')} |"
        if why := left_out(part, begun, kv):
            yield Finding(f"{start} | {KV_TYPES[kv]} | {why} |", missing=True)
            continue
        there, _ = rows_on(part.demo, kv, devices=(part.device,), **place)
        found = like(whole if on_cpu else rows_on(part.demo, kv, devices=("CPU",))[0], there)
        yield judged(start, f"{found:.5f}", str(KV_TYPES[kv]), failed=not found > KV_TYPES[kv])


def left_out(part: Part, begun: float, kv_type: str) -> str:
    """Why a check is left out; "" if it is made."""
    if kv_type != "f16" and not part.flash:
        return "left out: it takes flash attention"
    return "left out for time" if perf_counter() - begun > part.seconds else ""


def rows_on(path: str, kv_type: str, **place: Any) -> tuple[np.ndarray, float]:  # noqa: ANN401
    """Rows of a prompt, of single tokens and of five at once; and the seconds of a pass over one token."""
    with (
        Model(Path(path), **place) as model,
        Context(model, length=256, kv_type_k=kv_type, kv_type_v=kv_type) as context,
    ):
        found = [np.array(context.decode(TEXT, 1).rows[0])]
        found += [np.array(context.decode([token], 1).rows[0]) for token in (5, 6)]
        found += [np.array(row) for row in context.decode([7, 8, 9, 10, 11], 5).rows]
        seconds = list[float]()
        for token in (5, 6, 7, 8):
            began = perf_counter()
            context.decode([token], 1)
            seconds.append(perf_counter() - began)
        return np.stack(found), min(seconds)  # other programs can only add to it


def like(rows: np.ndarray, others: np.ndarray) -> float:
    """Their correlation: kernels of another device round otherwise, and coarse caches make much of that."""
    return float(np.corrcoef(rows.ravel(), others.ravel())[0, 1])


def places(part: Part) -> Iterator[Finding]:
    """Greedy text of the demo wherever its two models are: the plain text of the same device, up to near-ties."""
    begun, gpu = perf_counter(), part.device
    yield Finding(
        "Temperature 0, 3 guesses at a time: tokens until the text differs from plain decoding on the same device. "
        f"After {NEAR_TIES} tokens, rounding may choose between two words that are about equally likely."
    )
    yield Finding("| target | draft | KV cache | equal tokens | at least | |\n|---|---|---|---|---|---|")
    for target, draft, kv in (
        (gpu, gpu, "f16"),
        (gpu, "CPU", "f16"),
        ("CPU", gpu, "f16"),
        (gpu, gpu, "q8_0"),
    ):
        start = f"| {target} | {draft} | {kv} |"
        if why := left_out(part, begun, kv):
            yield Finding(f"{start} | {NEAR_TIES} | {why} |", missing=True)
            continue
        with loaded(part, device=target, draft_device=draft, kv_type=kv) as session:
            texts = []
            for speculate in (True, False):
                session.reset()
                reply = session.run(PROMPT, temperature=0, max_tokens=40, depth=3, speculate=speculate)
                texts.append(reply.tokens)
        same, needed = standing(texts[0], 0, texts[1]), min(NEAR_TIES, len(texts[1]))
        yield judged(start, f"{same} of {len(texts[1])}", str(needed), failed=same < needed)


def verify(part: Part) -> Iterator[Finding]:
    """`localspec verify`."""
    with loaded(part) as session:
        found = verify_pair(session, seconds=part.seconds * 0.7)
        failed, lacks = bool(problems(found)), bool(missing(found))
        yield Finding(block(verified(found)), failed=failed, missing=lacks)


def prices(part: Part) -> Iterator[Finding]:
    """`localspec tune`, and what decides how passes are scheduled."""
    table = Finding("| question | measured | answer |\n|---|---|---|")
    with loaded(part) as session:
        pair, text = session.pair, ordinary_tokens(session.pair.vocabulary)
        steps_back = pair.rollback_limit is None
        found = tuning.tune(
            pair.target, pair.drafters, text, seconds=part.seconds * 0.4, steps_back=steps_back
        )
        yield Finding(block(tuning.report(found)) if found else "Too slow to measure.", missing=not found)
        yield table
        if found and steps_back:
            yield from padding(pair.target, text, part.seconds * 0.2)
    if part.load.get("pair", "demo") == "demo":
        yield together(Path(part.load.get("target", part.demo)), part.device)


def answer(question: str, measured: str, *, yes: bool, no: bool) -> Finding:
    return Finding(f"| {question} | {measured} | {'yes' if yes else 'no' if no else 'unclear'} |")


def spread(ratios: Sequence[float]) -> str:
    return f"{median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})"


def together(path: Path, device: str) -> Finding:
    """Passes over the tokens of two replies beside passes over those of one."""
    ratios = dict[int, list[float]]()
    with Model(path, devices=(device,)) as model, Context(model, length=512, lanes=2, rows_max=HELD) as both:
        for width in (1, 3, HELD):
            times: dict[int, list[float]] = {1: [], 2: []}
            for lanes in [both.lanes[:1], both.lanes] * 4:
                began = perf_counter()
                both.shared.read([(lane, TEXT[:width], width) for lane in lanes])
                times[len(lanes)].append(perf_counter() - began)
                for lane in lanes:
                    lane.rollback(0)
            ratios[width] = [two / one for one, two in zip(times[1][1:], times[2][1:], strict=True)]
    said = ", ".join(f"{spread(found)} with {width}" for width, found in ratios.items())
    return answer(
        "Does a pass for two replies take less than two passes?",
        f"{said} tokens of each; 1x is a pass for one reply, 2x gains nothing",
        yes=max(map(max, ratios.values())) < 2,
        no=max(map(median, ratios.values())) > 2 * CLEARLY,
    )


def padding(target: Decoder, text: list[int], seconds: float) -> Iterator[Finding]:
    """Cycles of 2 to 5 tokens by turns as they are and padded to 5, and what a change of width costs."""
    chance, times = random.Random(1), {False: list[float](), True: list[float]()}
    after_change, after_same = list[float](), list[float]()
    target.rollback(0)
    target.decode(text[:32], 1)
    end, last = perf_counter() + seconds, 0
    while perf_counter() < end and len(times[True]) < 3 * CYCLES:
        widths = [chance.randint(2, HELD) for _ in range(CYCLES // 3)]
        for padded in (False, True):
            for width in widths:
                began = perf_counter()
                target.decode(text[: HELD if padded else width], rows=HELD if padded else width)
                times[padded].append(perf_counter() - began)
                if not padded and width == HELD:
                    (after_same if last == HELD else after_change).append(times[padded][-1])
                last = HELD if padded else width
                target.rollback(32)
    target.rollback(0)
    question = f"Does it save time to fill passes of 2 to {HELD} tokens up to {HELD}?"
    if len(times[True]) < CYCLES:
        yield Finding(f"| {question} | left out for time | |", missing=True)
        return
    blocks = np.reshape([times[True], times[False]], (2, -1, CYCLES // 3)).sum(axis=2)
    ratios = list(blocks[0] / blocks[1])
    yield answer(question, f"{spread(ratios)} the time", yes=max(ratios) < 1, no=median(ratios) > CLEARLY)
    if after_change and after_same:
        change, same = median(after_change) * 1000, median(after_same) * 1000
        clear = bool(np.quantile(after_change, 0.25) * CLEARLY > np.quantile(after_same, 0.75))
        yield answer(
            "Does a pass take longer after one of another width?",
            f"{HELD} tokens: {change:.2f} ms after another width, {same:.2f} ms after the same",
            yes=clear,
            no=not clear,
        )


def speed(part: Part) -> Iterator[Finding]:
    """`localspec bench`, as many prompts as the time allows."""
    with loaded(part) as session:
        limits, crowded = Limits(seconds=part.seconds * 0.7, max_tokens=32), list[bool]()
        measured = bench(
            session,
            [prompt for prompt in built_in_prompts() if prompt.category in KINDS],
            (PLAIN, AUTO, Arm(DEPTH)),
            (0.0,),
            limits,
            on_step=lambda step: crowded.append(session.pair.drafting.crowded),
        )
    found = summarise(measured.measurements)
    if any(crowded):
        yield Finding(CROWDED, missing=True)
    if not found.rows:
        yield Finding("Every reply was too short to time.", missing=True)
        return
    unsure = verdict(found, 0.0).decision is Decision.UNDECIDED
    table, *_, notes = report(found).split("\n\n")  # the sentences between them repeat the table
    yield Finding(block(f"{headlines(found)}\n\n{table}\n\n{notes}"), missing=unsure)


def loaded(part: Part, **place: Any) -> api.Session:  # noqa: ANN401
    here = {"device": part.device, "context_length": 2048, "rpc": part.rpc, "cache_gb": 0}
    options: dict[str, Any] = {**here, **part.load, **place}
    return api.load(**options)


def block(text: str) -> str:
    """A report as it stands."""
    return f"```\n{text}\n```"


PARTS: dict[str, Callable[[Part], Iterator[Finding]]] = {
    find.__name__: find for find in (rows, places, verify, prices, speed)
}


def main() -> None:
    threading.Thread(target=end_with_stdin, daemon=True).start()
    part = Part(**json.loads(sys.argv[1]))
    try:
        if part.rpc:
            connect(part.rpc)
        for found in PARTS[part.name](part):
            print(json.dumps(asdict(found)), flush=True)
    except LocalspecError as error:
        print(json.dumps(asdict(Finding(f"{error} ({error.hint})", failed=True))), flush=True)


if __name__ == "__main__":
    main()
