"""How a proposal is drawn from the rows of a draft model, whatever the model is."""

from collections.abc import Callable, Generator, Sequence

from localspec.algorithm.protocols import Drafter, Draw, Proposal, Rule, Stopping
from localspec.errors import BackendFailure, ContextFull, LocalspecError, NotEnoughMemory
from localspec.passes import Row

# Of a draft model: its target goes on without it.
FAILURES = (BackendFailure, ContextFull, NotEnoughMemory)

Rows = Generator[Row, int, None]
"""The row after the text, then after each token that is sent, until there is none."""


def draw(
    drafter: Drafter,
    rows: Rows,
    tokens: Sequence[int],
    limit: int,
    rule: Rule,
    stopping: Stopping | None,
    is_end: Callable[[int], bool],
) -> tuple[Proposal, LocalspecError | None]:
    """At least one row and at most `limit` tokens to follow `tokens`; and why the model failed, if it did."""
    text, draws, asked = list(tokens), list[Draw](), 1
    failure: LocalspecError | None = None
    try:
        row = next(rows)
        while True:
            found = rule.draw(row, text, len(tokens))
            if stopping and not stopping.keeps(found.confidence, len(draws)):
                break
            draws.append(found)
            text.append(found.token)
            # Nothing can follow an end-of-generation token; it stays in the proposal, so stopping biases nothing.
            if len(draws) == limit or is_end(found.token):
                break
            takes_a_run = drafter.steps(asked + 1) > drafter.steps(asked)
            if stopping and takes_a_run and not stopping.goes_on(len(draws)):
                break
            asked += 1
            row = rows.send(found.token)
    except StopIteration:
        pass
    except FAILURES as error:
        # What was drawn before is proposed: dropping it could favour the tokens that do not fail.
        failure, limit = error, len(draws)
    return Proposal.drawn(draws, drafter.source, depth=limit, runs=drafter.steps(asked)), failure
