"""Recorded edits, tool calls and fresh texts on a real pair, beside llama.cpp's server in its n-gram modes, in turns.

    python -m benchmarks.edits --server DIR/bin/llama-server --target FILE.gguf [--draft FILE.gguf] --rows FILE

The questions are those of `edits.json`, at temperature 0, over the chat interfaces of both; `--only` names some of
them, `--modes` some of the server's. Fresh texts are written by the server without drafting only. Rates are tokens per
second after the first token. `--clock cpu --threads 1` takes processor time, for a machine that is in use. A line of
JSON for each answer is added to `--rows`, and printed are the medians of all its lines.
"""

import argparse
import json
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import harmonic_mean, median
from time import perf_counter, process_time
from typing import Any, get_args

import httpx

import localspec
from benchmarks.busy import CONTEXT
from benchmarks.server.sides import Clock, Flags, ServerSide
from localspec.api import default_threads
from localspec.events import Cycle, Finished
from localspec.measure.summary import this_machine

OURS, PLAIN = "localspec", "plain"
MODES = {  # of the server, by the names in the table
    PLAIN: {},
    "mod": {"type": "ngram-mod"},
    "mod 8, 4-15": {"type": "ngram-mod", "ngram-mod-n-match": 8, "ngram-mod-n-min": 4, "ngram-mod-n-max": 15},
    "simple": {"type": "ngram-simple"},
    "simple 4, 12": {"type": "ngram-simple", "ngram-simple-size-n": 4, "ngram-simple-size-m": 12},
    "map-k 6, 15": {"type": "ngram-map-k", "ngram-map-k-size-n": 6, "ngram-map-k-size-m": 15},
}
GROUPS = {"edits": "edits", "other calls": "calls", "fresh": "fresh"}  # of edits.json, and here
FIELDS = {"path": {"type": "string"}, "content": {"type": "string"}}
SCHEMA = {"type": "object", "properties": FIELDS, "required": [*FIELDS]}
TOOL = {
    "type": "function",
    "function": {"name": "write_file", "description": "Write a file", "parameters": SCHEMA},
}
Ask = Callable[[Mapping[str, Any]], float]


def questions(only: Sequence[str]) -> list[dict[str, str]]:
    """Return the group, the kind and the user's text of each recorded question."""
    replies = json.loads((Path(__file__).parent / "edits.json").read_text(encoding="utf-8"))
    return [
        {"group": GROUPS[r["group"]], "kind": r["kind"], "text": r["prompt"].split("<|im_start|>user\n")[1]}
        for r in replies
        if r["group"] in GROUPS and (not only or f"{GROUPS[r['group']]}/{r['kind']}" in only)
    ]


