"""The target answers prompts, several at once: what it writes, and what it thinks of meanwhile."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from localspec.llama.model import Model
from localspec.llama.several import Several
from localspec.logits import Text, likely_in

AT_ONCE = 8  # texts in one batch


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt, and what sums up every row of its answer."""

    prompt: Sequence[int]
    mass: np.ndarray | None = (
        None  # float64 [vocabulary]: each row adds the square roots of its probabilities
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """What the target writes behind a prompt at temperature 0."""

    asked: Asked
    tokens: list[int] = field(default_factory=list)
    _likely: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)

    def take(self, row: np.ndarray) -> int:
        """The next token, from the row behind the text so far."""
        if self.asked.mass is not None:
            np.add(self.asked.mass, np.exp((row - row.max()) / 2), out=self.asked.mass)
        self._likely.append(likely_in(row))
        self.tokens.append(int(row.argmax()))
        return self.tokens[-1]

    def text(self) -> Text:
        """With the likeliest tokens of every row."""
        likely, log_shares = map(np.stack, zip(*self._likely, strict=True))
        return Text(
            np.array(self.asked.prompt, np.int32), np.array(self.tokens, np.int32), likely, log_shares
        )


def answers(
    model: Model, prompts: Iterator[Asked], *, room: int, length: int, threads: int | None = None
) -> Generator[Answer]:
    """Answers of at most `room` tokens, as they come to their ends; prompts that leave no room are passed over."""
    fits = (asked for asked in prompts if len(asked.prompt) + room <= length)
    with Several(model, AT_ONCE, length, threads) as cache:
        writing: dict[int, Answer] = {}
        while True:
            for text in sorted(set(range(AT_ONCE)) - writing.keys()):
                if asked := next(fits, None):
                    writing[text] = Answer(asked)
                    writing[text].take(cache.begin(text, asked.prompt))
            ended = [
                text
                for text, answer in writing.items()
                if len(answer.tokens) >= room or model.vocab.is_end(answer.tokens[-1])
            ]
            for text in ended:
                yield writing.pop(text)
            if writing:
                newest = [(text, answer.tokens[-1]) for text, answer in writing.items()]
                for answer, row in zip(list(writing.values()), cache.append(newest), strict=True):
                    answer.take(row)
            elif not ended:
                return
