"""An engine that follows a script: in the test's own process, or as a child (`python scripted_engine.py`).

The prompt says what happens, so that a test, a benchmark and a person in a terminal can ask for any of it:
`exact TEXT`, `tokens N` (a reply so long), `list N`, `table N`, `think`, `fail`, `crash`, `why off`,
`hang` (a prefill that never looks up). A reply that has begun goes on behind its beginning.
"""

import itertools
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from scripted_pairs import Gate, ScriptedPairs

from localspec.control.timing import Tally
from localspec.engine.messages import (
    Cancel,
    Compared,
    ComparisonStopped,
    Failure,
    Generate,
    Hello,
    LoadPair,
    LoadStage,
    ProposalText,
    Quit,
    Ready,
    Report,
    Request,
)
from localspec.errors import LocalspecError, NotEnoughMemory, NotOnDisk
from localspec.events import (
    Cycle,
    Event,
    Finished,
    FinishReason,
    Kind,
    Notice,
    Origin,
    Piece,
    Prefill,
    Reply,
    Source,
    Started,
    Stats,
)

ESSAY = """## Why a draft helps

A large model reads **all its weights** for every token. A small *draft* model proposes a few tokens, and the large one
checks them in a single pass, so the weights are read once for several tokens.

1. The draft proposes `k` tokens.
2. The target verifies them together.
3. The first wrong one is replaced.

```python
def accept(proposal, chosen):
    for n, (guess, token) in enumerate(zip(proposal, chosen)):
        if token != guess:
            return Verdict(n, token, Origin.FIX)
    return Verdict(len(proposal), next(chosen), Origin.BONUS)
```

> What was rejected leaves no trace in the text.

| width | cost |
|---|---|
| 1 | 1.00 |
| 4 | 1.40 |

That is all there is to it: the text is what the *target* would have written.
"""
THOUGHT = (
    "The user asks about drafting. I should mention the single pass, then the rollback. Keep it short.\n"
)


@dataclass
class Pace:
    cycle_seconds: float = 0.0
    load_seconds: float = 0.0
    hurry_tokens: int = 0  # the first tokens of a reply come at five times the pace


def tokens_of(text: str) -> list[str]:
    """Cuts like a tokenizer: a word with the space before it, or a newline."""
    words: list[str] = []
    for line in text.splitlines(keepends=True):
        body = line.rstrip("\n")
        words += [(" " if i else "") + word for i, word in enumerate(body.split(" "))]
        words += ["\n"] * (len(line) - len(body))
    return [word for word in words if word]


def reply_events(
    text: str,
    reasoning: str,
    seed: int,
    speculate: bool,
    cancelled: Callable[[], bool],
    pace: Pace,
    gate: Gate,
) -> Iterator[Event | ProposalText]:
    """The events of one reply, with an acceptance pattern that depends on the seed only."""
    chance = random.Random(seed)
    pieces = [(word, Kind.REASONING) for word in tokens_of(reasoning)] + [
        (w, Kind.ANSWER) for w in tokens_of(text)
    ]
    tally = Tally(Stats(prompt_tokens=40, prefill_seconds=0.08))
    yield Started("scripted-8b", "scripted-1b" if speculate else "", 40, 12, 0, seed, "greedy", 8192)
    for done in (20, 40):
        yield Prefill(done, 40, done / 500)
    shown: list[tuple[str, Kind]] = []
    reason = FinishReason.STOP
    while len(shown) < len(pieces):
        gate.wait(tally.sums.cycles, cancelled)
        if cancelled():
            reason = FinishReason.CANCELLED
            break
        time.sleep(pace.cycle_seconds / (5 if len(shown) < pace.hurry_tokens else 1))
        batch, cycle, drafted = make_cycle(pieces[len(shown) :], chance, speculate)
        tally.add(cycle)
        for (word, kind), origin in zip(batch, cycle.origins, strict=True):
            yield Piece(word, kind, origin, cycle.source if origin is Origin.ACCEPTED else Source.PLAIN)
        yield cycle
        if drafted:
            yield ProposalText(drafted)
        shown += batch
    sentence = {kind: "".join(word for word, k in shown if k is kind) for kind in Kind}
    ids = tuple(range(len(shown)))
    yield Finished(Reply(sentence[Kind.ANSWER], sentence[Kind.REASONING], ids, seed, reason, tally.stats()))


