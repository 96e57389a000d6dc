"""The sampler options of a request, checked."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from localspec.errors import BadSetting
from localspec.options import check


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampler chain of a request; the defaults, names and meanings are llama.cpp's."""

    temperature: float = 0.8  # 0 is greedy
    top_k: int = 40  # 0 is off
    top_p: float = 0.95  # 1 is off
    min_p: float = 0.05  # 0 is off
    repeat_penalty: float = 1.0  # 1 is off
    repeat_last_n: int = 64  # tokens that the penalties look back; -1 is the whole text
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token, added to its logit); -inf bans the token

    def __post_init__(self) -> None:
        for option in fields(self):
            check(option.name, getattr(self, option.name))
        for token, bias in self.logit_bias:
            if not isinstance(token, int) or token < 0 or math.isnan(bias) or bias == math.inf:
                raise BadSetting(
                    f"logit_bias gives token {token} a bias of {bias}",
                    hint="a token is its number, 0 or more; a bias is a number, or -inf to ban the token",
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
        """Whether no penalty and no bias can raise a logit, so that the largest raw logits suffice."""
        penalties = (
            self.repeat_penalty >= 1.0 and self.presence_penalty >= 0.0 and self.frequency_penalty >= 0.0
        )
        return (penalties or not self.penalises) and all(bias <= 0.0 for _, bias in self.logit_bias)

    @property
    def logits_needed(self) -> int | None:
        """How many of a row's largest logits decide; None: all of them may."""
        head, looks_back = 1 if self.greedy else self.top_k, self.repeat_last_n if self.penalises else 0
        if not head or looks_back < 0 or not self.only_lowers:
            return None
        return head + looks_back + len(self.logit_bias)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> tuple["Sampling", tuple[str, ...]]:
        """The defaults in a GGUF's `general.sampling.*`, and a sentence for each unusable one."""
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
                    f"The model file sets {_PREFIX}{name} to {text!r}, which cannot be used; it stays {kept}."
                )
        return sampling, tuple(troubles)


_PREFIX = "general.sampling."


_METADATA: tuple[tuple[str, str, Callable[[str], float]], ...] = (
    ("temp", "temperature", lambda text: max(float(text), 0.0)),  # llama.cpp reads a negative one as greedy
    ("top_k", "top_k", lambda text: max(int(text), 0)),  # and a negative count as off
    ("top_p", "top_p", float),
    ("min_p", "min_p", float),
    ("penalty_repeat", "repeat_penalty", float),
    ("penalty_last_n", "repeat_last_n", int),
)
