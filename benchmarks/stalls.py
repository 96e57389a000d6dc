"""How long may a reply not be cancelled? A long prompt, answered without drafts and then with them.

    python -m benchmarks.stalls TARGET.gguf DRAFT.gguf [--prompt-tokens 7500] [--threads 1]

A cancelled reply ends at its next event, so the longest time between two events of the second reply is the longest
that a person waits for that. The draft has read nothing of the prompt when that reply begins.
"""

import argparse
from time import perf_counter

import localspec
from localspec.events import Cycle, Prefill, Started

LINES = "The keeper of the lighthouse writes down the weather, the ships and the birds of day {}.\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("--prompt-tokens", type=int, default=7500)
    parser.add_argument("--threads", type=int, default=1)
    wanted = parser.parse_args()
    context = wanted.prompt_tokens + 600
    with localspec.load(
        target=wanted.target, draft=wanted.draft, context_length=context, threads=wanted.threads
    ) as session:
        vocabulary, text, day = session.engine.vocabulary, "", 0
        while len(vocabulary.tokenize(text, parse_special=False)) < wanted.prompt_tokens:
            text, day = text + "".join(LINES.format(day + n) for n in range(20)), day + 20
        for name, speculate, tokens in (("without drafts", False, 8), ("with drafts", True, 300)):
            reply(session, name, f"{text}\nSum this up.", speculate=speculate, tokens=tokens)


def reply(session: localspec.Session, name: str, text: str, *, speculate: bool, tokens: int) -> None:
    """One reply to the whole text, in a conversation of its own, and the longest times between its events."""
    session.reset()
    gaps: dict[str, list[float]] = {"reading": [], "cycles": []}
    read, before, latest = 0.0, perf_counter(), None
    for event in session.stream(text, speculate=speculate, max_tokens=tokens, temperature=0.0):
        now = perf_counter()
        gaps["reading" if isinstance(event, Started | Prefill) else "cycles"].append(now - before)
        before = now
        if isinstance(event, Cycle):
            read = max(read, event.reading_seconds)
        latest = event
    stats, plain = latest.reply.stats, session.engine.drafting.drafting.costs.verify(1)
    waits = {part: 1000 * max(found, default=0.0) for part, found in gaps.items()}
    print(
        f"{name}: {stats.prompt_tokens} prompt tokens, {stats.reused_tokens} known, {stats.drafted} drafted; "
        f"a plain step {plain * 1000:.0f} ms\n  longest between two events: {waits['reading']:.0f} ms in the prompt, "
        f"{waits['cycles']:.0f} ms after it; the draft read for {stats.draft_reading_seconds:.2f} s in all, "
        f"for {read * 1000:.0f} ms of a cycle at most",
        flush=True,
    )


if __name__ == "__main__":
    main()
