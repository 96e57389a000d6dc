"""One part of a machine's proof, in a process of its own: a driver can end it.

    python -m localspec.measure.prove JSON        the fields of Part

Prints one JSON object for each finding, as soon as it is known. Ends with its stdin, because its parent may be killed.
"""

import json
import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from types import MappingProxyType
from typing import Any

import numpy as np

from localspec import api
from localspec.algorithm.protocols import Decoder
from localspec.errors import LocalspecError
from localspec.llama.context import Context
from localspec.llama.first_decode import end_with_stdin
from localspec.llama.model import Model
from localspec.measure import tune as tuning
from localspec.measure.bench import AUTO, CROWDED, PLAIN, Category, Limits, bench, built_in_prompts
from localspec.measure.summary import report, summarise
from localspec.measure.verified import problems
from localspec.measure.verified import report as verified
from localspec.measure.verify import verify as verify_pair
from localspec.models.drafting import ordinary_tokens
from localspec.models.load import connect
from localspec.sampler.passes import standing

COLUMNS = 100
TEXT, KV_TYPES = tuple(range(3, 43)), {"f16": 0.999, "q8_0": 0.99, "q4_0": 0.9}  # least correlation
PROMPT, NEAR_TIES = "What is speculative decoding?", 10  # tokens that must agree
HELD, CYCLES = 5, 24  # of the comparison of padded passes with others
CLEARLY = 0.95  # a ratio nearer to 1 is noise


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
    """A paragraph of the page; a failed one is named at its head."""

    text: str
    failed: bool = False
    pass_seconds: float = 0.0  # of a pass over one token of the demo


def rows(part: Part) -> Iterator[Finding]:
    """Rows of the demo's target there beside those of the CPU, and the time of a pass."""
    begun = perf_counter()
    here = {kv: rows_on(part.demo, kv, devices=(part.device,))[0] for kv in KV_TYPES}
    _, seconds = rows_on(part.demo, "f16", devices=(part.device,))
    yield Finding(f"A pass of the demo takes {seconds * 1000:.2f} ms.", pass_seconds=seconds)
    if part.device == "CPU":
        least = min(like(here["f16"], here[kv]) - needed for kv, needed in KV_TYPES.items())
        yield Finding("Caches of 8 and 4 bits give the rows of 16 bits, about.", failed=least < 0)
        return
    places: list[dict[str, Any]] = [{}, {"gpu_layers": 1}, {"gpu_layers": 2}]
    for kv, needed in KV_TYPES.items():
        for place in places if kv == "f16" else places[:1]:
            layers = f", {place['gpu_layers']} layers there" if place else ""
            if perf_counter() - begun > part.seconds:
                yield Finding(f"Left out for time: rows with a cache of {kv}{layers}.")
                continue
            there = rows_on(part.demo, kv, devices=(part.device,), **place)[0] if place else here[kv]
            found = like(rows_on(part.demo, kv, devices=("CPU",))[0], there)
            text = f"Rows with a cache of {kv}{layers} correlate with the CPU's: {found:.5f}."
            yield Finding(text, failed=not found > needed)


def rows_on(path: str, kv_type: str, **place: Any) -> tuple[np.ndarray, float]:  # noqa: ANN401
    """Rows of a prompt, of single tokens and of five at once; and the seconds of a pass over one token."""
    with (
        Model(Path(path), **place) as model,
        Context(model, length=256, kv_type_k=kv_type, kv_type_v=kv_type) as context,
    ):
        found = [np.array(context.decode(TEXT, 1).rows[0])]
        found += [np.array(context.decode([token], 1).rows[0]) for token in (5, 6)]
        found += [np.array(row) for row in context.decode([7, 8, 9, 10, 11], 5).rows]
        began, _ = perf_counter(), [context.decode([token], 1) for token in (5, 6, 7, 8)]
        return np.stack(found), (perf_counter() - began) / 4


def like(rows: np.ndarray, others: np.ndarray) -> float:
    """Their correlation: kernels of another device round otherwise, and coarse caches make much of that."""
    return float(np.corrcoef(rows.ravel(), others.ravel())[0, 1])


