"""The checked sampler options of a request."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from localspec.errors import BadSetting
from localspec.options import MOST_LOGIT, check


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampler options of a request, with the names, meanings and defaults of llama.cpp."""

    temperature: float = 0.8  # 0 is greedy
    top_k: int = 40  # 0 is off
    top_p: float = 0.95  # 1 is off
    min_p: float = 0.05  # 0 is off
    repeat_penalty: float = 1.0  # 1 is off
    repeat_last_n: int = 64  # number of newest tokens that penalties count; -1 is the whole text
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # pairs of a token and its bias; -inf bans the token

    def __post_init__(self) -> None:
        for option in fields(self):
            check(option.name, getattr(self, option.name))
        for token, bias in self.logit_bias:
            if not isinstance(token, int) or token < 0 or not (bias == -math.inf or abs(bias) <= MOST_LOGIT):
                raise BadSetting(
                    f"logit_bias has an invalid entry: token {token!r}, bias {bias!r}",
                    hint="use token numbers of 0 or more, "
                    f"and biases from -{MOST_LOGIT:g} to {MOST_LOGIT:g}; -inf bans a token",
                )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalises(self) -> bool:
        """Whether the text so far changes the logits."""
        neutral = self.repeat_penalty == 1.0 and self.presence_penalty == 0.0 == self.frequency_penalty
        return self.repeat_last_n != 0 and not neutral

    @property
    def only_lowers(self) -> bool:
        """Whether penalties and biases can only lower logits. The largest raw logits then decide the result."""
        penalties = (
            self.repeat_penalty >= 1.0 and self.presence_penalty >= 0.0 and self.frequency_penalty >= 0.0
        )
        return (penalties or not self.penalises) and all(bias <= 0.0 for _, bias in self.logit_bias)

    @property
    def logits_needed(self) -> int | None:
        """The number of a row's largest logits that can change the result; None: all logits can."""
        head, looks_back = 1 if self.greedy else self.top_k, self.repeat_last_n if self.penalises else 0
        if not head or looks_back < 0 or not self.only_lowers:
            return None
        return head + looks_back + len(self.logit_bias)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> tuple["Sampling", tuple[str, ...]]:
        """Return the options in a GGUF's `general.sampling.*`, and a notice for each value that cannot be used."""
        sampling, troubles = cls(), []
        for name, field, parse in _METADATA:
            text = metadata.get(_PREFIX + name)
            if text is None:
                continue
            try:
                value: Any = parse(text)
                sampling = replace(sampling, **{field: value})
            except (ValueError, OverflowError, BadSetting):
                kept = getattr(sampling, field)
                troubles.append(
                    f"The model file's {_PREFIX}{name}, {text!r}, is not valid; {field} stays {kept}."
                )
        return sampling, tuple(troubles)


_PREFIX = "general.sampling."


_METADATA: tuple[tuple[str, str, Callable[[str], float]], ...] = (
    ("temp", "temperature", lambda text: max(float(text), 0.0)),  # negative: greedy, as in llama.cpp
    ("top_k", "top_k", lambda text: max(int(text), 0)),  # negative: off, as in llama.cpp
    ("top_p", "top_p", float),
    ("min_p", "min_p", float),
    ("penalty_repeat", "repeat_penalty", float),
    ("penalty_last_n", "repeat_last_n", int),
)
