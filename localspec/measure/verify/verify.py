"""Does speculation change what this pair says on this machine? Greedy texts, sampling law, likelihoods."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from time import perf_counter

from localspec.algorithm.noise import fresh_seed
from localspec.chat.loaded_pair import LoadedPair
from localspec.chat.messages import Message
from localspec.chat.prompt import encode
from localspec.chat.session import Session
from localspec.errors import BadSetting
from localspec.measure.divergence import width_difference_on
from localspec.measure.prompts import BenchPrompt
from localspec.measure.verify.greedy import GreedyCase, GreedyResult, greedy_cases
from localspec.measure.verify.law import DRAFTED, WORLDS, LawResult, Meeting, Replay, collect
from localspec.measure.verify.prompts import VERIFY_PROMPTS
from localspec.measure.verify.quality import QualityResult, Scores, quality, sampled_pair
from localspec.sampler.sampling import Sampling

SECONDS = 180.0
TEMPERATURE = 0.8
COLLECTED_TOKENS = 48  # of each reply that rows come from
TEXT_SHARE = 0.06  # of the time: a plain greedy text that takes longer is cut
ROUNDS = 4  # over the prompts, of sampled texts


class Phase(StrEnum):
    GREEDY = "greedy texts"
    SAMPLED = "sampled texts"
    COLLECTING = "collecting rows"
    REPLAYING = "replaying the verifier"


# The share of the time by which a phase ends at the latest; replaying needs no model and takes what is left.
ENDS = {Phase.GREEDY: 0.35, Phase.SAMPLED: 0.55, Phase.COLLECTING: 0.65, Phase.REPLAYING: 1.0}


@dataclass(frozen=True, slots=True)
class VerifyStep:
    """Where a verification stands."""

    phase: Phase
    done: float  # of the phase, 0 to 1
    detail: str
    seconds: float  # since it began


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found; parts that the time did not suffice for are empty."""

    greedy: GreedyResult
    quality: QualityResult
    law: LawResult | None
    meetings: int  # of target and draft, whose rows were collected
    sampling: Sampling
    seed: int  # of everything drawn
    seconds: float
    stopped: bool  # by the user
    expected_acceptance: float | None = None  # accepted / drafted tokens that were published for the pair


@dataclass(slots=True)
class _Watch:
    """When a phase ends, and who is told."""

    seconds: float
    on_step: Callable[[VerifyStep], None]
    stopped: Callable[[], bool]
    began: float
    phase: Phase = Phase.GREEDY

    @property
    def elapsed(self) -> float:
        return perf_counter() - self.began

    def over(self) -> bool:
        """Whether the phase has to end."""
        return self.stopped() or self.elapsed >= self.seconds * ENDS[self.phase]

    def hopeless(self) -> bool:
        """Whether not even what a phase has begun may be finished."""
        return self.stopped() or self.elapsed >= self.seconds * ENDS[Phase.COLLECTING]

    def slow(self) -> Callable[[], bool]:
        """Whether from now on a text has taken more than its part of the time."""
        began = self.elapsed
        return lambda: self.elapsed - began >= self.seconds * TEXT_SHARE

    def tell(self, done: float, detail: str) -> None:
        self.on_step(VerifyStep(self.phase, done, detail, self.elapsed))


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
    """Verify a loaded pair within about so many seconds; the session's conversation is forgotten.

    `stopped` ends it early and keeps what was found. BadSetting without a draft model or at temperature 0.
    """
    engine = session.engine
    if not engine.drafters:
        raise BadSetting(
            f"{session.name} has no draft model, so there is nothing to verify",
            hint="name a pair, or add --draft FILE",
        )
    if temperature <= 0:
        raise BadSetting(
            f"the law of sampling cannot be tested at temperature {temperature:g}",
            hint="give a temperature above 0; greedy texts are tested in any case",
        )
    engine.drafting.seeds_keep_threads = seed is not None
    seed = fresh_seed() >> 1 if seed is None else seed
    sampling = plain_chain(engine.sampling, temperature)
    watch = _Watch(seconds, on_step, stopped, perf_counter())
    encoded = [(prompt, encoded_prompt(engine, prompt.text)) for prompt in prompts]
    greedy = run_greedy(engine, encoded, watch)
    if not greedy.cases and not stopped():
        greedy = replace(greedy, width_difference=width_difference_on(engine, encoded[0][1]))
    try:
        scores = run_sampled(session, prompts, sampling, seed, greedy.width_difference, watch)
    finally:
        engine.drafting.seeds_keep_threads = True
    meetings = run_collecting(engine, encoded, sampling, seed, watch)
    law = run_replaying(meetings, sampling, seed, watch)
    session.reset()
    return Verification(
        greedy=greedy,
        quality=quality(scores),
        law=law,
        meetings=len(meetings),
        expected_acceptance=engine.expected_acceptance,
        sampling=sampling,
        seed=seed,
        seconds=watch.elapsed,
        stopped=stopped(),
    )


