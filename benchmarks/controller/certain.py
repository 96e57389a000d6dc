"""A target that is certain of every token, at measured costs: what drafts from a text alone are worth."""

from collections.abc import Iterator, Sequence

from localspec.algorithm.protocols import Strategy
from localspec.control.costs import CostTable
from localspec.events import Cycle

from .engine import accepted, cycle_of


def written(
    strategy: Strategy, prompt: Sequence[int], answer: Sequence[int], table: CostTable
) -> Iterator[Cycle]:
    """The cycles in which it writes an answer to a prompt."""
    tokens, done = list(prompt), 0
    while done < len(answer):
        proposal = strategy.propose(tokens, len(answer) - done - 1)
        kept = accepted([a == b for a, b in zip(proposal.tokens, answer[done:], strict=False)])
        verify_seconds = table.verify(len(proposal.tokens) + 1)
        cycle = cycle_of(proposal, tuple(answer[done : done + kept + 1]), verify_seconds=verify_seconds)
        tokens += cycle.tokens
        done += len(cycle.tokens)
        strategy.learn(cycle)
        yield cycle
