"""What drafting cost or saved against plain decoding: the guard that trusts nothing but the plain step."""

CREDIT = 10.0  # plain steps: savings beyond this buy no patience
LIMIT = 5.0  # plain steps: a loss beyond this switches drafting off
PROBATION = 2.5  # plain steps of patience after drafting was switched on again
EXPECTED_GAIN = 0.01  # drafting must win this share of the time, or its debt grows


class Ledger:
    """Debt of drafting: what its cycles took, less what plain decoding takes for the same tokens."""

    def __init__(self) -> None:
        self.debt = 0.0  # plain steps

    def begin(self) -> None:
        """Another reply: old debts leave it some patience."""
        self.debt = min(self.debt, LIMIT - PROBATION)

    def learn(self, seconds: float, tokens: int, plain_seconds: float) -> None:
        spent = seconds / plain_seconds - tokens * (1 - EXPECTED_GAIN)
        self.debt = max(-CREDIT, self.debt + spent)

    @property
    def broken(self) -> bool:
        return self.debt > LIMIT

    def probation(self) -> None:
        """Drafting is on again, with some patience to prove itself."""
        self.debt = LIMIT - PROBATION