def make_cycle(
    rest: list[tuple[str, Kind]], chance: random.Random, speculate: bool
) -> tuple[list[tuple[str, Kind]], Cycle, tuple[str, ...]]:
    depth = chance.choice((3, 4, 5)) if speculate else 0
    accepted = min(
        sum(1 for _ in itertools.takewhile(lambda _: chance.random() < 0.75, range(depth))), len(rest) - 1
    )
    batch = rest[: accepted + 1]
    last = Origin.PLAIN if not speculate else Origin.BONUS if accepted == depth else Origin.FIX
    origins = (Origin.ACCEPTED,) * (len(batch) - 1) + (last,)
    source = Source.PLAIN if not speculate else chance.choice((Source.MODEL, Source.MODEL, Source.LOOKUP))
    drafted = tuple(word for word, _ in batch[:accepted]) + (" wrong",) * (depth - accepted)
    cycle = Cycle(
        tokens=tuple(range(len(batch))),
        origins=origins,
        proposal=tuple(range(depth)),
        accepted=accepted,
        depth=depth,
        source=source,
        width=depth + 1,
        draft_seconds=0.0012 * depth,
        verify_seconds=0.018 + 0.001 * depth,
        other_seconds=0.0008,
    )
    return batch, cycle, drafted


def answer_to(prompt: str) -> tuple[str, str]:
    """The answer and the reasoning that a prompt asks for."""
    if prompt.startswith("exact "):
        return prompt.removeprefix("exact "), ""
    if prompt.startswith("tokens "):
        count = int(prompt.split()[1])
        unit = tokens_of(ESSAY + "\n")
        return "".join(itertools.islice(itertools.cycle(unit), count)), ""
    if prompt.startswith("list "):
        return "".join(f"- item {n} of **many**\n" for n in range(int(prompt.split()[1]))), ""
    if prompt.startswith("table "):
        rows = "".join(f"| item {n} | **many** |\n" for n in range(int(prompt.split()[1])))
        return "| n | of |\n|---|---|\n" + rows, ""
    return ESSAY, THOUGHT if prompt.startswith("think") else ""


def question_of(request: Generate) -> str:
    """The last question; behind a reply that has begun, as an order to say what it lacks."""
    if request.messages[-1].role == "assistant":
        question, begun = (turn.content for turn in request.messages[-2:])
        return "exact " + answer_to(question)[0].removeprefix(begun)
    return request.messages[-1].content


class PairNotOnDisk(NotOnDisk): ...


class ScriptedWorkshop:
    """Performs requests by the script (see localspec.engine.server.Workshop)."""

    def __init__(self, pace: Pace | None = None, gate: Gate | None = None) -> None:
        self.pace = pace or Pace()
        self.gate = gate or Gate()
        self.asked: list[Request] = []
        self.pairs = ScriptedPairs(self.gate)

    def runs_beside(self, request: Request) -> bool:
        return False

    def rest(self, awaited: Callable[[], bool]) -> None:
        pass

    def cancel(self) -> None:
        pass

    def close(self) -> None:
        pass

    def perform(
        self, request: Request, send: Callable[[Report], None], cancelled: Callable[[], bool]
    ) -> None:
        self.asked.append(request)
        match request:
            case LoadPair():
                self._load(request, send)
            case Generate(compares=True):
                self._compare(request, send, cancelled)
            case Generate():
                self._ask(request, send, cancelled)

    def _load(self, request: LoadPair, send: Callable[[Report], None]) -> None:
        name = request.pair.name
        if name == "llama-3-70b+8b":
            raise NotEnoughMemory(
                "llama-3-70b+8b needs 48 GB, this machine has 32.", hint="Try llama-3-8b+1b."
            )
        if name == "llama-3-8b+1b" and name not in self.pairs.pulled:
            raise PairNotOnDisk(
                "llama-3-8b+1b is not on this machine (6.1 GB to download)", hint="Download it."
            )
        for stage in ("mapping target", "mapping draft", "warming up"):
            send(LoadStage(stage))
            time.sleep(self.pace.load_seconds / 3)
        send(
            Ready(
                name,
                "scripted-8b",
                "scripted-1b",
                8192,
                0.4,
                machine="a machine; localspec 9",
                reasons=name != "qwen3-8b+0.6b",
            )
        )

    def _ask(self, request: Generate, send: Callable[[Report], None], cancelled: Callable[[], bool]) -> None:
        prompt = question_of(request)
        if prompt.startswith("fail"):
            raise LocalspecError(
                "The prompt does not fit into the context.", hint="Start a new chat with /new."
            )
        if prompt.startswith("crash"):
            send(Started("scripted-8b", "scripted-1b", 40, 0, 0, 1, "greedy", 8192))
            send(Piece("Half a sen", Kind.ANSWER, Origin.PLAIN, Source.PLAIN))
            os.kill(os.getpid(), 9)
        if prompt.startswith("hang"):
            send(Prefill(10, 10_000, 0.1))
            time.sleep(3600)
        if prompt.startswith("why off"):
            send(Notice("Drafting is off: plain decoding is faster here (62 against 48 tokens per second)."))
        for event in self._events(prompt, request.options, cancelled):
            send(event)

    def _events(
        self, prompt: str, settings: Mapping[str, Any], cancelled: Callable[[], bool]
    ) -> Iterator[Event | ProposalText]:
        answer, reasoning = answer_to(prompt)
        seed = settings.get("seed", 7)
        return reply_events(
            answer, reasoning, seed, settings.get("speculate", True), cancelled, self.pace, self.gate
        )

    def _compare(
        self, request: Generate, send: Callable[[Report], None], cancelled: Callable[[], bool]
    ) -> None:
        replies = []
        for speculate in (False, True):
            settings = {"seed": 3, "speculate": speculate}
            parts = "differ" in request.messages[-1].content and not speculate
            for event in self._events(request.messages[-1].content, settings, cancelled):
                if parts and isinstance(event, Piece):
                    event = replace(event, text=event.text.replace("weights", "parameters"))
                send(event)
                if isinstance(event, Finished):
                    replies.append(event.reply)
        if cancelled():
            send(ComparisonStopped())
            return
        plain, drafted = replies
        verdict = "2.0 times as fast, the same text: 0.4 s instead of 0.8 s, 13 of 24 draft tokens accepted."
        if "differ" in request.messages[-1].content:
            verdict = "2.0 times as fast, but the texts differ: 60.0 instead of 30.0 tokens/s, 13 of 24 draft tokens "
            verdict += "accepted.\nToken 58 was a near-tie, 41% and 38%: rounding decides here."
            verdict += "\nIt is ' weights' with drafting, and ' parameters' without."
            plain = replace(plain, text=plain.text.replace("weights", "parameters", 1))
        send(Compared(drafted, plain, verdict))


