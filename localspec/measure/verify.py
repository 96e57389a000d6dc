"""Tests on this machine whether speculation changes a pair's text: greedy texts, and the likelihood of sampled ones."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from time import perf_counter
from typing import Any

from localspec.algorithm.loop import speculate
from localspec.algorithm.noise import fresh_seed
from localspec.algorithm.verification import make_rule
from localspec.chat.loaded_pair import LoadedPair
from localspec.chat.messages import Message
from localspec.chat.options import Request
from localspec.chat.prompt import encode
from localspec.chat.scoring import WatchedRule
from localspec.chat.session import Session, last_reply
from localspec.errors import BadSetting
from localspec.measure.bench import VERIFY_PROMPTS, BenchPrompt
from localspec.measure.compare import (
    Divergence,
    begin,
    diverged,
    top_two_gap,
    width_difference_on,
)
from localspec.measure.likelihood import SampledResult, scored
from localspec.sampler.passes import Candidates, Row
from localspec.sampler.sampling import Sampling

SECONDS = 180.0
TEMPERATURE = 0.8
GREEDY = Sampling(temperature=0.0)
NEW_TOKENS = 48  # of every text
DEPTH = 4  # of greedy texts beside the automatic depth, and of sampled texts
ROUNDS = 8  # over the prompts, of sampled texts
UNDIVIDED = 24  # last tokens of a text that does not part, on which batch widths are compared
ENOUGH = 0.5  # nats per token: a test that finds only more says too little

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
class Verification:
    """The findings; a part for which the time was too short is empty."""

    greedy: GreedyResult
    sampled: SampledResult
    sampling: Sampling
    seed: int  # of everything drawn
    seconds: float
    stopped: bool  # by the user
    at_once: int = 1  # sampled texts


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
    """Verify a loaded pair within about `seconds`; the session's conversation stays.

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
    with seeds_that_keep_threads(pair, keep=seed is not None):
        seed = fresh_seed() >> 1 if seed is None else seed
        sampled = run_sampled(session, encoded, sampling, seed, greedy.width_difference, watch)
    seconds = perf_counter() - watch.began
    return Verification(greedy, sampled, sampling, seed, seconds, stopped(), len(pair.lanes.all))


@contextmanager
def seeds_that_keep_threads(pair: LoadedPair, *, keep: bool) -> Iterator[None]:
    """Whether replies with a seed decode with the usual threads, and in passes of their own."""
    try:
        for lane in pair.lanes.all:
            lane.drafting.seeds_keep_threads = keep
        yield
    finally:
        for lane in pair.lanes.all:
            lane.drafting.seeds_keep_threads = True


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
    prompts: Sequence[tuple[BenchPrompt, list[int]]],
    sampling: Sampling,
    seed: int,
    width_difference: float,
    watch: _Watch,
) -> SampledResult:
    """Rounds over the prompts while time allows, alternately with and without the model's truncation.

    Truncation must keep its promise, and without it a wrong token is more of a surprise. A pair with several lanes
    writes as many texts at once.
    """
    found = SampledResult()
    whole = replace(sampling, top_k=0, top_p=1.0, min_p=0.0)
    texts = [
        (prompt, tokens, sampling if number % 2 == 0 else whole)
        for number in range(ROUNDS)
        for prompt, tokens in prompts
    ]
    with ExitStack() as opened, ThreadPoolExecutor(len(session.pair.lanes.all)) as threads:
        sessions = [session, *(opened.enter_context(session.another()) for _ in session.pair.lanes.all[1:])]
        for first in range(0, len(texts), len(sessions)):
            if watch.share() >= 1.0:
                break
            together = texts[first : first + len(sessions)]
            watch.tell(Phase.SAMPLED, first / len(texts), together[0][0])
            running = [
                threads.submit(sampled_text, own, tokens, chain, seed + first + number, watch.stopped)
                for number, (own, (_, tokens, chain)) in enumerate(zip(sessions, together, strict=False))
            ]
            written = [reply.result() for reply in running]
            for (_, tokens, chain), reply in zip(together, written, strict=True):
                if not watch.stopped():
                    found += scored(session.pair, tokens, reply, chain, width_difference)
    return found


def sampled_text(
    session: Session,
    prompt: Sequence[int],
    sampling: Sampling,
    seed: int,
    stopped: Callable[[], bool] = lambda: False,
) -> tuple[int, ...]:
    """The tokens of a speculative reply, as users get them."""
    options: dict[str, Any] = asdict(sampling) | {"logit_bias": None, "seed": seed, "max_tokens": NEW_TOKENS}
    return last_reply(
        session.stream_complete(prompt, cancelled=stopped, depth=DEPTH, speculate=True, **options)
    ).tokens
