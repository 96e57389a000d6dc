"""End reasoning that has spent its budget: force the closing text, so that the answer follows."""

import re
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np

from localspec.chat.request import Request
from localspec.chat.text import Detokenizer, TextStream, Thinking
from localspec.prompt.thinking import A, R
from localspec.sampler.passes import Candidates, Continued, Row, common_prefix_length
from localspec.structure.constraint import Constrained, Mask, MiddleTokenizer


@dataclass(frozen=True, slots=True)
class _State:
    """The state after some tokens of a reply."""

    detokenizer: Detokenizer
    thinking: Thinking
    spent: int = 0  # number of reasoning tokens
    held: int = 0  # number of the newest reasoning tokens that may be the beginning of a marker
    due: tuple[int, ...] = ()  # closing tokens that must follow
    times_ended: int = 0  # number of times that the budget ended reasoning


class ThinkingBudget:
    """A constraint that forces the end of reasoning, around the grammar of the reply or without one."""

    def __init__(
        self, inner: Constrained | None, request: Request, text: TextStream, ending: str, start: int
    ) -> None:
        """`text`: the reply's text, still empty; `ending`: the text between reasoning and answer.

        `start`: number of tokens before the reply. The first cut writes only the first marker of `ending`, because a
        call may follow in place of the answer; a second cut writes all markers.
        """
        self.whole_rows = inner is not None
        self.times_ended = 0  # number of times that the budget ended reasoning in the settled tokens
        self._inner, self._budget, self._start = inner, request.think or 0, start
        self._tokenize, self._codes = MiddleTokenizer(text.vocabulary), text.codes
        self._ending, markers = text.codes.coded(ending), text.thinking.markers
        closing = sorted((mark for mark, kind in markers.items() if kind is A), key=len, reverse=True)
        first = rf"(\s*(?:{'|'.join(map(re.escape, closing))})\s*).*"
        self._first = request.think_message + re.sub(first, r"\1", self._ending, flags=re.DOTALL)
        self._markers = sorted(markers, key=lambda mark: mark not in self._ending)
        self._tokens: list[int] = []  # tokens of the reply after the settled ones
        self._states = [self._with_due(_State(copy(text.detokenizer), copy(text.thinking)))]
        self._settled = 0  # number of the reply's tokens that no rejection can remove

    def allows(self, token: int, history: Sequence[int]) -> bool:
        if due := self._after(history).due:
            return token == due[0]
        return not self._inner or self._inner.allows(token, history)

    def permitted(self, row: Row, history: Sequence[int]) -> Row:
        if due := self._after(history).due:
            return Candidates(np.array(due[:1]), np.zeros(1, np.float32))
        return self._inner.permitted(row, history) if self._inner else row

    def mask(self, history: Sequence[int]) -> Mask | None:
        return self._inner.mask(history) if self._inner else None

    def forced(self, history: Sequence[int]) -> list[int]:
        due = list(self._after(history).due)
        tokens = due or (self._inner.forced(history) if self._inner else [])
        return tokens[: self.valid(history, tokens)]

    def valid(self, history: Sequence[int], tokens: Sequence[int]) -> int:
        count = self._inner.valid(history, tokens) if self._inner else len(tokens)
        self._after(Continued(history, tokens))
        states = self._states[len(history) - self._start - self._settled :]
        pairs = enumerate(zip(tokens, states, strict=False))
        return min(count, next((i for i, (token, s) in pairs if s.due and s.due[0] != token), count))

    def settle(self, tokens: Sequence[int]) -> None:
        self._after(tokens)
        count = len(tokens) - self._start - self._settled
        del self._tokens[:count], self._states[:count]
        self._settled += count
        self.times_ended = self._states[0].times_ended
        if self._inner:
            self._inner.settle(tokens)

    def _after(self, history: Sequence[int]) -> _State:
        wanted = history[self._start + self._settled :]
        same = common_prefix_length(wanted, 0, self._tokens)
        del self._tokens[same:], self._states[same + 1 :]
        for token in wanted[same:]:
            self._tokens.append(token)
            self._states.append(self._next(self._states[-1], token))
        return self._states[-1]

    def _next(self, before: _State, token: int) -> _State:
        detokenizer, thinking = copy(before.detokenizer), copy(before.thinking)
        thinking.push(detokenizer.push(token))
        inside = before.thinking.kind is R and thinking.kind is R
        spent = before.spent + 1 if inside else before.spent - before.held
        held = before.held + 1 if inside and thinking.held else 0
        times_ended = before.times_ended + (len(before.due) == 1)
        return self._with_due(_State(detokenizer, thinking, spent, held, before.due[1:], times_ended))

    def _with_due(self, state: _State) -> _State:
        """Return the state with the tokens that must follow, if the reasoning has spent its budget."""
        is_open = state.thinking.kind is R and not state.detokenizer.held
        if state.due or not is_open or state.spent < self._budget:
            return state
        texts = [self._ending if state.times_ended else self._first]
        if begun := state.thinking.held:  # complete the begun marker, which may lack leading white space
            texts = [form for mark in self._markers for form in (mark, mark.lstrip())]
        # Any other header, such as that of a call, is left to the model.
        text = next((text[len(begun) :] for text in texts if text.startswith(begun)), "")
        return replace(state, due=tuple(self._tokenize(self._codes.plain(text), parse_special=True)))
