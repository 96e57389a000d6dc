"""The two programs under comparison, asked the same way: prompt tokens in, a rate out.

Both can be timed by the clock on the wall, or by the processor time that they take: with one thread on the
CPU that is the same thing on an idle machine, and still means something on a busy one.
"""

import os
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from types import TracebackType
from typing import Any, Literal, Self

import httpx

import localspec
from localspec.events import Cycle, Finished

TIMEOUT_SECONDS = 120  # for a server to load its models
PROMPT_READINGS = 3  # to know what reading a prompt costs

Clock = Literal["wall", "cpu"]


@dataclass(frozen=True, slots=True)
class Ask:
    """One generation: both sides get exactly this, and neither stops before `count` tokens."""

    text: str
    tokens: tuple[int, ...]  # of the text, special ones included
    count: int
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Tokens after the first emission and the seconds they took: both sides leave the prompt out that way."""

    tokens: int
    seconds: float
    drafted: int
    accepted: int
    text: str

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Flags:
    """How llama-server drafts; depth 0 is plain decoding, without a draft model."""

    depth: int
    p_min: float = 0.0

    def __str__(self) -> str:
        return f"--spec-draft-n-max {self.depth} --spec-draft-p-min {self.p_min:g}" if self.depth else "plain"


class LocalSide:
    """localspec in this process; without the seed, which would fix the depth of a sampled reply."""

    def __init__(self, session: localspec.Session, *, depth: int | None, clock: Clock) -> None:
        """`depth`: None is auto, 0 plain."""
        self._session = session
        self._clock = perf_counter if clock == "wall" else process_time
        self._depth = "auto" if depth is None else depth
        vocabulary = session.pair.vocabulary
        self._no_end = {t: float("-inf") for t in range(vocabulary.size) if vocabulary.is_end(t)}

    def __call__(self, ask: Ask) -> Answer:
        events = self._session.stream_complete(
            ask.text,
            temperature=ask.temperature,
            top_k=40,
            top_p=0.95,
            min_p=0.05,
            max_tokens=ask.count,
            depth=self._depth,
            logit_bias=self._no_end,
        )
        began = ended = 0.0
        first = 0
        for event in events:
            match event:
                case Cycle() if not began:
                    began, first = self._clock(), len(event.tokens)
                case Cycle():
                    ended = self._clock()
                case Finished(reply=reply):
                    stats = reply.stats
                    assert stats.prompt_tokens == len(ask.tokens), "both sides read the same prompt"
                    assert stats.emitted == ask.count
                    return Answer(
                        stats.emitted - first, ended - began, stats.drafted, stats.accepted, reply.text
                    )
        raise AssertionError("a run ends with Finished")


class ServerSide:
    """A llama-server process of its own; use as a context manager."""

    def __init__(
        self,
        binary: Path,
        target: Path,
        draft: Path,
        flags: Flags,
        *,
        threads: int,
        context: int,
        log: Path,
        clock: Clock,
        more: Sequence[object] = (),
    ) -> None:
        """`more`: further arguments of the command."""
        self._clock = clock
        self._reading_seconds: dict[tuple[int, ...], float] = {}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.address = f"http://127.0.0.1:{self._port}"
        command = [binary, "-m", target, "-c", context, "-t", threads, "-tb", threads, "-np", 1]
        command += ["--host", "127.0.0.1", "--port", self._port, "--cache-ram", 0, "--no-ui", *more]
        if flags.depth:
            command += ["-md", draft, "--spec-type", "draft-simple", "-td", threads, "-tbd", threads]
            command += ["--spec-draft-n-max", flags.depth, "--spec-draft-p-min", flags.p_min]
        self._log = log.open("ab")
        self._process = subprocess.Popen([str(part) for part in command], stdout=self._log, stderr=self._log)

    def __enter__(self) -> Self:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not self._healthy():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise SystemExit(f"error: llama-server did not start; see {self._log.name}")
            time.sleep(0.1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._log.close()

    def __call__(self, ask: Ask) -> Answer:
        reading = self._reading(ask) if self._clock == "cpu" else 0.0
        busy = self.busy_seconds() if self._clock == "cpu" else 0.0
        found = self.complete(ask, ask.count)
        busy = self.busy_seconds() - busy - reading if self._clock == "cpu" else 0.0
        timings = found["timings"]
        assert timings["prompt_n"] == len(ask.tokens), "both sides read the same prompt"
        assert timings["predicted_n"] == ask.count
        # Its first token comes with the prompt: it counts the time of the others, and so does the rate here.
        return Answer(
            timings["predicted_n"] - 1,
            timings["predicted_ms"] / 1000 if self._clock == "wall" else busy,
            timings.get("draft_n", 0),
            timings.get("draft_n_accepted", 0),
            found["content"],
        )

    def complete(self, ask: Ask, count: int) -> dict[str, Any]:
        """What the server answers when it writes this number of tokens."""
        body = {
            "prompt": ask.tokens,
            "n_predict": count,
            "temperature": ask.temperature,
            "top_k": 40,
            "top_p": 0.95,
            "min_p": 0.05,
            "seed": ask.seed,
            "ignore_eos": True,
            "cache_prompt": False,
        }
        with httpx.Client(timeout=600) as client:
            answer: dict[str, Any] = (
                client.post(f"{self.address}/completion", json=body).raise_for_status().json()
            )
            return answer

    def _reading(self, ask: Ask) -> float:
        """Processor seconds of a request that ends after its first token, which comes with the prompt."""
        if ask.tokens not in self._reading_seconds:
            found = []
            for _ in range(PROMPT_READINGS):
                before = self.busy_seconds()
                self.complete(ask, 1)
                found.append(self.busy_seconds() - before)
            self._reading_seconds[ask.tokens] = median(found)
        return self._reading_seconds[ask.tokens]

    def busy_seconds(self) -> float:
        """Processor time of the server so far; Linux only."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _healthy(self) -> bool:
        try:
            return httpx.get(f"{self.address}/health", timeout=5).is_success
        except httpx.HTTPError:
            return False
