"""`doctor --prove`: what holds on this machine and what it costs, as one page of Markdown that a user can send.

Each part runs in a process of its own (`measure/prove.py`) with a time limit. What is known is kept for the day, so
that a second call takes up where the first one ended.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryFile
from time import monotonic
from typing import Any

from localspec import demo
from localspec.cli import PROOF_SECONDS
from localspec.cli.commands.demo import DRAFT_SHAPE, SHAPES, bytes_of, free_bytes
from localspec.display import DrawnLine, counted, note, size_text
from localspec.errors import LocalspecError
from localspec.files import FileLock, file_of, recalled, store
from localspec.gguf.enlarging import Shape, enlarge
from localspec.health.devices import Device
from localspec.health.trial import describe_exit
from localspec.measure.prove import Finding, Part
from localspec.measure.summary import Machine
from localspec.options import cache_dir

SECONDS = {"rows": 40.0, "places": 80.0, "verify": 70.0, "prices": 80.0, "speed": 80.0}  # most, of each part
LONGER = 1.6  # times as long, where no pair is to be measured as well
TITLES = {
    "rows": "Logits",
    "places": "Places of the two models",
    "verify": "Texts",
    "prices": "Times of passes",
    "speed": "Speed",
}
CHECKS = ("rows", "places", "verify")  # others measure
CHILD = (sys.executable, "-P", "-m", "localspec.measure.prove")
OF_PAIR = ("verify", "prices", "speed")
WORKING = 0.8  # of a part's time, before it should end by itself
LEAST_SECONDS = 10.0  # of a part that is still begun
UNENLARGED = "because a larger one would be too slow or too large here: nothing follows for large models"
SHARE = 0.4  # of the free memory, for the enlarged demo
SLOW_PASS = 0.2  # seconds by the size of the demo: no shape is chosen whose passes would take longer
WIDE = Shape(2048, 16, 32, 8, 64, 8192, 2560)  # on a GPU


@dataclass(frozen=True, slots=True)
class Done:
    """What one part found."""

    findings: tuple[Finding, ...] = ()
    cut: str = ""  # why it did not end by itself
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        return any(found.failed for found in self.findings)

    @property
    def incomplete(self) -> bool:
        return bool(self.cut) or any(found.missing for found in self.findings)


@dataclass(frozen=True, slots=True)
class Proof:
    """What is known of a machine so far."""

    parts: dict[str, Done] = field(default_factory=dict)
    about: str = ""  # what the prices and speeds are of
    load: float = 0.0  # of the machine before the parts; of several calls the largest


class Prover:
    """Runs the parts one after the other, `seconds` at most together."""

    def __init__(
        self,
        device: Device,
        rpc: str,
        pair: str,
        seconds: float,
        machine: Machine,
        about: Mapping[str, str],
        *,
        flash: bool,
    ) -> None:
        """`about`: rows of the page's first table; `flash`: whether the device can do flash attention."""
        self._device, self._rpc, self._pair, self._about, self._flash = device, rpc, pair, about, flash
        self._deadline = monotonic() + seconds
        self._longer = (1.0 if pair else LONGER) * max(seconds / PROOF_SECONDS, 1.0)
        self._file = file_of(cache_dir() / "proofs", device.name, rpc, pair, machine.sentence())
        self.proof = recalled(self._file, Proof) or Proof()
        if hasattr(os, "getloadavg"):
            now, before = os.getloadavg()[0], self.proof
            # Timed again: what was timed beside other programs.
            if is_busy(before.load) and not is_busy(now):
                before = Proof({key: done for key, done in before.parts.items() if is_check(key)})
            self.proof = replace(before, load=max(before.load, now))

    def run(self, line: DrawnLine) -> None:
        """Find out what is not known yet. Raises LocalspecError while another process does so, OSError."""
        folder = cache_dir() / "proofs" / "models"
        lock = FileLock(folder.with_suffix(".lock"))
        if not lock.try_acquire():
            raise LocalspecError("another `localspec doctor --prove` is running", hint="wait for it")
        try:
            for name in ("rows", "places", "verify"):
                if name != "places" or self._device.is_gpu:
                    self._part(name, name, {"pair": "demo"}, line)
            with self._enlarged(folder, line) as load:
                for name in ("prices", "speed"):
                    self._part(name, name, load, line)
            for name in OF_PAIR if self._pair else ():
                self._part(f"{self._pair}: {name}", name, {"pair": self._pair}, line)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock.release()

    @contextmanager
    def _enlarged(self, folder: Path, line: DrawnLine) -> Iterator[Mapping[str, Any]]:
        """The demo enlarged to the cost of an ordinary model, where that is neither too large nor too slow."""
        shape = self._shape()
        if {"prices", "speed"} <= self.proof.parts.keys():
            yield {}
            return
        if shape is None:
            self.proof = replace(self.proof, about=f"the same, {UNENLARGED}")
            yield {"pair": "demo"}
            return
        size = size_text(bytes_of(shape) + bytes_of(DRAFT_SHAPE))
        note(f"the demo pair is enlarged to {size} in {folder}, until this command ends")
        line.draw(f"writing {size}")
        folder.mkdir(parents=True, exist_ok=True)
        draft = enlarge(demo.draft_path(), folder / "draft.gguf", DRAFT_SHAPE)
        target = enlarge(demo.target_path(), folder / "target.gguf", shape)
        self.proof = replace(self.proof, about=f"the demo enlarged to {size}")
        yield {"target": str(target), "draft": str(draft)}
        shutil.rmtree(folder)

    def _shape(self) -> Shape | None:
        """The largest shape that fits, and whose passes are short enough by those of the demo."""
        found = self.proof.parts.get("rows", Done()).findings
        seconds = max((each.pass_seconds for each in found), default=0.0)
        free = min(free_bytes(), shutil.disk_usage(cache_dir()).free, self._device.free_bytes or sys.maxsize)
        for shape in (WIDE, *SHAPES) if self._device.is_gpu else SHAPES:
            times = bytes_of(shape) / demo.target_path().stat().st_size
            if 0 < seconds * times < SLOW_PASS and bytes_of(shape) < SHARE * free:
                return shape
        return None

    def _part(self, key: str, name: str, load: Mapping[str, Any], line: DrawnLine) -> None:
        if key in self.proof.parts:
            return
        most, began = SECONDS[name] * self._longer, monotonic()
        seconds = min(most, self._deadline - began)
        if seconds < LEAST_SECONDS:
            return
        part = Part(
            name,
            seconds * WORKING,
            self._device.name,
            str(demo.target_path()),
            dict(load),
            self._rpc,
            self._flash,
        )
        findings = list[Finding]()
        cut = "stopped by Ctrl-C"
        try:
            cut = self._child(part, seconds, findings, line)
        finally:
            parts = {**self.proof.parts, key: Done(tuple(findings), cut, monotonic() - began)}
            self.proof = replace(self.proof, parts=parts)
            whole = {key: done for key, done in parts.items() if not (done.incomplete or done.failed)}
            store(self._file, replace(self.proof, parts=whole))  # others are tried again

    def _child(self, part: Part, seconds: float, findings: list[Finding], line: DrawnLine) -> str:
        """Run a part and collect its findings; returns why it did not end by itself."""
        deadline, cut = monotonic() + seconds, ""
        command = [*CHILD, json.dumps(asdict(part))]
        with (
            TemporaryFile() as said,
            TemporaryFile() as errors,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=errors) as child,
        ):
            try:
                while child.poll() is None and not cut:
                    left = deadline - monotonic()
                    line.draw(f"{part.name} on {part.device}: {left:.0f} s left at most")
                    with suppress(subprocess.TimeoutExpired):
                        child.wait(min(max(left, 0.0), 1.0))
                    cut = "" if left > 0 else f"stopped after {seconds:.0f} s"
            finally:
                child.kill()
                code = child.wait()
                said.seek(0)
                findings += [
                    Finding(**json.loads(text)) for text in said if text.endswith((b"}\n", b"}\r\n"))
                ]
            if code and not cut:
                errors.seek(0)
                last = " ".join(
                    errors.read().decode("utf-8", "replace").split("\n")[-3:]
                )  # a sentence and its hint
                what = f"It ended with {describe_exit(code)}. {last}"
                findings.append(Finding(what.strip(), failed=True))
        return cut

    def page(self) -> str:
        """The page in Markdown."""
        pair = self._pair
        wanted = [*SECONDS, *(f"{pair}: {name}" for name in OF_PAIR if pair)]
        wanted = [key for key in wanted if key != "places" or self._device.is_gpu]
        parts = {key: self.proof.parts[key] for key in wanted if key in self.proof.parts}
        kinds = {
            "Failed": [key for key, done in parts.items() if done.failed],
            "Incomplete": [key for key, done in parts.items() if done.incomplete],
            "Left out": [key for key in wanted if key not in parts],
        }
        counts = (f"**{kind}:** {', '.join(map(titled, keys)) or 'nothing'}." for kind, keys in kinds.items())
        timed = self.proof.about if {"prices", "speed"} & parts.keys() else ""
        models = "the demo" + (f"; for times and speed {timed}" if timed else "")
        about = {**self._about, "models": models, "load": self._load()}
        table = "\n".join(["| | |", "|---|---|", *(f"| {name} | {told} |" for name, told in about.items())])
        lines = [f"# `localspec doctor --prove` on {self._device.name}", " ".join(counts), table]
        for key, done in parts.items():
            lines.append(f"## {titled(key)}: {state(key, done)} ({done.seconds:.0f} s)")
            lines += [each.text for each in done.findings]
        return "\n\n".join(lines).replace("|\n\n|", "|\n|")  # rows of a table

    def _load(self) -> str:
        """How busy the machine was before the parts, which keep it busy themselves."""
        cores = os.cpu_count() or 1
        if not hasattr(os, "getloadavg"):
            return "unknown here"
        state = "BUSY: compare times within this page only" if is_busy(self.proof.load) else "idle"
        return f"{state} ({self.proof.load:.1f} programs on {counted(cores, 'core')} before the first part)"


def state(key: str, done: Done) -> str:
    if done.failed:
        return "FAILED"
    if done.cut:
        return f"incomplete, {done.cut}"
    if done.incomplete:
        return "incomplete"
    return "passed" if is_check(key) else "measured"


def is_check(key: str) -> bool:
    return key.rpartition(": ")[2] in CHECKS


def is_busy(load: float) -> bool:
    return load >= (os.cpu_count() or 1) / 2


def titled(key: str) -> str:
    pair, _, name = key.rpartition(": ")
    return f"{pair}: {TITLES[name]}" if pair else TITLES[name]
