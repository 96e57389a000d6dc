"""A session whose replies take exactly as long as a test wants, on a clock that only it moves."""

from types import SimpleNamespace

from localspec.errors import ContextFull
from localspec.events import Cycle, Finished, FinishReason, Origin, Prefill, Reply, Source, Started, Stats
from localspec.llama.threads import Contention

PREFILL_SECONDS = 7.0


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class ScriptedSession:
    """`seconds(arm, prompt)` is what a token costs; arms are "plain", "auto" and numbers, as text.

    A pass that drafts writes `a_pass` tokens, unless nothing is `drafted`.
    """

    def __init__(self, clock, seconds, *, tokens=40, room=10**9, a_pass=4, drafted=40):
        self.clock, self.seconds, self.tokens, self.room = clock, seconds, tokens, room
        self.a_pass, self.drafted = a_pass, drafted
        self.asked = []
        self.resets = 0
        self.stored = False
        self.pair = SimpleNamespace(threads=Contention(1))

    def calibrate(self, stop):
        """Its costs are scripted."""

    def reset(self):
        self.resets += 1

    def stream(self, prompt, **options):
        if len(prompt) > self.room:
            raise ContextFull("too long", hint="")
        arm = str(options["depth"]) if options.get("speculate", True) else "plain"
        self.asked.append((arm, prompt, options))
        yield Started("t", "d", 10, 0, 0, options.get("seed", 0), "greedy", 1000)
        self.clock.now += PREFILL_SECONDS
        yield Prefill(9, 9, PREFILL_SECONDS)
        count = min(self.tokens, options["max_tokens"])
        began = self.clock.now
        for _ in range(count):
            self.clock.now += self.seconds(arm, prompt)
            yield Cycle((1,), (Origin.PLAIN,), (), 0, 0, Source.PLAIN, 1, 0.0, 0.0, 0.0)
        took = self.clock.now - began
        drafted = 0 if arm == "plain" else self.drafted
        cycles = int(-(-count // self.a_pass)) if drafted else count
        stats = Stats(
            cycles=cycles,
            emitted=count,
            drafted=drafted,
            verify_seconds=took,
            prompt_tokens=10,
            prefill_seconds=PREFILL_SECONDS,
        )
        yield Finished(Reply("x", "", (1,) * count, 0, FinishReason.LENGTH, stats))
