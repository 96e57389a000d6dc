"""Sentences about speed, recomputed from the cycles of the replies that they are about.

    python -m benchmarks.speed_sentences KIND OUT.jsonl --replies 30 --target FILE [--draft FILE] [--busy]

Every reply is written twice, with and without drafting. Each place that speaks of its speed is asked for its text: the
line and the numbers of `run`, the meter and footer of the chat, the server's log and timings, the race, the notices.
Nothing here uses the statistics of localspec: `Facts` counts again from the cycles. A sentence is wrong if a number in
it is another one, if a gain or a loss is larger than the draft tokens can have caused, or if the cycles show another
side of 1. A text about speed that no pattern reads is wrong too.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from types import SimpleNamespace

from localspec.tui.state.engine import ReplyState
from localspec.tui.status import footer, gain
from localspec.tui.widgets.lines import meter_line

import localspec
from localspec.cli.commands.run import report, summary, why_not_drafted
from localspec.cli.commands.serve import line_of
from localspec.events import Cycle, Finished, Mode, Notice, Reply
from localspec.measure.race import headline
from localspec.serve.numbers import Served, timings

PROMPTS = (
    "Why is the sky blue?",
    "Repeat this list twice: red, green, blue, yellow, black, white, brown.",
    "Write a Python function that sorts a list, with comments.",
    "Say 'the cat sat on the mat' ten times.",
    "Tell me a short story about a boat.",
    "Write JSON with ten objects that have a name and an age.",
)
LENGTHS = (5, 20, 33, 60, 90, 150, 250, 400)
NEAR = 1.15  # a speed that is measured from the cycles may differ by this factor from the one in a sentence


@dataclass(frozen=True)
class Facts:
    """What the cycles of one reply say."""

    cycles: Sequence[Cycle]
    prefill: float = 0.0  # seconds of the draft's prefill, which belongs to no cycle

    @property
    def seconds(self) -> float:
        return self.prefill + sum(c.draft_seconds + c.verify_seconds + c.other_seconds for c in self.cycles)

    @property
    def tokens(self) -> int:
        return sum(len(c.tokens) for c in self.cycles)

    @property
    def drafted(self) -> int:
        return sum(len(c.proposal) for c in self.cycles)

    @property
    def accepted(self) -> int:
        return sum(c.accepted for c in self.cycles)

    @property
    def plain_steps(self) -> list[float]:
        """The seconds of the passes that a reply without drafts has too."""
        plain = [c for c in self.cycles if not c.proposal and not c.draft_seconds and c.width == 1]
        return [c.verify_seconds + c.other_seconds - c.deciding_seconds for c in plain]

    def trouble(self, ratio: float, rounding: float) -> str:
        """Why no draft tokens can have caused a ratio to plain decoding, or why the cycles contradict it."""
        step = ratio * self.seconds / self.tokens
        slack = rounding * self.seconds + 1e-9
        saved, cost = (ratio - 1) * self.seconds, self.cost(step)
        if saved > self.accepted * step + slack:
            return f"gains {saved:.3f} s from {self.accepted} accepted tokens of {step:.4f} s"
        if -saved > cost + slack:
            return f"loses {-saved:.3f} s, and drafting cost {cost:.3f} s"
        if len(steps := self.plain_steps) >= 8:
            usual = mean(steps) * self.tokens / self.seconds
            likely, near = self.bounded(usual), tolerance(steps)
            if not ratio / near - rounding <= likely <= ratio * near + rounding:
                return f"the plain steps of the reply give {usual:.2f}, bounded {likely:.2f}"
        return ""

    def bounded(self, ratio: float) -> float:
        """The nearest ratio within the bounds, by bisection."""
        if not self._outside(ratio):
            return ratio
        inside, outside = 1.0, ratio
        for _ in range(40):
            middle = (inside + outside) / 2
            inside, outside = (inside, middle) if self._outside(middle) else (middle, outside)
        return inside

    def _outside(self, ratio: float) -> bool:
        step, saved = ratio * self.seconds / self.tokens, (ratio - 1) * self.seconds
        return saved > self.accepted * step or -saved > self.cost(step)

    def cost(self, step: float) -> float:
        """The seconds that drafting cost: of the draft, the decisions, and wide passes beyond a plain step each."""
        wide = [c for c in self.cycles if c.draft_seconds or c.width > 1]
        beyond = sum(c.draft_seconds + c.verify_seconds - step for c in wide)
        return max(self.prefill + beyond + sum(c.deciding_seconds for c in self.cycles), 0.0)


def tolerance(steps: Sequence[float]) -> float:
    """The factor by which the mean of these steps may differ from another measurement of the same cost."""
    return max(NEAR, 1 + 3 * stdev(steps) / mean(steps) / len(steps) ** 0.5) if len(steps) > 1 else 2.0


def wrong(text: str, facts: Facts) -> Iterator[str]:
    """Yield what is wrong in a text about a reply's speed."""
    rest = text
    for pattern, check in CHECKS:
        for found in re.finditer(pattern, rest):
            if reason := check(found, facts):
                yield f"{found[0]!r}: {reason}"
        rest = re.sub(pattern, " ", rest)
    if about := re.search(r"faster|slower|\blost\b|\bsaved\b|\dx\b|as fast|\bgain\b|instead", rest):
        yield f"not read: {rest[max(about.start() - 60, 0) : about.end() + 60]!r}"


