"""Tests on this machine whether speculation changes a pair's text: greedy texts, and the likelihood of sampled ones."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from time import perf_counter
from typing import Any

import numpy as np

from localspec.algorithm.loop import speculate
from localspec.algorithm.noise import fresh_seed
from localspec.algorithm.verification import make_rule
from localspec.chat.loaded_pair import LoadedPair
from localspec.chat.messages import Message
from localspec.chat.options import Request
from localspec.chat.prompt import encode
from localspec.chat.scoring import WatchedRule
from localspec.chat.session import Session
from localspec.errors import BadSetting
from localspec.measure.bench import VERIFY_PROMPTS, BenchPrompt
from localspec.measure.compare import (
    Divergence,
    begin,
    diverged,
    top_two_gap,
    width_difference_on,
)
from localspec.measure.intervals import bernstein
from localspec.sampler.chain import Chain
from localspec.sampler.passes import Candidates, Row
from localspec.sampler.sampling import Sampling

SECONDS = 180.0
TEMPERATURE = 0.8
GREEDY = Sampling(temperature=0.0)
NEW_TOKENS = 48  # of every text
DEPTH = 4  # of greedy texts beside the automatic depth, and of sampled texts
ROUNDS = 8  # over the prompts, of sampled texts
UNDIVIDED = 24  # last tokens of a text that does not part, on which batch widths are compared
SLACKS = 4  # times the largest difference seen: in 1 of 10 runs a row had moved by 3 times as much
CHUNK = 8  # tokens that the target reads at a time
RAREST = 10.0  # nats: surprisals are cut here, so that no single token decides the sum
ENOUGH = 0.5  # nats per token: a test that finds only more says too little
NEARLY_SURE = 3.1  # standard deviations that hold 99.9 % of a normal distribution on one side
ALARM = 1e-4  # how often a correct pair may raise the alarm of the sampled texts

# Shares of the time.
GREEDY_ENDS = 0.5  # no greedy text begins after this
UNFINISHED_ENDS = 0.75  # greedy texts that run are cut
TEXT_SHARE = 0.06  # a plain greedy text that takes longer is cut


class Phase(StrEnum):
    GREEDY = "greedy texts"
    SAMPLED = "sampled texts"


@dataclass(frozen=True, slots=True)
class VerifyStep:
    """The progress of a verification."""

    phase: Phase
    done: float  # of the phase, 0 to 1
    detail: str
    seconds: float  # since it began


@dataclass(frozen=True, slots=True)
class GreedyText:
    """A text and its rows' facts."""

    tokens: tuple[int, ...]
    gaps: tuple[float, ...]  # between the two largest logits of the row that decided each token
    not_likeliest: int  # tokens that are not the likeliest of the row that decided them
    drafted: int
    accepted: int
    widths: frozenset[int]  # of the passes that decided them


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
        """Whether the text is right up to the differences that batch widths cause."""
        gap = self.divergence.top_two_gap if self.divergence else None
        return not self.not_likeliest and (gap is None or gap <= 2 * width_difference)


@dataclass(frozen=True, slots=True)
class GreedyResult:
    """All prompts."""

    cases: tuple[GreedyCase, ...] = ()
    width_difference: float = 0.0  # D: the largest logit difference between batch widths on these texts


