"""The speculative loop: draft, verify, accept, roll back, emit. Plain decoding is the empty proposal.

Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023), Algorithm 1.
"""

from collections.abc import Callable, Iterator
from time import perf_counter

from localspec.algorithm.protocols import Decoder, Proposal, Rule, Strategy, Verdict
from localspec.events import Cycle, Origin, Source
from localspec.sampler.passes import Pass, first_tokens


def speculate(
    target: Decoder,
    strategy: Strategy,
    tokens: list[int],
    *,
    rule: Rule,
    room: int,
    is_end: Callable[[int], bool],
    clock: Callable[[], float] = perf_counter,
) -> Iterator[Cycle]:
    """Extend `tokens` in place by up to `room` tokens, one cycle at a time; ends after an end-of-generation token.

    `tokens` is the prompt and the reply so far; its last token x is in no cache yet. Between cycles everything is
    consistent: stop iterating to cancel, call again with the same arguments to continue.
    """
    while room > 0:
        assert target.length == len(tokens) - 1, "the target has decoded everything but the newest token"
        began, target_busy, draft_busy = clock(), target.busy_seconds, strategy.busy_seconds

        proposal = strategy.propose(tokens, room - 1)
        assert len(proposal.tokens) < room, "a proposal leaves room for the target's own token"
        batch = decoded(target, [tokens[-1], *proposal.tokens], proposal.padding)
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
            other_seconds=clock() - began - draft_seconds - verify_seconds - batch.waited_seconds,
            mode=proposal.mode,
            reading_seconds=proposal.reading_seconds,
            deciding_seconds=proposal.deciding_seconds,
            replies=batch.replies,
            pass_width=batch.pass_width,
            waited_seconds=batch.waited_seconds,
        )
        strategy.learn(cycle)
        yield cycle
        room -= len(emitted)
        if is_end(emitted[-1]):
            return


def decoded(target: Decoder, tokens: list[int], padding: int) -> Pass:
    """The pass over these tokens, padded by up to `padding` tokens."""
    padding = min(padding, target.capacity - target.length - len(tokens))
    filled = target.decode(tokens + tokens[-1:] * padding, rows=len(tokens) + padding)
    return first_tokens(filled, len(tokens)) if padding else filled


def emit(
    proposal: Proposal, verdict: Verdict, is_end: Callable[[int], bool]
) -> tuple[tuple[int, ...], tuple[Origin, ...]]:
    """The tokens that a verdict adds to the text, cut after the first end-of-generation token, with their origins."""
    kept = proposal.tokens[: verdict.accepted]
    for i, token in enumerate(kept):
        if is_end(token):
            return kept[: i + 1], origins_of_kept(i + 1, proposal)
    return (*kept, verdict.next_token), (*origins_of_kept(len(kept), proposal), verdict.origin)


def origins_of_kept(count: int, proposal: Proposal) -> tuple[Origin, ...]:
    forced = min(count, proposal.certain)
    return (Origin.FORCED,) * forced + (Origin.ACCEPTED,) * (count - forced)
