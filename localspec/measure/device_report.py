"""One part of `doctor --prove`, in its own process, because a GPU driver can crash it.

    python -m localspec.measure.device_report JSON        the fields of ReportPart

It prints each row as one JSON object once the row is measured. It ends when stdin closes, as when its parent dies.
"""

import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from localspec import api
from localspec.display import counted
from localspec.errors import LocalspecError
from localspec.llama.context import Context
from localspec.llama.devices import connect
from localspec.llama.model import Model
from localspec.loading.drafting import Drafting
from localspec.machine.children import end_with_stdin
from localspec.measure.bench import AUTO, BUILT_IN_PROMPTS, PLAIN, Arm, Category, Limits, bench
from localspec.measure.race import CONTENDED
from localspec.measure.summary import Finding, finding, grouped, speedup_text, summarise, verdict
from localspec.measure.verify import DEPTH, missing, problems
from localspec.measure.verify import verify as verify_pair

TEXT = tuple(range(3, 43))
KINDS = (Category.CODE, Category.CHAT, Category.PROSE)  # few categories, so that each one has several prompts
CHECKS: tuple[tuple[str, dict[str, int], float], ...] = (  # KV cache type, load options, needed correlation
    ("f16", {}, 0.999),
    ("f16", {"gpu_layers": 1}, 0.999),
    ("f16", {"gpu_layers": 2}, 0.999),
    ("q8_0", {}, 0.99),
    ("q4_0", {}, 0.9),
)


@dataclass(frozen=True, slots=True)
class ReportPart:
    name: str
    seconds: float  # time limit of the measurement, after the load
    device: str
    demo: str  # the path of the demo pair's target
    load: dict[str, Any]  # arguments of `api.load`, the pair included
    rpc: str
    flash: bool  # whether the device can do flash attention, which quantised caches need


@dataclass(frozen=True, slots=True)
class ReportRow:
    what: str
    measured: str
    needed: str = ""
    passed: bool | None = None  # None: the value is only reported
    missing: bool = False  # whether a measurement was left out or is uncertain


def logits(part: ReportPart) -> Iterator[ReportRow]:
    """Yield the time of a pass, then correlations of the device's logits with reference logits."""
    on_cpu, device = part.device == "CPU", {"devices": (part.device,)}
    whole, _ = rows_on(part.demo, "f16", **device)
    _, seconds = rows_on(part.demo, "f16", **device)
    yield ReportRow("pass over one token of the demo", f"{seconds * 1000:.2f} ms")
    for kv_type, split, least in CHECKS:
        if on_cpu and kv_type == "f16":
            continue
        layers, beside = split.get("gpu_layers", "all"), "an f16 cache" if on_cpu else "the CPU"
        what, needed = f"correlation with {beside}: {kv_type}, {layers} layers", f"at least {least}"
        if kv_type != "f16" and not part.flash:
            yield ReportRow(what, "left out: it needs flash attention", needed, missing=True)
            continue
        there, _ = rows_on(part.demo, kv_type, **device, **split)
        other = whole if on_cpu else rows_on(part.demo, kv_type, devices=("CPU",))[0]
        # Logits are correlated, not compared exactly, because kernels of two devices round differently.
        found = float(np.corrcoef(other.ravel(), there.ravel())[0, 1])
        yield ReportRow(what, f"{found:.5f}", needed, found > least)


def rows_on(path: str, kv_type: str, **place: Any) -> tuple[np.ndarray, float]:  # noqa: ANN401
    """Return rows of logits from passes of several widths, and the seconds of a pass over one token."""
    with (
        Model(Path(path), **place) as model,
        Context(model, length=256, kv_type=kv_type) as context,
    ):
        found = [np.array(context.decode(TEXT, 1).rows[0])]
        found += [np.array(context.decode([token], 1).rows[0]) for token in (5, 6)]
        found += [np.array(row) for row in context.decode([7, 8, 9, 10, 11], 5).rows]
        seconds = list[float]()
        for token in (5, 6, 7, 8):
            began = perf_counter()
            context.decode([token], 1)
            seconds.append(perf_counter() - began)
        return np.stack(found), min(seconds)  # the shortest, because other programs slow some passes down


def verify(part: ReportPart) -> Iterator[ReportRow]:
    with loaded(part) as session:
        found = verify_pair(session, seconds=part.seconds)
    wrong, lacks = problems(found), missing(found)
    result = " ".join(
        [f"{len(found.cases)} greedy texts, {found.sampled.texts} sampled ones", *wrong, *lacks]
    )
    yield ReportRow("localspec verify", result, "no difference", not wrong, bool(lacks))


def speed(part: ReportPart) -> Iterator[ReportRow]:
    prompts = [prompt for prompt in BUILT_IN_PROMPTS if prompt.category in KINDS]
    limits = Limits(seconds=part.seconds, max_tokens=32)
    with loaded(part) as session:
        measured = bench(session, prompts, (PLAIN, AUTO, Arm(DEPTH)), (0.0,), limits)
        contended = session.pair.threads.contended
        assert isinstance(session.pair.drafting, Drafting)
        costs = session.pair.drafting.costs.table()
    for width, seconds in zip(costs.widths, costs.verify_seconds, strict=True) if costs.measured else ():
        share = f"{seconds * 1000:.1f} ms, {seconds / costs.verify(1):.2f} of one token's"
        yield ReportRow(f"pass over {counted(width, 'token')}", share)
    found = summarise(measured.measurements)
    if contended or not found.rows:
        why = CONTENDED if contended else "every reply was too short to time"
        yield ReportRow("localspec bench", why, missing=True)
    for row in found.rows:
        shares = f"acceptance rate {row.acceptance_rate:.0%}, {row.mean_accepted_length:.2f} tokens per pass"
        unsure = row == verdict(found, 0.0) and finding(row.speedup) is Finding.UNSURE
        what = f"speed-up, {row.category or 'all'}, {row.arm}"
        yield ReportRow(what, f"{speedup_text(row.speedup)}, {shares}", missing=unsure)
    for arm, own in grouped(measured.measurements, lambda reply: reply.arm).items():
        target, draft, whole = (
            sum(getattr(reply, f"{part}_seconds") for reply in own) for part in ("verify", "draft", "decode")
        )
        parts = f"target {target / whole:.1%}, draft {draft / whole:.1%}"
        yield ReportRow(
            f"time in passes, {arm}", f"{parts}, Python between them {1 - (target + draft) / whole:.1%}"
        )


def loaded(part: ReportPart) -> api.Session:
    here = {"device": part.device, "context_length": 2048, "rpc": part.rpc, "cache_gb": 0}
    return api.load(**{**here, **part.load}, is_use=False)


PARTS = {"logits": logits, "verify": verify, "speed": speed}


def main() -> None:
    threading.Thread(target=end_with_stdin, daemon=True).start()
    part = ReportPart(**json.loads(sys.argv[1]))
    try:
        if part.rpc:
            connect(part.rpc)
        for row in PARTS[part.name](part):
            print(json.dumps(asdict(row)), flush=True)
    except LocalspecError as error:
        print(json.dumps(asdict(ReportRow(part.name, f"{error} ({error.hint})", passed=False))), flush=True)


if __name__ == "__main__":
    main()
