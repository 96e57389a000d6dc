"""A smaller model that proposes: it decodes only what its cache lacks, one token ahead at a time."""

from collections.abc import Callable, Sequence

from localspec.errors import BackendFailure, ContextFull, LocalspecError, NotEnoughMemory
from localspec.events import Source
from localspec.speculation.protocols import Decoder, Draw, Proposal, Rule, Stopping

# Of a draft model: its target goes on without it.
FAILURES = (BackendFailure, ContextFull, NotEnoughMemory)


class ModelDrafter:
    """Drafts with a model that shares the target's vocabulary.

    After a cycle the cache holds the seed token and all draft tokens but the last; acceptance keeps a prefix of that,
    so the next proposal begins with one decode of the one or two tokens that are missing. A model that fails is not
    asked again: `failure` says what happened.
    """

    def __init__(self, decoder: Decoder, rule: Rule, is_end: Callable[[int], bool]) -> None:
        self._decoder = decoder
        self._rule = rule
        self._is_end = is_end
        self.failure: LocalspecError | None = None

    @property
    def busy_seconds(self) -> float:
        return self._decoder.busy_seconds

    @property
    def length(self) -> int:
        """Tokens of the text that the model has read."""
        return self._decoder.length

    def propose(self, tokens: Sequence[int], limit: int, stopping: Stopping | None = None) -> Proposal:
        decoder, text = self._decoder, list(tokens)
        assert decoder.length < len(text), "the newest token is never in the draft's cache"
        limit = 0 if self.failure else min(limit, decoder.capacity - len(text) + 1)
        draws: list[Draw] = []
        while len(draws) < limit:
            try:
                (row,) = decoder.decode(text[decoder.length :], rows=1)
                draw = self._rule.draw(row, text, len(tokens))
            except FAILURES as error:
                # What was drawn before is proposed: dropping it could favour the tokens that do not fail.
                self.failure, limit = error, len(draws)
                break
            if stopping and not stopping.keeps(draw.confidence, len(draws)):
                break
            draws.append(draw)
            text.append(draw.token)
            # Nothing can follow an end-of-generation token; it stays in the proposal, so stopping biases nothing.
            if self._is_end(draw.token) or (stopping and not stopping.goes_on(len(draws))):
                break
        return Proposal(
            tokens=tuple(draw.token for draw in draws),
            q=tuple(draw.q for draw in draws),
            confidences=tuple(draw.confidence for draw in draws),
            source=Source.MODEL,
            depth=max(limit, 0),
        )

    def settle(self, tokens: Sequence[int]) -> None:
        self._decoder.rollback(min(self._decoder.length, len(tokens) - 1))