def number(text: str) -> float:
    return float(text.replace(",", ""))


def rounding(text: str) -> float:
    return 0.51 * 10 ** -len(text.partition(".")[2])


def is_near(text: str, value: float) -> str:
    return "" if abs(number(text) - value) <= rounding(text) + 1e-3 * value else f"it is {value:.4f}"


def ratio(found: re.Match[str], facts: Facts) -> str:
    side = 1 if "faster" in found[0] else -1 if "no gain" in found[0] or "Slower" in found[0] else 0
    if side * (number(found[1]) - 1) < 0:
        return "the word and the number differ"
    return facts.trouble(number(found[1]), rounding(found[1]))


def same(_: re.Match[str], facts: Facts) -> str:
    return min((facts.trouble(value, 0.03) for value in (0.98, 1.0, 1.02)), key=len)


def plain_speed(found: re.Match[str], facts: Facts) -> str:
    value = facts.tokens / facts.seconds / number(found[1])
    return facts.trouble(value, rounding(found[1]) / number(found[1]) * value + 0.005)


def seconds_saved(found: re.Match[str], facts: Facts) -> str:
    sign = -1 if found[0].endswith("lost") else 1
    value = sign * number(found[1])
    return facts.trouble(1 + value / facts.seconds, rounding(found[1]) / facts.seconds)


def why_off(found: re.Match[str], facts: Facts) -> str:
    drafting = [c for c in facts.cycles if c.proposal and c.source in ("model", "head")]
    if not drafting:
        return "nothing was drafted by a model"
    share, cost = number(found[1]) / 100, number(found[2]) / 100
    if share >= cost:
        return "what was accepted pays for the cost"
    steps = facts.plain_steps
    paid = sum(c.seconds for c in drafting) / mean(steps) if steps else 0.0
    earned = sum(len(c.tokens) for c in drafting)
    return (
        f"{len(drafting)} cycles of {paid:.1f} steps gave {earned} tokens"
        if paid and paid * tolerance(steps) < earned
        else ""
    )


def off_without_cost(_: re.Match[str], facts: Facts) -> str:
    spent = sum(c.draft_seconds for c in facts.cycles)
    return "" if spent or any(c.mode is Mode.OFF for c in facts.cycles) else "nothing was spent on drafts"


def hardly(_: re.Match[str], facts: Facts) -> str:
    return "" if facts.drafted <= 0.1 * facts.tokens else f"{facts.drafted} draft tokens"


def read(_: re.Match[str], _facts: Facts) -> str:
    return ""


CHECKS = (
    (r"(\d+\.\d+)x faster", ratio),
    (r"no gain here: (\d+\.\d+)x", ratio),
    (r"no gain here: drafting is off", off_without_cost),
    (r"(\d+\.\d+)x plain", ratio),
    (r"Slower, (\d+\.\d+) times as fast", ratio),
    (r"(\d+\.\d+) times as fast", ratio),
    (r"[Aa]s fast as plain decoding", same),
    (r"\(plain (\d+(?:\.\d+)?)\)", plain_speed),
    (r"(\d+\.\d+) s (?:saved|lost)", seconds_saved),
    (r"lately (\d+)% of the draft tokens were accepted, but each took (\d+)% of the time of a token", why_off),
    (r"the times measured so far show no gain from it", off_without_cost),
    (r"(?i)almost nothing was drafted", hardly),
    (r"([\d.]+) s instead of [\d.]+ s", lambda found, facts: is_near(found[1], facts.seconds)),
    (r"([\d.]+) instead of [\d.]+ tokens/s", lambda found, facts: is_near(found[1], facts.tokens / facts.seconds)),
    (r"([\d,]+\.\d+) tok(?:ens)?/s", lambda found, facts: is_near(found[1], facts.tokens / facts.seconds)),
    (r"(\d+\.\d+) tokens per pass", lambda found, facts: is_near(found[1], facts.tokens / len(facts.cycles))),
    (r"tokens per pass +(\d+\.\d+)", lambda found, facts: is_near(found[1], facts.tokens / len(facts.cycles))),
    (r"([\d,]+) of ([\d,]+) draft tokens? accepted", lambda found, facts: ""
     if (number(found[1]), number(found[2])) == (facts.accepted, facts.drafted) else "other counts"),
    (r"acceptance(?: rate)? (\d+)%",
     lambda found, facts: is_near(found[1], 100 * facts.accepted / max(facts.drafted, 1))),
    (r"plain decoding is expected to be faster here", hardly),
    (r"drafting cannot speed it up|gain not known yet|too short to know the gain|gain not measured|text is "
     r"drafted only where it repeats itself and that saves time|Too few tokens to compare the speed|A difference in "
     r"time is noise|Not measured", read),
)  # fmt: skip


