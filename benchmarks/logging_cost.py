"""What `remember_logits` costs a cycle: the reply's thread copies rows, another one finds the likeliest tokens.

    python -m benchmarks.logging_cost TARGET [--draft FILE] [--depth 4] [--replies 20] [--tokens 48]

Two sessions of the same files take turns, one of which logs; the same prompts in the same order. "copying" is what
the log does in the reply's thread, by the clock and in processor time; "other" is all that the thread does beside
llama.cpp, where waiting for the log's thread would show; "cycle" is the whole. Medians of cycles that
emitted so many tokens.
"""

import argparse
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from time import perf_counter, thread_time

import numpy as np

import localspec
from localspec.events import Cycle
from localspec.logits.log import LoggedReply
from localspec.measure.prompts import built_in_prompts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("--draft", default="lookup")
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--replies", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--temperature", type=float, default=0.0)
    options = parser.parse_args()
    with ExitStack() as stack:
        os.environ["LOCALSPEC_HOME"] = stack.enter_context(tempfile.TemporaryDirectory())
        sessions = {
            logs: stack.enter_context(
                localspec.load(
                    target=options.target,
                    draft=options.draft,
                    threads=1,
                    context_length=1024,
                    remember_logits=logs,
                )
            )
            for logs in (False, True)
        }
        copying = timed_copies()
        found: dict[bool, list[Cycle]] = {False: [], True: []}
        prompts = built_in_prompts()
        for number in range(options.replies):
            for logs in (False, True) if number % 2 else (True, False):
                found[logs] += cycles(sessions[logs], prompts[number % len(prompts)].text, options)
    print("| emitted | cycles | copying | processor time | other, off | on | cycle, off | on |")
    print("|---|---|---|---|---|---|---|---|")
    every = range(1, options.depth + 2)
    for emitted in (*([count] for count in every), every):
        copies = [copy for copy in copying if copy[0] in emitted]
        off, on = ([cycle for cycle in found[logs] if len(cycle.tokens) in emitted] for logs in (False, True))
        if off and on:
            columns = [
                f"{np.median(seconds) * 1000:.3f} ms"
                for seconds in (
                    [clock for _, clock, _ in copies],
                    [processor for *_, processor in copies],
                    *([cycle.other_seconds for cycle in these] for these in (off, on)),
                    *([cycle.seconds for cycle in these] for these in (off, on)),
                )
            ]
            name = "any" if emitted is every else str(*emitted)
            print("| " + " | ".join([name, str(len(on)), *columns]) + " |")


def timed_copies() -> list[tuple[int, float, float]]:
    """From now on of every cycle that is logged: tokens, seconds by the clock, seconds of the processor."""
    see, found = LoggedReply.see, list[tuple[int, float, float]]()

    def timed(self: LoggedReply, rows: Sequence[np.ndarray], tokens: Sequence[int]) -> None:
        clock, processor = perf_counter(), thread_time()
        see(self, rows, tokens)
        found.append((len(tokens), perf_counter() - clock, thread_time() - processor))

    LoggedReply.see = timed
    return found


def cycles(session: localspec.Session, prompt: str, options: argparse.Namespace) -> list[Cycle]:
    """Of one reply, without the first two."""
    session.reset()
    events = session.stream(
        prompt, temperature=options.temperature, seed=1, depth=options.depth, max_tokens=options.tokens
    )
    return [event for event in events if isinstance(event, Cycle)][2:]


if __name__ == "__main__":
    main()