def request(question: Mapping[str, str], most: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": question["text"].split("<|im_end|>")[0]}]
    tools = {"tools": [TOOL], "tool_choice": "required"} if question["group"] == "calls" else {}
    return {"messages": messages, "max_tokens": most, "temperature": 0, **tools}


def local_rate(session: localspec.Session, clock: Clock, asked: Mapping[str, Any]) -> float:
    options = dict(asked)
    now = perf_counter if clock == "wall" else process_time
    times, tokens = [], []
    for event in session.stream(options.pop("messages"), **options):
        if isinstance(event, Cycle):
            times.append(now())
            tokens.append(len(event.tokens))
        if isinstance(event, Finished):
            return sum(tokens[1:]) / (times[-1] - times[0])
    raise AssertionError("a run ends with Finished")


class ChatServer(ServerSide):
    """A llama-server process that drafts by n-grams, asked over its chat interface."""

    def __init__(self, options: argparse.Namespace, mode: Mapping[str, Any], log: Path) -> None:
        self._more = [part for name, value in mode.items() for part in (f"--spec-{name}", value)]
        super().__init__(
            options.server, options.target, options.target, Flags(0), context=CONTEXT * 2, log=log,
            threads=options.threads or default_threads(), clock=options.clock, more=[*self._more, "--jinja"],
        )  # fmt: skip

    def rate(self, asked: Mapping[str, Any]) -> float:
        if self._clock == "cpu":  # a reply of one token is its prompt's processor time
            reading, _ = self._answer({**asked, "max_tokens": 1})
            busy, timings = self._answer(asked)
            return (timings["predicted_n"] - 1) / (busy - reading)
        _, timings = self._answer(asked)
        return (timings["predicted_n"] - 1) / timings["predicted_ms"] * 1000

    def _answer(self, asked: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
        """Return the processor seconds of a request, and the server's timings."""
        before = self.busy_seconds()
        body = {**asked, "cache_prompt": False, "top_k": 1}
        with httpx.Client(timeout=3600) as client:
            answer = client.post(f"{self.address}/v1/chat/completions", json=body).raise_for_status().json()
        return self.busy_seconds() - before, answer["timings"]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the medians of all rates, and ratios to the server's best mode, as Markdown."""
    rates = defaultdict[tuple[str, str], dict[str, list[float]]](lambda: defaultdict(list))
    for row in rows:
        rates[row["group"], row["kind"]][row["side"]].append(row["rate"])
    lines = [
        f"| text | {OURS} | {' | '.join(MODES)} | of its best | of plain |",
        "|---" * (len(MODES) + 4) + "|",
    ]
    whole = defaultdict[str, dict[str, list[float]]](lambda: defaultdict(list))
    for (group, kind), sides in rates.items():
        found = {side: median(some) for side, some in sides.items()}
        for side, rate in found.items():
            whole[group][side].append(rate)
        lines.append(line(f"{group}: {kind}", found))
    lines += [
        line(f"**{group}**", {s: harmonic_mean(some) for s, some in found.items()})
        for group, found in whole.items()
    ]
    return "\n".join(lines)


def line(name: str, found: Mapping[str, float]) -> str:
    best = max(rate for side, rate in found.items() if side != OURS)
    cells = (f"{found[side]:.1f}" if side in found else "" for side in (OURS, *MODES))
    return f"| {name} | {' | '.join(cells)} | {found[OURS] / best:.2f} | {found[OURS] / found[PLAIN]:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", type=Path, required=True, help="see benchmarks/server/build.py")
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--rows", type=Path, required=True, help="a file of JSON lines, which grows")
    parser.add_argument("--home", type=Path, required=True, help="LOCALSPEC_HOME: costs are learned once")
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=[], help="edits/rename,fresh/mail"
    )
    parser.add_argument("--modes", type=lambda text: text.split(";"), default=[*MODES], help="plain;mod")
    parser.add_argument("--clock", choices=get_args(Clock), default="wall")
    parser.add_argument(
        "--threads", type=int, help="of both; default: one for each core, fewer for localspec beside others"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--max-tokens", type=int, default=700)
    options = parser.parse_args()
    os.environ["LOCALSPEC_HOME"] = str(options.home)
    print(this_machine().sentence(), flush=True)
    asked = questions(options.only)
    with ExitStack() as opened, options.rows.open("a", encoding="utf-8") as file:
        drafts = any(question["group"] != "fresh" for question in asked)
        load = {"target": options.target, "draft": options.draft, "context_length": CONTEXT * 2}
        session = opened.enter_context(localspec.load(**load, threads=options.threads))
        sides: dict[str, Ask] = {OURS: lambda asked: local_rate(session, options.clock, asked)}
        for name, mode in MODES.items():
            if name == PLAIN or (drafts and name in options.modes):
                log = options.rows.with_suffix(".log")
                sides[name] = opened.enter_context(ChatServer(options, mode, log)).rate
        for ask in sides.values():  # the first request reads the weights
            ask(
                {
                    "messages": [{"role": "user", "content": "Count to nine."}],
                    "max_tokens": 24,
                    "temperature": 0,
                }
            )
        for number in range(options.rounds):
            for place, question in enumerate(asked):
                names = [OURS, PLAIN] if question["group"] == "fresh" else [*sides]
                for name in names if (place + number) % 2 else reversed(names):
                    rate = sides[name](request(question, options.max_tokens))
                    row = {"group": question["group"], "kind": question["kind"], "side": name, "rate": rate}
                    print(json.dumps(row), file=file, flush=True)
    print(table([json.loads(row) for row in options.rows.read_text(encoding="utf-8").splitlines()]))


if __name__ == "__main__":
    main()
