"""The speculative loop: draft, verify, accept, roll back, emit. Plain decoding is a cycle with an empty proposal.

Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023), Algorithm 1.
"""

from collections.abc import Callable, Iterator
from time import perf_counter

from localspec.algorithm.protocols import LoopDecoder, Proposal, Rule, Strategy, Verdict
from localspec.events import Cycle, Origin, Source


def speculate(
    target: LoopDecoder,
    strategy: Strategy,
    tokens: list[int],
    *,
    rule: Rule,
    room: int,
    is_end: Callable[[int], bool],
    clock: Callable[[], float] = perf_counter,
) -> Iterator[Cycle]:
    """Extend `tokens` in place, cycle by cycle, by at most `room` tokens, and end after an end-of-generation token.

    `tokens` is the prompt and the reply so far; the last token is in no cache yet. Stop iterating to cancel, and call
    again to continue.
    """
    while room > 0:
        assert target.length == len(tokens) - 1, "the target has decoded everything but the newest token"
        began, target_busy, draft_busy = clock(), target.busy_seconds, strategy.busy_seconds

        proposal = strategy.propose(tokens, room - 1)
        assert len(proposal.tokens) < room, "a proposal leaves room for the target's own token"
        batch = target.decode([tokens[-1], *proposal.tokens], rows=len(proposal.tokens) + 1)
        if batch.queued:
            strategy.prepare(proposal, tokens)
        verdict = rule.verify(batch.rows, proposal, tokens)
        emitted, origins = emit(proposal, verdict, is_end)
        tokens += emitted
        target.rollback(len(tokens) - 1)
        strategy.observe(batch, kept=target.length - batch.start)

        draft_seconds = strategy.busy_seconds - draft_busy
        verify_seconds = target.busy_seconds - target_busy
        cycle = Cycle(
            tokens=emitted,
            origins=origins,
            proposal=proposal.tokens[proposal.certain :],
            accepted=origins.count(Origin.ACCEPTED),
            depth=proposal.depth,
            source=proposal.source if proposal.tokens else Source.PLAIN,
            width=len(proposal.tokens) + 1,
            draft_seconds=draft_seconds,
            verify_seconds=verify_seconds,
            other_seconds=max(clock() - began - draft_seconds - verify_seconds - batch.waited_seconds, 0.0),
            mode=proposal.mode,
            prefill_seconds=proposal.prefill_seconds,
            deciding_seconds=proposal.deciding_seconds,
            replies=batch.replies,
            running=batch.running,
            pass_width=batch.pass_width,
            waited_seconds=batch.waited_seconds,
        )
        strategy.learn(cycle)
        yield cycle
        room -= len(emitted)
        if is_end(emitted[-1]):
            return


def emit(
    proposal: Proposal, verdict: Verdict, is_end: Callable[[int], bool]
) -> tuple[tuple[int, ...], tuple[Origin, ...]]:
    """Return the tokens that a verdict adds to the text, up to an end-of-generation token, and their origins."""
    count, certain = verdict.accepted, proposal.certain
    tokens = (*proposal.tokens[:count], verdict.next_token)
    forced = min(certain, count)
    origins = (Origin.FORCED,) * forced + (Origin.ACCEPTED,) * (count - forced) + (verdict.origin,)
    for end, token in enumerate(tokens, start=1):
        if is_end(token):
            return tokens[:end], origins[:end]
    return tokens, origins