@dataclass(frozen=True, slots=True)
class SampledResult:
    """Sampled texts, read again by the target: a token's surprisal has a mean that its distribution gives."""

    texts: int = 0
    tokens: int = 0
    surplus: float = 0.0  # sum over all tokens of surprisal - its mean, nats
    variance: float = 0.0  # of that sum
    largest: float = 0.0  # that one token could have added
    impossible: int = 0  # tokens that the sampler chain excludes, by more than batch widths explain

    def __add__(self, other: "SampledResult") -> "SampledResult":
        sums = {name: value + getattr(other, name) for name, value in asdict(self).items()}
        return SampledResult(**sums | {"largest": max(self.largest, other.largest)})

    @property
    def excess(self) -> float:
        """Surprisal above its mean, nats per token."""
        return self.surplus / max(self.tokens, 1)

    @property
    def excess_error(self) -> float:
        """The standard error of `excess`."""
        return math.sqrt(self.variance) / self.tokens if self.tokens else math.inf

    @property
    def excess_p(self) -> float:
        """An upper bound of the probability of this excess if every token has the target's probabilities."""
        return bernstein(self.surplus, self.variance, self.largest)

    @property
    def smallest_excess(self) -> float:
        """The excess that raises the alarm in 999 of 1,000 runs: `bernstein` solved for its sum, and noise."""
        needed = math.log(2.0 / ALARM)
        rare = self.largest * needed / 3.0
        alarm = rare + math.sqrt(rare**2 + 2.0 * self.variance * needed)
        return alarm / max(self.tokens, 1) + NEARLY_SURE * self.excess_error


@dataclass(frozen=True, slots=True)
class Verification:
    """The findings; a part for which the time was too short is empty."""

    greedy: GreedyResult
    sampled: SampledResult
    sampling: Sampling
    seed: int  # of everything drawn
    seconds: float
    stopped: bool  # by the user


@dataclass(frozen=True, slots=True)
class _Watch:
    """The clock of a verification, and its progress."""

    seconds: float
    on_step: Callable[[VerifyStep], None]
    stopped: Callable[[], bool]
    began: float

    def share(self) -> float:
        """The share of the time that has passed; 1 once the user stopped it."""
        return 1.0 if self.stopped() else (perf_counter() - self.began) / self.seconds

    def tell(self, phase: Phase, done: float, prompt: BenchPrompt) -> None:
        elapsed = perf_counter() - self.began
        self.on_step(VerifyStep(phase, done, f"{prompt.category}: {prompt.name}", elapsed))


