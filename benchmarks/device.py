"""The share of Python, and the cost of a slow reader, beside a stand-in for a device.

    python -m benchmarks.device [--target-ms 12] [--draft-ms 2] [--seconds 3] [--spin]

The stand-in models return from `decode` at once, and their rows are ready after a fixed time, as on a GPU. So all time
beyond the passes is Python's, or the reader's. Depth is fixed at 4. The device chooses the largest logits of a draft's
rows, and of a target's rows where these decide.

While a driver sleeps, other programs and the sleep itself empty the processor's caches. --spin: a driver that spins.
The first line is a floor for samplers that read whole rows: the time of numpy's fastest look at the rows of a cycle.
"""

import argparse
import ctypes
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from threading import Condition

import numpy as np

from localspec.chat.loaded_pair import LoadedPair, Slot, Slots
from localspec.chat.session import Session
from localspec.drafters.model import ModelDrafter
from localspec.events import Cycle
from localspec.llama.shared import TOP_K
from localspec.llama.threads import Contention, Threads
from localspec.loading.drafting import Drafting, estimated_costs
from localspec.prompt.template import ChatTemplate
from localspec.sampler.passes import Candidates, ForwardPass, LateRows, Row
from localspec.sampler.sampling import Sampling

VOCABULARY, ROWS, DEPTH, ROUNDS = 152_000, 64, 4, 7
AGREEMENT = 0.8  # chance that the draft's likeliest token is the target's
SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string", "minLength": 4000}},
    "required": ["text"],
}
SAMPLING = {
    "greedy": {"temperature": 0},
    "default sampling": {"rule": "block"},
    "default sampling, with a seed": {"rule": "coupled"},
    "top-k 0": {"rule": "block", "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "top-k 0, with a seed": {"rule": "coupled", "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "greedy, a JSON schema": {"temperature": 0, "json_schema": SCHEMA},
}
READER_SECONDS = 0.005


class Words:
    """A vocabulary of the ASCII characters, each with its code as its token, and of random words. 0 ends a text."""

    size, bos, eos, add_bos = VOCABULARY, None, 0, False
    infill_tokens = (None, None, None, None)

    def __init__(self, chance: np.random.Generator) -> None:
        letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", np.uint8)
        sizes = chance.integers(3, 9, VOCABULARY)
        words = [b" " + letters[chance.integers(0, 26, size)].tobytes() for size in sizes]
        self._pieces = [b"", *(bytes([code]) for code in range(1, 128)), *words][:VOCABULARY]

    def tokenize(self, text: str, *, parse_special: bool, add_special: bool = False) -> list[int]:
        return [max(1, min(ord(letter), 127)) for letter in text]

    def piece(self, token: int) -> bytes:
        return self._pieces[token]

    def text(self, token: int) -> str:
        return self._pieces[token].decode() or "<end>"

    def is_end(self, token: int) -> bool:
        return token == 0

    is_special = is_end

    def special_tokens(self) -> dict[str, int]:
        return {"<end>": 0}


def spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        time.sleep(0)  # other threads may run meanwhile


class StandIn:
    """A `Decoder` whose rows are ready `seconds` after `decode`."""

    needs_checkpoints, alone, conversation, rollback_limit = False, False, "", None
    capacity, threads, late, calling = 1 << 15, Threads(1), False, Condition()
    length = property(lambda self: len(self.tokens))

    wait = staticmethod(time.sleep)

    def __init__(self, rows: Sequence[np.ndarray], seconds: float, *, drafts: bool) -> None:
        self._whole, self._seconds, self._drafts = rows, seconds, drafts
        tops = [(-row).argsort()[:TOP_K].astype(np.int32) for row in rows]
        wholes = [None if drafts else partial(np.asarray, row) for row in rows]
        self._cut = [
            Candidates(ids, row[ids], whole) for ids, row, whole in zip(tops, rows, wholes, strict=True)
        ]
        self._rows: Sequence[Row] = self._cut if drafts else rows
        self.tokens: list[int] = []
        self.busy_seconds = 0.0
        self.begun: list[tuple[float, float]] = []  # of each pass: its start, and the busy seconds before it

    def decode(self, tokens: Sequence[int], rows: int) -> ForwardPass:
        began = time.perf_counter()
        self.begun.append((began, self.busy_seconds))
        start = len(self.tokens)
        self.tokens += tokens
        found = [self._rows[end % ROWS] for end in range(self.length - rows, self.length)]

        def read() -> Sequence[Row]:
            if (left := began + self._seconds - time.perf_counter()) > 0:
                self.wait(left)
            self.busy_seconds += time.perf_counter() - began
            return found

        return ForwardPass(start, tokens, LateRows(rows, read) if rows and self.late else read())

    def prefill(
        self, tokens: Sequence[int], cancelled: Callable[[], bool] = lambda: False
    ) -> Iterator[ForwardPass]:
        yield self.decode(tokens, 0)

    def rollback(self, keep: int) -> None:
        del self.tokens[keep:]

    def rewind(self, keep: int) -> int:
        self.rollback(keep)
        return keep

    def recall(self, tokens: Sequence[int], *, save: bool = True) -> float:
        return 0.0

    def checkpoint(self, *, lasting: bool) -> None:
        """Not needed."""

    def top_k_rows(self, logits: int | None) -> None:
        self._rows = self._cut if self._drafts or logits else self._whole


def pair_of(target: StandIn, draft: StandIn, words: Words) -> LoadedPair:
    drafters = [ModelDrafter(draft, words.is_end)]
    drafting = Drafting(
        drafters, estimated_costs("cuda", {"model": 0.2}), most=16, target=target, decoding=[target, draft]
    )
    return LoadedPair(
        name="stand-in",
        target_name="stand-in",
        draft_name="stand-in draft",
        slots=Slots([Slot(target, drafters, drafting)]),
        rollback_limit=None,
        widest_batch=17,
        vocabulary=words,
        template=ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", bos_text="", eos_text=""),
        sampling=Sampling(),
        threads=Contention(1),
        notices=(),
        close=lambda: None,
        runs_ahead=True,
    )


def models(chance: np.random.Generator) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return rows of the target and of the draft, one for each position modulo ROWS."""
    target = [chance.normal(0.0, 2.5, VOCABULARY).astype(np.float32) for _ in range(ROWS)]
    for row in target:
        row[0] = -30.0
        row[chance.integers(1, VOCABULARY, 12)] += np.linspace(16, 6, 12, dtype=np.float32)
    draft = [row if chance.random() < AGREEMENT else target[i - 1] for i, row in enumerate(target)]
    return target, draft


def measured(
    session: Session,
    decoders: Sequence[StandIn],
    seconds: float,
    options: dict,
    reader: str,
) -> tuple[float, float, float]:
    """Return tokens per second of one reply, the share of the time outside the passes, and events per token."""
    for decoder in decoders:
        decoder.rollback(0)
        decoder.begun.clear()
    tokens, events, began = 0, 0, 0.0
    stream = session.stream_complete(list(range(1, 200)), depth=DEPTH, seed=1, max_tokens=1 << 14, **options)
    for event in stream:
        if isinstance(event, Cycle) and not began:  # the first cycle includes the start of the reply
            began = time.perf_counter()
        elif isinstance(event, Cycle):
            tokens += len(event.tokens)
        events += bool(began)
        if began and (reader == "event" or (reader == "cycle" and isinstance(event, Cycle))):
            time.sleep(READER_SECONDS)
        if began and time.perf_counter() - began > seconds:
            break
    wall = time.perf_counter() - began
    stream.close()
    return tokens / wall, share_outside(*(decoder.begun for decoder in decoders)), events / tokens


def share_outside(target: Sequence[tuple[float, float]], draft: Sequence[tuple[float, float]]) -> float:
    """Return the share of the time outside the passes, over whole cycles: cycles run ahead of their reader."""
    (first, target_before), (end, target_after) = target[3], target[-2]  # the first passes are the prompt's
    before, after = (next(busy for began, busy in draft if began > moment) for moment in (first, end))
    return 1 - (target_after - target_before + after - before) / (end - first)


def floor(rows: Sequence[np.ndarray], cycle_seconds: float) -> str:
    """Describe the time that one look at each row of a cycle takes at least, after a wait."""
    seconds = []
    for row in rows:
        StandIn.wait(cycle_seconds / (2 * DEPTH + 1))
        began = time.perf_counter()
        row.argmax()
        seconds.append(time.perf_counter() - began)
    row = median(seconds)
    shares = (f"{count * row / cycle_seconds:.1%}" for count in (DEPTH + 1, 2 * DEPTH + 1))
    return f"one look at a whole row takes {row * 1e6:.0f} us: target's rows {next(shares)}, all rows {next(shares)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target-ms", type=float, default=12.0)
    parser.add_argument("--draft-ms", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--spin", action="store_true")
    given = parser.parse_args()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(29, 1000, 0, 0, 0)  # sleeps end within a microsecond instead of 50
    if given.spin:
        StandIn.wait = staticmethod(spin)
    chance = np.random.default_rng(0)
    words, times = Words(chance), (given.target_ms / 1000, given.draft_ms / 1000)
    target, draft = models(chance)
    decoders = [StandIn(target, times[0], drafts=False), StandIn(draft, times[1], drafts=True)]
    session = Session(pair_of(*decoders, words))
    print(
        f"passes of {given.target_ms:g} and {given.draft_ms:g} ms, {VOCABULARY:,} tokens of vocabulary, depth {DEPTH}"
    )
    print(floor(target, times[0] + DEPTH * times[1]))
    print("| sampling | reader | tokens/s | most that the reader takes | share outside the passes |")
    print("|---|---|---|---|---|")
    for name, options in SAMPLING.items():
        for reader in ("none", "cycle", "event") if name == "greedy" else ("none",):
            found = [measured(session, decoders, given.seconds, options, reader) for _ in range(ROUNDS)]
            speed, share, events = (median(each) for each in zip(*found, strict=True))
            waits = "" if reader == "none" else f"{READER_SECONDS * 1000:g} ms each {reader}"
            own = f"{1 / (events * READER_SECONDS):.1f}" if reader == "event" else ""
            print(f"| {name} | {waits} | {speed:.1f} | {own} | {share:.1%} |", flush=True)


if __name__ == "__main__":
    main()
