"""Greedy texts with and without drafting, and what a first difference is worth."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from localspec.algorithm.loop import speculate
from localspec.algorithm.verification import make_rule
from localspec.chat.loaded_pair import LoadedPair
from localspec.chat.options import Request
from localspec.measure.divergence import (
    Divergence,
    diverged,
    likeliest_token,
    top_two_gap,
    width_difference_on,
)
from localspec.measure.prompts import BenchPrompt
from localspec.measure.recording import RecordingRule, begin
from localspec.sampler.sampling import Sampling

GREEDY = Sampling(temperature=0.0)
NEW_TOKENS = 48
FIXED_DEPTH = 4
UNDIVIDED = 24  # last tokens of a text that does not part, on which batch widths are compared


@dataclass(frozen=True, slots=True)
class GreedyText:
    """A text, and how it came about."""

    tokens: tuple[int, ...]
    gaps: tuple[float, ...]  # between the two largest logits of the row that decided each token
    not_likeliest: int  # tokens that are not the likeliest of the row that decided them
    drafted: int
    accepted: int


@dataclass(frozen=True, slots=True)
class GreedyCase:
    """One prompt at one depth against plain decoding."""

    prompt: BenchPrompt
    depth: int | None  # None: chosen while running
    tokens: int
    drafted: int
    accepted: int
    not_likeliest: int
    divergence: Divergence | None

    def explained(self, width_difference: float) -> bool:
        """Whether the text is right up to what batch widths alone can change."""
        gap = self.divergence.top_two_gap if self.divergence else None
        return not self.not_likeliest and (gap is None or gap <= 2 * width_difference)


@dataclass(frozen=True, slots=True)
class GreedyResult:
    """All prompts."""

    cases: tuple[GreedyCase, ...] = ()
    width_difference: float = 0.0  # D: the largest logit difference between batch widths on these texts

    @property
    def unexplained(self) -> tuple[GreedyCase, ...]:
        return tuple(case for case in self.cases if not case.explained(self.width_difference))


def greedy_cases(
    engine: LoadedPair,
    prompt: BenchPrompt,
    tokens: Sequence[int],
    ended: Callable[[], bool],
    *,
    slow: Callable[[], bool] = lambda: False,
    first: bool = True,
) -> tuple[tuple[GreedyCase, ...], float]:
    """One prompt at a fixed depth and automatically; nothing where `ended` cut it.

    Where `slow` says so the plain text ends, and the others with it. D is measured where the texts part, and on
    the text of the `first` prompt in any case: that takes about as long as a text.
    """
    room = min(NEW_TOKENS, engine.target.capacity - len(tokens))
    plain = greedy_text(engine, tokens, 0, room, lambda: slow() or ended())
    others = [greedy_text(engine, tokens, depth, len(plain.tokens), ended) for depth in (FIXED_DEPTH, None)]
    if ended():
        return (), 0.0
    cases = tuple(
        case_of(prompt, plain, text, depth) for text, depth in zip(others, (FIXED_DEPTH, None), strict=True)
    )
    whole = [*tokens, *plain.tokens]
    ends = {len(tokens) + case.divergence.index for case in cases if case.divergence}
    compared = [whole[:end] for end in ends] or ([whole[-UNDIVIDED:]] if first else [])
    return cases, max((width_difference_on(engine, text) for text in compared), default=0.0)


def case_of(prompt: BenchPrompt, plain: GreedyText, text: GreedyText, depth: int | None) -> GreedyCase:
    where = diverged(plain.tokens, text.tokens, None)
    if where:
        # Where one text ends before the other, the last row of the longer one did not decide it.
        decided = [t.gaps[where.index] for t in (plain, text) if where.index < len(t.gaps)]
        where = Divergence(where.index, where.plain, where.speculative, decided[0])
    return GreedyCase(
        prompt=prompt,
        depth=depth,
        tokens=len(text.tokens),
        drafted=text.drafted,
        accepted=text.accepted,
        not_likeliest=plain.not_likeliest + text.not_likeliest,
        divergence=where,
    )


def greedy_text(
    engine: LoadedPair, prompt: Sequence[int], depth: int | None, room: int, ended: Callable[[], bool]
) -> GreedyText:
    """At most `room` tokens of the reply to a prompt; depth 0 is plain decoding."""
    rule = RecordingRule(make_rule("greedy", GREEDY, 0), None)
    strategy = engine.drafting.strategy(rule, Request(GREEDY, depth=depth, speculate=depth != 0))
    begin(engine, prompt)
    text, is_end = list(prompt), engine.vocabulary.is_end
    gaps: list[float] = []
    wrong = drafted = accepted = 0
    for cycle in speculate(engine.target, strategy, text, rule=rule, room=room, is_end=is_end):
        for token, row in zip(cycle.tokens, rule.taken()[0], strict=False):
            gaps.append(top_two_gap(row))
            wrong += token != likeliest_token(row)
        drafted += cycle.drafted
        accepted += cycle.accepted
        if ended():
            break
    return GreedyText(tuple(text[len(prompt) :]), tuple(gaps), wrong, drafted, accepted)