def verify(
    session: Session,
    *,
    seconds: float = SECONDS,
    temperature: float = TEMPERATURE,
    seed: int | None = None,
    prompts: Sequence[BenchPrompt] = VERIFY_PROMPTS,
    on_step: Callable[[VerifyStep], None] = lambda step: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Verification:
    """Verify a loaded pair within about `seconds`; the session's conversation is forgotten.

    `stopped` ends it early and keeps the findings. Raises BadSetting if nothing can be drafted and at temperature 0.
    """
    pair = session.pair
    if pair.rollback_limit == 0:
        what = f"{session.target_name} cannot take back a guess, so nothing can be drafted and verified"
        raise BadSetting(what, hint="verify a pair whose target can: `localspec pairs` lists them")
    if temperature <= 0:
        hint = "give a temperature above 0; greedy texts are tested in any case"
        raise BadSetting(f"sampling cannot be tested at temperature {temperature:g}", hint=hint)
    sampling = plain_chain(pair.sampling, temperature)
    watch = _Watch(seconds, on_step, stopped, perf_counter())
    encoded = [(prompt, encoded_prompt(pair, prompt.text)) for prompt in prompts]
    greedy = run_greedy(pair, encoded, watch)
    if not greedy.cases and not stopped():
        greedy = replace(greedy, width_difference=width_difference_on(pair, encoded[0][1]))
    pair.drafting.seeds_keep_threads = seed is not None
    seed = fresh_seed() >> 1 if seed is None else seed
    try:
        sampled = run_sampled(session, prompts, sampling, seed, greedy.width_difference, watch)
    finally:
        pair.drafting.seeds_keep_threads = True
    session.reset()
    seconds = perf_counter() - watch.began
    return Verification(greedy, sampled, sampling, seed, seconds, stopped())


def plain_chain(defaults: Sampling, temperature: float) -> Sampling:
    """The model's truncation without penalties: a token's probability then depends on its row alone."""
    return Sampling(temperature=temperature, top_k=defaults.top_k, top_p=defaults.top_p, min_p=defaults.min_p)


def encoded_prompt(pair: LoadedPair, text: str) -> list[int]:
    return encode(pair.vocabulary, pair.template, (Message("user", text),)).tokens


def run_greedy(
    pair: LoadedPair, prompts: Sequence[tuple[BenchPrompt, list[int]]], watch: _Watch
) -> GreedyResult:
    """As many prompts as the time allows, at least one."""
    cases, width_difference = list[GreedyCase](), 0.0
    for number, (prompt, tokens) in enumerate(prompts):
        if watch.share() >= (GREEDY_ENDS if cases else 1.0):
            break
        watch.tell(Phase.GREEDY, number / len(prompts), prompt)
        slow = watch.share() + TEXT_SHARE
        found, difference = greedy_cases(pair, prompt, tokens, watch.share, text_ends=slow, first=not cases)
        cases += found
        width_difference = max(width_difference, difference)
    return GreedyResult(tuple(cases), width_difference)


def greedy_cases(
    pair: LoadedPair,
    prompt: BenchPrompt,
    tokens: Sequence[int],
    share: Callable[[], float],
    *,
    text_ends: float = 1.0,
    first: bool = True,
) -> tuple[tuple[GreedyCase, ...], float]:
    """One prompt at a fixed depth and at the automatic one, and D; no case if the time cut it.

    `share` of the time has passed; at `text_ends` the plain text is cut, and the others get its length. D is measured
    where texts part, and on the text of the `first` prompt in any case: that takes about as long as a text.
    """

    def ended() -> bool:
        return share() >= UNFINISHED_ENDS

    room = min(NEW_TOKENS, pair.target.capacity - len(tokens))
    plain = greedy_text(pair, tokens, 0, room, lambda: share() >= min(text_ends, UNFINISHED_ENDS))
    others = [greedy_text(pair, tokens, depth, len(plain.tokens), ended) for depth in (DEPTH, None)]
    if ended():
        return (), 0.0
    cases = tuple(
        case_of(prompt, plain, text, depth) for text, depth in zip(others, (DEPTH, None), strict=True)
    )
    whole = [*tokens, *plain.tokens]
    ends = {len(tokens) + case.divergence.index for case in cases if case.divergence}
    compared = [whole[:end] for end in ends] or ([whole[-UNDIVIDED:]] if first else [])
    widths = plain.widths.union(*(text.widths for text in others))
    return cases, max((width_difference_on(pair, text, widths) for text in compared), default=0.0)


def case_of(prompt: BenchPrompt, plain: GreedyText, text: GreedyText, depth: int | None) -> GreedyCase:
    where = diverged(plain.tokens, text.tokens, None)
    if where:
        # If one text ends before the other, the last row of the longer one did not decide it.
        gaps = next(t.gaps for t in (plain, text) if where.index < len(t.gaps))
        where = replace(where, top_two_gap=gaps[where.index])
    wrong = plain.not_likeliest + text.not_likeliest
    return GreedyCase(prompt, depth, len(text.tokens), text.drafted, text.accepted, wrong, where)


class Judge(list[tuple[float, bool]]):
    """Sees every greedy verdict: the gap between the two largest logits, and whether the token is the likeliest."""

    def see(self, rows: Sequence[Row], tokens: Sequence[int]) -> None:
        for row, token in zip(rows, tokens, strict=False):
            assert not isinstance(row, Candidates), "whole rows were asked for"
            self.append((top_two_gap(row), token == row.argmax()))


def greedy_text(
    pair: LoadedPair, prompt: Sequence[int], depth: int | None, room: int, ended: Callable[[], bool]
) -> GreedyText:
    """At most `room` tokens of the reply to a prompt; depth 0 is plain decoding."""
    judge = Judge()
    rule = WatchedRule(make_rule("greedy", GREEDY, 0), judge.see)
    strategy = pair.drafting.strategy(rule, Request(GREEDY, depth=depth, speculate=depth != 0))
    pair.drafting.keep_threads()  # another number of them can part texts as well
    begin(pair, prompt)
    text, is_end = list(prompt), pair.vocabulary.is_end
    drafted, accepted, widths = 0, 0, set[int]()
    for cycle in speculate(pair.target, strategy, text, rule=rule, room=room, is_end=is_end):
        drafted += cycle.drafted
        accepted += cycle.accepted
        widths.add(max(cycle.width, cycle.pass_width))
        if ended():
            break
    strategy.end()
    tokens = tuple(text[len(prompt) :])
    judged = judge[: len(tokens)]  # a verdict may reach beyond the end of the text
    wrong = sum(not likeliest for _, likeliest in judged)
    return GreedyText(tokens, tuple(gap for gap, _ in judged), wrong, drafted, accepted, frozenset(widths))


def run_sampled(
    session: Session,
    prompts: Sequence[BenchPrompt],
    sampling: Sampling,
    seed: int,
    width_difference: float,
    watch: _Watch,
) -> SampledResult:
    """Rounds over the prompts while time allows, alternately with and without the model's truncation.

    Truncation must keep its promise, and without it a wrong token is more of a surprise.
    """
    found = SampledResult()
    whole = replace(sampling, top_k=0, top_p=1.0, min_p=0.0)
    for number, prompt in enumerate(tuple(prompts) * ROUNDS):
        if watch.share() >= 1.0:
            break
        chain = whole if number // len(prompts) % 2 else sampling
        watch.tell(Phase.SAMPLED, number / (ROUNDS * len(prompts)), prompt)
        text = sampled_text(session, prompt.text, chain, seed + number)
        if not watch.stopped():
            found += scored(session.pair, *text, chain, width_difference)
    return found


def sampled_text(
    session: Session, text: str, sampling: Sampling, seed: int
) -> tuple[list[int], tuple[int, ...]]:
    """The tokens of a prompt and of a speculative reply to it, as users get them."""
    options: dict[str, Any] = asdict(sampling) | {"logit_bias": None, "seed": seed, "max_tokens": NEW_TOKENS}
    reply = session.run([Message("user", text)], depth=DEPTH, speculate=True, **options)
    return list(session.pair.target.tokens[: reply.stats.prompt_tokens]), reply.tokens


def scored(
    pair: LoadedPair, prompt: Sequence[int], tokens: Sequence[int], sampling: Sampling, slack: float
) -> SampledResult:
    """The target reads a text again and judges its tokens; `slack`: how far logits may be off."""
    begin(pair, prompt)
    read = [prompt[-1], *tokens[:-1]]
    chain = Chain(sampling)
    found = SampledResult(texts=1)
    for start in range(0, len(read), CHUNK):
        batch = read[start : start + CHUNK]
        for row, token in zip(pair.target.decode(batch, len(batch)).rows, tokens[start:], strict=False):
            assert not isinstance(row, Candidates), "whole rows were asked for"
            p = chain.distribution(row, ())
            chance = p.of(token)
            if chance == 0.0:
                found += SampledResult(impossible=int(not nearly_kept(row, token, sampling, SLACKS * slack)))
                continue
            surprisals = np.minimum(-np.log(p.probabilities), RAREST)
            expected = float(p.probabilities @ surprisals)
            beyond = surprisals - expected
            variance, largest = float(p.probabilities @ beyond**2), float(np.abs(beyond).max())
            found += SampledResult(0, 1, min(-math.log(chance), RAREST) - expected, variance, largest)
    return found


def nearly_kept(row: np.ndarray, token: int, sampling: Sampling, slack: float) -> bool:
    """Whether the sampler chain could keep a token if logits were up to `slack` away from this row's."""
    weight = math.exp(-2 * slack)  # the ratio of two probabilities can change by this factor
    top_p = 1.0 - (1.0 - sampling.top_p) * weight
    wider = Sampling(sampling.temperature, top_k=0, top_p=top_p, min_p=sampling.min_p * weight)
    if sampling.top_k and row[token] < np.sort(row)[-sampling.top_k :][0] - 2 * slack:
        return False
    return Chain(wider).distribution(row, ()).of(token) > 0.0