def plain_chain(defaults: Sampling, temperature: float) -> Sampling:
    """The model's truncation without what looks back at the text: a token's law is then its row's alone."""
    return Sampling(temperature=temperature, top_k=defaults.top_k, top_p=defaults.top_p, min_p=defaults.min_p)


def encoded_prompt(engine: LoadedPair, text: str) -> list[int]:
    return encode(engine.vocabulary, engine.template, (Message("user", text),)).tokens


def run_greedy(
    engine: LoadedPair, prompts: Sequence[tuple[BenchPrompt, list[int]]], watch: _Watch
) -> GreedyResult:
    """As many prompts as the time allows, at least one."""
    cases, width_difference = list[GreedyCase](), 0.0
    for number, (prompt, tokens) in enumerate(prompts):
        if watch.stopped() or (cases and watch.over()):
            break
        watch.tell(number / len(prompts), f"{prompt.category}: {prompt.name}")
        found, difference = greedy_cases(
            engine, prompt, tokens, watch.hopeless, slow=watch.slow(), first=not cases
        )
        cases += found
        width_difference = max(width_difference, difference)
    return GreedyResult(tuple(cases), width_difference)


def run_sampled(
    session: Session,
    prompts: Sequence[BenchPrompt],
    sampling: Sampling,
    seed: int,
    width_difference: float,
    watch: _Watch,
) -> list[tuple[Scores, Scores]]:
    """Rounds over the prompts while the time allows."""
    watch.phase = Phase.SAMPLED
    pairs = list[tuple[Scores, Scores]]()
    for number, prompt in enumerate(tuple(prompts) * ROUNDS):
        if watch.hopeless() or (pairs and watch.over()):
            break
        watch.tell(number / (ROUNDS * len(prompts)), f"{prompt.category}: {prompt.name}")
        seeds = (seed + 2 * number, seed + 2 * number + 1)
        found = sampled_pair(session, prompt.text, sampling, seeds, width_difference)
        if not watch.stopped():
            pairs.append(found)
    return pairs


def run_collecting(
    engine: LoadedPair,
    prompts: Sequence[tuple[BenchPrompt, list[int]]],
    sampling: Sampling,
    seed: int,
    watch: _Watch,
) -> list[Meeting]:
    """Rows from replies to every prompt, or until the time of the phase is over and enough are there."""
    watch.phase = Phase.COLLECTING
    meetings = list[Meeting]()
    for number, (prompt, tokens) in enumerate(prompts):
        watch.tell(number / len(prompts), f"{prompt.category}: {prompt.name}")
        for meeting in collect(engine, tokens, sampling, COLLECTED_TOKENS, seed + number):
            meetings.append(meeting)
            if watch.stopped() or (watch.over() and len(meetings) >= WORLDS * DRAFTED):
                return meetings
    return meetings


def run_replaying(
    meetings: Sequence[Meeting], sampling: Sampling, seed: int, watch: _Watch
) -> LawResult | None:
    """As many texts as tell enough, or until the time is over; None where there are too few rows."""
    watch.phase = Phase.REPLAYING
    if len(meetings) < DRAFTED or watch.stopped():
        return None
    replay = Replay(meetings, sampling, seed + (1 << 32))
    while replay.done < 1.0:
        replay.turn()
        watch.tell(replay.done, f"{replay.verified:,} verifications")
        if watch.over():
            break
    return replay.result()
