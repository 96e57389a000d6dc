"""The order of the passes of several replies, and which of them share a pass. This module uses no threads."""

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from localspec.sampler.passes import ForwardPass

# Between two passes of replies, prompt tokens may take at most this many times the time of a plain pass.
PROMPT_SHARE = 2.5
FIRST_CHUNK = 5  # maximum prompt tokens beside other replies while the time of a prompt token is unknown
LEAST_CHUNK = 4  # at least this many prompt tokens are allowed between two passes
REMEMBERED = 32  # the quickest of this many latest passes estimates the time of a plain pass
MEASURED = 2  # the time of a pass width is known after this many passes of that width
NEWEST_PASSES = 5  # the time of a pass width is that of the quickest of this many passes
FORGOTTEN = 128  # the time of a pass width is forgotten after this many passes of other widths
NEWEST = 0.3  # weight of the newest measurement in the mean time of a prompt token


@dataclass(frozen=True, slots=True)
class Part:
    """The tokens that one slot adds to a pass. Each of the last `rows` tokens needs a row of logits."""

    slot: int
    tokens: Sequence[int]
    rows: int
    alone: bool = False  # whether the part needs a pass without parts of other slots


class SharedDecoder(Protocol):
    """A model whose KV cache contains several sequences, one for each slot."""

    def decode(self, parts: Sequence[Part]) -> Sequence[ForwardPass]:
        """Run one pass over at most one part of each slot. If the pass fails, the KV cache contains none of its tokens.

        Rows of logits are views, valid until the next pass; hidden rows are copies.
        """


@dataclass(frozen=True, slots=True)
class Want:
    """A part that waits for a pass of one model."""

    model: SharedDecoder
    part: Part
    kind: Hashable = None  # the kind of pass; only parts of one kind share a pass


@dataclass(slots=True)
class PassSeconds:
    """The usual time of a model's pass by its width, and of a prompt token."""

    # By pass width: the seconds of the newest passes of this width, and `_count` at the latest of them.
    _passes: dict[int, tuple[deque[float], int]] = field(default_factory=dict)
    _count: int = 0  # number of passes with rows
    _latest: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    token_seconds: float = 0.0  # usual time of a prompt token

    @property
    def plain_seconds(self) -> float:
        return min(self._latest, default=0.0)

    def learn(self, width: int, seconds: float) -> None:
        """Learn the time of a pass with rows. `width`: the number of its tokens, with padding."""
        self._latest.append(seconds)
        self._count += 1
        newest, _ = self._passes.get(width, (deque[float](maxlen=NEWEST_PASSES), 0))
        newest.append(seconds)
        self._passes[width] = newest, self._count
        oldest = self._count - FORGOTTEN
        self._passes = {each: known for each, known in self._passes.items() if known[1] > oldest}

    def learn_prompt(self, tokens: int, seconds: float) -> None:
        usual = self.token_seconds or seconds / tokens
        self.token_seconds = usual + NEWEST * (seconds / tokens - usual)

    def pays(self, widths: Sequence[int], width: int) -> bool:
        """Return whether a part of `width` tokens should join a pass over parts of `widths` tokens.

        A width of unknown time is measured: first the narrow pass without the part, then the wide one with it.
        """
        known = {each: min(found) for each, (found, _) in self._passes.items() if len(found) >= MEASURED}
        here, joint = len(widths) * max(widths), (len(widths) + 1) * max(*widths, width)
        if not known or min(here, width) < min(known):
            return False
        if joint > max(known):
            return True
        seconds = np.interp([here, width, joint], sorted(known), [known[each] for each in sorted(known)])
        return bool(seconds[2] < seconds[0] + seconds[1])


class PassOrder:
    """The order of the passes of a pair's models: the target and its draft models."""

    def __init__(self, target: SharedDecoder) -> None:
        self._target = target
        self._seconds: dict[tuple[SharedDecoder, Hashable], PassSeconds] = {}  # by model and kind of pass
        self._passes = 0
        self._served: dict[int, int] = {}  # by slot: the number of its latest pass
        self._prompt_may_come = True  # whether a target pass came after the last chunk of a prompt

    def seconds(self, model: SharedDecoder, kind: Hashable = None) -> PassSeconds:
        return self._seconds.setdefault((model, kind), PassSeconds())

    def chunk(self, model: SharedDecoder) -> int:
        """Return the largest number of prompt tokens between two passes of other replies."""
        plain, token = self.seconds(self._target).plain_seconds, self.seconds(model).token_seconds
        return max(int(PROMPT_SHARE * plain / token), LEAST_CHUNK) if plain and token else FIRST_CHUNK

    def following(self, waiting: Mapping[int, Want]) -> list[Want]:
        """Return the parts that the next pass decodes, all for one model.

        The slot whose last pass is the oldest comes first. One chunk of a prompt may come between two target passes.
        Draft models come before the target, so that all replies can share its next pass.
        """
        wants = sorted(
            waiting.values(), key=lambda want: (self._served.get(want.part.slot, 0), want.part.slot)
        )
        with_rows = [want for want in wants if want.part.rows]
        prompts = [want for want in wants if not want.part.rows]
        if prompts and (self._prompt_may_come or not with_rows):
            chosen, self._prompt_may_come = prompts[:1], False
        else:
            drafts = [want for want in with_rows if want.model is not self._target]
            chosen = self._sharing(drafts or with_rows)
            self._prompt_may_come |= not drafts
        self._passes += 1
        self._served.update((want.part.slot, self._passes) for want in chosen)
        return chosen

    def _sharing(self, wants: Sequence[Want]) -> list[Want]:
        """Return the first part, and the others that can share its pass in less time than separate passes take."""
        first, chosen = wants[0], [wants[0]]
        pays = self.seconds(first.model, first.kind).pays
        for want in wants[1:]:
            widths = [len(each.part.tokens) for each in chosen]
            alike = (want.model, want.kind) == (first.model, first.kind)
            if alike and not (first.part.alone or want.part.alone) and pays(widths, len(want.part.tokens)):
                chosen.append(want)
        return chosen