def texts(
    reply: Reply, notices: Sequence[tuple[str, int]], cycles: Sequence[Cycle], plain: Reply | None, kind: str
) -> dict[str, str]:
    stats, state = reply.stats, ReplyState(1, is_demo=kind == "demo")
    for cycle in cycles:
        state.absorb(cycle)
    state.final = stats
    engine = SimpleNamespace(
        pair_name=kind, settings={}, comparing=False, reply=None, last_reply=state, ready=None
    )
    served = Served("POST", "/v1", 200, 1.0, "", (reply,))
    found = {
        "run": summary(reply, kind),
        "stats": report(reply),
        "repr": repr(stats),
        "gain": gain(engine, state)[0],
        "meter": meter_line(engine, 300).plain,
        "footer": "" if kind == "demo" else footer(state.message("stop", reply)),
        "log": line_of(served),
        "why": " ".join(
            why_not_drafted(reply, argparse.Namespace(no_draft=False, depth=None, draft=None), "d")
        ),
        "notices": " ".join(text for text, _ in notices),
    }
    numbers = timings(reply, ())["localspec"]
    if numbers["speedup"] is not None and stats.drafted and kind != "demo":
        found["timings"] = f"{numbers['speedup']:.3f}x plain, {abs(numbers['saved_ms']) / 1000:.4f} s "
        found["timings"] += "lost" if numbers["saved_ms"] < 0 else "saved"
    if plain is not None and kind != "demo":
        compared = (plain.stats.decode_seconds / plain.stats.emitted) * stats.tokens_per_second
        seconds = plain.stats.decode_seconds, stats.decode_seconds
        found["race"] = headline(compared, plain.tokens == reply.tokens, seconds, stats)
    return found


def run(
    session: localspec.Session, prompt: str, **options: object
) -> tuple[Reply, list[Cycle], list[tuple[str, int]]]:
    """Write a reply. Return it with its cycles, and its notices with the number of cycles before each."""
    cycles, notices = list[Cycle](), list[tuple[str, int]]()
    for event in session.another().stream(prompt, **options):
        match event:
            case Cycle():
                cycles.append(event)
            case Notice(text=text):
                notices.append((text, len(cycles)))
            case Finished(reply=reply):
                return reply, cycles, notices
    raise AssertionError


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("out", type=Path)
    parser.add_argument("--replies", type=int, default=30)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--longest", type=int, default=400)
    for name in ("--target", "--draft"):
        parser.add_argument(name)
    parser.add_argument("--busy", action="store_true")
    given = parser.parse_args()
    wanted = {"pair": "demo"} if given.target is None else {"target": given.target, "draft": given.draft}
    spinners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * given.busy)]
    try:
        with (
            localspec.load(**wanted, context_length=1024, threads=2, cache_gb=0) as session,
            given.out.open("a") as out,
        ):
            for number_of_reply in range(given.first, given.first + given.replies):
                prompt = PROMPTS[number_of_reply % len(PROMPTS)]
                length = min(LENGTHS[number_of_reply % len(LENGTHS)], given.longest)
                options = {"temperature": 0.0 if number_of_reply % 3 else 0.7, "max_tokens": length}
                options |= {"seed": number_of_reply} if number_of_reply % 3 == 0 else {}
                reply, cycles, notices = run(session, prompt, **options)
                plain = (
                    run(session, prompt, **options, speculate=False)[0] if number_of_reply % 3 == 1 else None
                )
                before = reply.stats.draft_prefill_seconds - sum(c.prefill_seconds for c in cycles)
                facts = Facts(cycles, max(before, 0.0))
                until = [(text, Facts(cycles[:count], facts.prefill)) for text, count in notices]
                if not facts.tokens:
                    continue
                found = texts(reply, notices, cycles, plain, given.kind)
                said = [(place, text, facts) for place, text in found.items() if place != "notices"]
                said += [("notice", text, of) for text, of in until]
                bad = [f"{place}: {why}" for place, text, of in said for why in wrong(text, of)]
                row = {"kind": given.kind, "busy": given.busy, "tokens": facts.tokens, "drafted": facts.drafted,
                       "accepted": facts.accepted, "seconds": facts.seconds, "texts": found, "wrong": bad}  # fmt: skip
                out.write(json.dumps(row) + "\n")
                out.flush()
                print(given.kind, facts.tokens, facts.drafted, facts.accepted, found["gain"], bad, flush=True)
    finally:
        for spinner in spinners:
            spinner.kill()


if __name__ == "__main__":
    main()