def places(part: Part) -> Iterator[Finding]:
    """Greedy text of the demo wherever its two models are: the plain text of the same device, up to near-ties."""
    begun, gpu = perf_counter(), part.device
    for place in ({}, {"draft_device": "CPU"}, {"device": "CPU", "draft_device": gpu}, {"kv_type": "q8_0"}):
        where = ", ".join(f"{name} {value}" for name, value in place.items()) or "both models there"
        if perf_counter() - begun > part.seconds or ("kv_type" in place and not part.flash):
            yield Finding(f"Left out for {'time' if part.flash else 'want of flash attention'}: {where}.")
            continue
        with loaded(part, place) as session:
            texts = []
            for speculate in (True, False):
                session.reset()
                reply = session.run(PROMPT, temperature=0, max_tokens=40, depth=3, speculate=speculate)
                texts.append(reply.tokens)
        same = standing(texts[0], 0, texts[1])
        text = f"{where}: the first {same} of {len(texts[1])} greedy tokens are those of plain decoding."
        yield Finding(text, failed=same < min(NEAR_TIES, len(texts[1])))


def verify(part: Part) -> Iterator[Finding]:
    """`localspec verify`."""
    with loaded(part) as session:
        found = verify_pair(session, seconds=part.seconds * 0.7)
        yield Finding(block(verified(found)), failed=bool(problems(found)))


def prices(part: Part) -> Iterator[Finding]:
    """`localspec tune`, and padding to one width beside passes as wide as their drafts."""
    with loaded(part) as session:
        pair, text = session.pair, ordinary_tokens(session.pair.vocabulary)
        steps_back = pair.rollback_limit is None
        found = tuning.tune(
            pair.target, pair.drafters, text, seconds=part.seconds * 0.4, steps_back=steps_back
        )
        yield Finding(block(tuning.report(found, COLUMNS)) if found else "Too slow for prices by width.")
        if found and steps_back:
            yield Finding(padding(pair.target, text, part.seconds * 0.2))
    if part.load.get("pair", "demo") == "demo":
        yield Finding(together(Path(part.load.get("target", part.demo)), part.device))


def together(path: Path, device: str) -> str:
    """Passes over the tokens of two replies beside passes over those of one."""
    said = []
    with Model(path, devices=(device,)) as model, Context(model, length=512, lanes=2, rows_max=HELD) as both:
        for width in (1, 3, HELD):
            times: dict[int, list[float]] = {1: [], 2: []}
            for lanes in [both.lanes[:1], both.lanes] * 4:
                began = perf_counter()
                both.shared.read([(lane, TEXT[:width], width) for lane in lanes])
                times[len(lanes)].append(perf_counter() - began)
                for lane in lanes:
                    lane.rollback(0)
            said.append(f"{median(times[2][1:]) / median(times[1][1:]):.2f} at {width}")
    return f"A pass for two replies takes this many times one for one reply, by tokens of each: {', '.join(said)}."


def padding(target: Decoder, text: list[int], seconds: float) -> str:
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
    if len(times[True]) < CYCLES:
        return "Too slow to compare padded passes with others."
    ratio = sum(times[True]) / sum(times[False])
    said = f"Passes of 2 to {HELD} tokens by turns, padded to {HELD}: {ratio:.2f} times as long as unpadded; "
    said += f"padding {'gains' if ratio < CLEARLY else 'does not gain'} here."
    if after_change and after_same:
        change, same = median(after_change) * 1000, median(after_same) * 1000
        said += f" A pass of {HELD} takes {change:.2f} ms after another width, {same:.2f} ms after its own."
        clear = np.quantile(after_change, 0.25) * CLEARLY > np.quantile(after_same, 0.75)
        what = "matter" if clear else "do not matter"
        said += f" Prices of recorded passes {what} here."
    return said


def speed(part: Part) -> Iterator[Finding]:
    """`localspec bench`, as many prompts as the time allows."""
    with loaded(part) as session:
        limits, crowded = Limits(seconds=part.seconds * 0.7, max_tokens=48), list[bool]()
        measured = bench(
            session,
            [prompt for prompt in built_in_prompts() if prompt.category is not Category.LONG],
            (PLAIN, AUTO),
            (0.0,),
            limits,
            on_step=lambda step: crowded.append(session.pair.drafting.crowded),
        )
        found = summarise(measured.measurements)
        if any(crowded):
            yield Finding(CROWDED)
        yield Finding(block(report(found, COLUMNS)) if found.rows else "Every reply was too short to time.")


def loaded(part: Part, place: Mapping[str, Any] = MappingProxyType({})) -> api.Session:
    here = {"device": part.device, "context_length": 2048, "rpc": part.rpc, "cache_gb": 0}
    options: dict[str, Any] = {**here, **part.load, **place}
    return api.load(**options)


def block(text: str) -> str:
    """A report without its bars."""
    kept = "\n\n".join(part for part in text.split("\n\n") if "█" not in part)
    return f"```\n{kept}\n```"


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