class ScriptedEngine:
    """The client's side of a scripted engine in a thread of this process (see localspec.engine.client.Engine)."""

    def __init__(self, handler: ScriptedWorkshop | None = None) -> None:
        self.handler = handler or ScriptedWorkshop()
        self.starts = 0
        self.alive = False
        self._reports: deque[Report] = deque()
        self._cancelled_serial = 0

    def start(self) -> None:
        self.close()
        self.starts += 1
        self._cancelled_serial = 0
        self.alive = True
        self._reports = deque([Hello()])
        self._inbox: deque[Request] = deque()
        self._wake = threading.Semaphore(0)
        threading.Thread(
            target=self._work, args=(self._reports, self._inbox, self._wake), daemon=True
        ).start()

    def send(self, request: Request) -> None:
        if isinstance(request, Cancel):
            self._cancelled_serial = max(self._cancelled_serial, request.serial)
            return
        self._inbox.append(request)
        self._wake.release()

    def drain(self) -> list[Report]:
        return [self._reports.popleft() for _ in range(len(self._reports))]

    def die(self, report: Report) -> None:
        self.alive = False
        self._cancelled_serial = 2**63
        self._reports.clear()
        self._reports.append(report)

    def close(self) -> None:
        if self.alive:
            self.alive = False
            self.send(Quit())

    def _work(self, reports: deque[Report], inbox: deque[Request], wake: threading.Semaphore) -> None:
        while wake.acquire() and not isinstance(request := inbox.popleft(), Quit):
            serial = getattr(request, "serial", None)
            stop = lambda serial=serial: serial is not None and serial <= self._cancelled_serial  # noqa: E731
            try:
                self.handler.perform(request, reports.append, stop)
            except LocalspecError as error:
                reports.append(Failure(type(error).__name__, str(error), error.hint, serial or 0))


if __name__ == "__main__":
    from localspec.engine.server import RequestLoop, take_pipes

    environ = os.environ
    pace = Pace(
        float(environ.get("SCRIPT_CYCLE_SECONDS", "0.02")),
        float(environ.get("SCRIPT_LOAD_SECONDS", "0.3")),
        int(environ.get("SCRIPT_HURRY_TOKENS", "0")),
    )
    RequestLoop(*take_pipes()).serve(lambda: ScriptedWorkshop(pace))
    os._exit(0)
