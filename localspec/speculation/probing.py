"""When drafting that was switched off is tried again, and when that has convinced or failed."""

SHARE = 0.02  # of a plain step: what every token written without drafting adds to the budget of probes
GIFT = 1.0  # plain steps that a new reply adds: it may be of another kind
CONVINCING = 1.0  # plain steps that a probe has to win
LOST = 0.75  # of its stake: a probe that has lost so much is over
DEAREST = 4.0  # plain steps: no probe delays the next one by more
MOST_WAIT = 1024  # tokens after which a probe comes whatever has to be read for it
PATIENCE_GROWTH, MOST_PATIENCE = 1.5, 10.0  # within a reply failed probes come ever more rarely


class Probes:
    """The budget of probes, in plain steps: one may overdraw it, and the next one waits until that is saved."""

    def __init__(self) -> None:
        self.probing = False
        self._budget = 0.0
        self._won = 0.0  # by the probe under way
        self._waited = 0  # tokens since the last one
        self._patience = 1.0

    def begin(self) -> None:
        """Another reply; a probe that the last one cut short is over."""
        if self.probing:
            self._end()
        self._patience = 1.0
        self._budget += GIFT

    def restart(self) -> None:
        """Drafting was switched off just now."""
        self.probing, self._budget, self._waited = False, 0.0, 0

    def save(self, tokens: int, stake: float, reading: float) -> None:
        """Tokens were written without drafting; a probe begins when `stake` and `reading` can be paid for.

        `stake`: what it may lose. `reading`: what the draft model has to catch up on before it.
        """
        self._budget += SHARE * tokens
        self._waited += tokens
        if self._budget >= self._patience * stake + reading or self._waited >= self._patience * MOST_WAIT:
            self.probing, self._won = True, 0.0

    def convinced(self, won: float, stake: float) -> bool:
        """Count what a cycle of the probe won or lost; it goes on until it has convinced or lost too much."""
        self._won += won
        convinced = self._won >= CONVINCING
        if convinced or self._won <= -LOST * stake:
            self._end()
            self._patience = min(self._patience * PATIENCE_GROWTH, MOST_PATIENCE)
        return convinced

    def _end(self) -> None:
        self.probing, self._waited = False, 0
        self._budget = max(min(self._won, 0.0), -DEAREST)
