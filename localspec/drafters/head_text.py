"""What a prediction head knows of the text: its tokens, hidden rows of the newest ones, and which rows it holds."""

from collections.abc import Sequence
from copy import copy

import numpy as np

from localspec.passes import Pass, standing

REMEMBERED = 8  # hidden rows that were read already: a text that is cut there goes on as if it had not been
UNKNOWN = -1  # in place of tokens that were not shown


class HeadText:
    """Row p of a head is made of the target's hidden row at position p and of the text's token p + 1.

    A head that guesses blocks has no tokens in its rows; that the newest of them may be read once more costs little.
    """

    def __init__(self) -> None:
        self.text: list[int] = []  # and the newest token, once it was drafted from
        self.first = 0  # position of the first row
        self.held = 0  # position after the last row that the head has read and that stands
        self._base = 0  # position of the first hidden row that is remembered
        self._hidden: list[np.ndarray] = []  # float32 [columns] each
        self._ends: dict[
            int, np.ndarray
        ] = {}  # hidden rows at the ends of prompt chunks: texts are cut there
        self._nothing = np.empty(0, dtype=np.float32)  # one of zeros

    @property
    def end(self) -> int:
        """Position after the last hidden row."""
        return self._base + len(self._hidden)

    @property
    def unread(self) -> int:
        """Rows that can be read, once the token after the last is known."""
        return self.end - self.held

    def hidden(self, end: int) -> np.ndarray:
        """Hidden rows of the unread positions before `end`, float32 [rows, columns]."""
        return np.stack(self._hidden[self.held - self._base : end - self._base])

    def follow(self, passed: Pass, kept: int) -> None:
        """As `Drafter.follow`."""
        start, tokens = passed.start, passed.tokens[:kept]
        self.text += [UNKNOWN] * (start - len(self.text))
        stands = standing(self.text, start, tokens)
        self.text[stands:] = tokens[stands - start :]
        if passed.hidden is None or not kept:
            self._cut(stands, stands)
        else:
            self._cut(start, stands)
            if start > self.end:  # nobody showed what stands between
                self._base, self._hidden = start, []
                self.restart()
            self._hidden += list(passed.hidden[:kept])
            self._nothing = np.zeros_like(self._hidden[-1])
            if not passed.rows:
                self._ends[start + kept - 1] = self._hidden[-1].copy()  # a view would keep the chunk

    def ends_with(self, tokens: Sequence[int]) -> bool:
        """Whether all but the newest of these tokens were shown; it is noted."""
        end = len(tokens) - 1
        if self.end != end or not self._hidden or len(self.text) < end:
            return False
        self.text[end:] = tokens[end:]
        return True

    def copy(self) -> "HeadText":
        """The same, of which either goes its own way."""
        copied = copy(self)
        copied.text, copied._hidden, copied._ends = list(self.text), list(self._hidden), dict(self._ends)
        return copied

    @property
    def bytes(self) -> int:
        """What the hidden rows take, about."""
        return sum(row.nbytes for row in (*self._hidden, *self._ends.values()))

    def hold(self, held: int) -> None:
        """The head has read the rows before this position."""
        self.held = held
        forgotten = max(held - REMEMBERED - self._base, 0)
        del self._hidden[:forgotten]
        self._base += forgotten

    def restart(self) -> None:
        """The head has forgotten all its rows: it begins with the oldest hidden row that is remembered."""
        self.first = self.held = self._base

    def _cut(self, end: int, stands: int) -> None:
        """Hidden rows before `end` are of this text, and so are tokens before `stands`."""
        del self._hidden[max(end - self._base, 0) :]
        self._ends = {position: row for position, row in self._ends.items() if position < end}
        self._base = min(self._base, end)
        self.held = min(self.held, stands - 1, self.end)
        if self.held < self.first or self.first == self.held < self._base:
            self.restart()
        elif self.held < self._base:  # its hidden row was forgotten: zeros say nothing
            forgotten = range(self.held, self._base)
            self._hidden[:0] = [self._ends.get(position, self._nothing) for position in forgotten]
            self._base = self.held
