"""Test on this machine whether drafting changes a pair's text: the target alone reads the drafted texts again."""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from enum import StrEnum
from time import perf_counter
from typing import Any

import numpy as np

from localspec.algorithm.noise import fresh_seed
from localspec.chat.loaded_pair import LoadedPair
from localspec.chat.session import Session
from localspec.display import aligned, counted
from localspec.errors import BadSetting
from localspec.events import Cycle, Finished, Reply
from localspec.measure.bench import VERIFY_PROMPTS, BenchPrompt, Category
from localspec.measure.compare import empty_caches, likeliest, rows_of, width_difference_on
from localspec.prompt.messages import Message
from localspec.prompt.tokens import encode
from localspec.sampler.sampling import Sampling

TEMPERATURE = 0.8
NEW_TOKENS = 48  # limit of tokens in each text
DEPTH = 4  # draft depth; greedy texts are written again with the automatic depth
ROUNDS = 8  # limit of rounds of sampled texts over all prompts
LEAST_SAMPLED = 200  # smallest number of sampled tokens for a verdict; fewer show only a large fault
CHUNK = 8  # tokens of a sampled text that the target reads in one pass
ALARM = 1e-4  # probability that a correct pair fails the test of sampled texts


class Phase(StrEnum):
    GREEDY = "greedy texts"
    SAMPLED = "sampled texts"


@dataclass(frozen=True, slots=True)
class BranchPoint:
    """A position in a greedy text where the emitted token is not the target's likeliest token."""

    index: int
    drafted: str  # text of the token that was emitted with drafting
    plain: str  # text of the target's likeliest token
    gap: float  # logit of `plain` - logit of `drafted`
    chance: float  # probability of the target's likeliest token


@dataclass(frozen=True, slots=True)
class GreedyCase:
    """The greedy text of a prompt at one draft depth, checked with passes of one token."""

    prompt: str
    category: Category
    depth: int | None  # draft depth; None: automatic
    tokens: int
    drafted: int
    accepted: int
    parts: tuple[BranchPoint, ...] = ()

    def explained(self, width_difference: float) -> bool:
        """Return whether `width_difference`, the rounding of the logits, explains all branch points."""
        return all(part.gap <= 2 * width_difference for part in self.parts)


@dataclass(frozen=True, slots=True)
class SampledResult:
    """The surprisal of sampled texts under the target's distribution, minus its expected value."""

    texts: int = 0
    tokens: int = 0
    surplus: float = 0.0  # sum of (surprisal - expected surprisal) over all tokens, in nats
    variance: float = 0.0  # variance of `surplus`
    largest: float = 0.0  # largest amount that one token can add to `surplus`

    def __add__(self, other: "SampledResult") -> "SampledResult":
        sums = {name: value + getattr(other, name) for name, value in asdict(self).items()}
        return SampledResult(**sums | {"largest": max(self.largest, other.largest)})

    @property
    def excess(self) -> float:
        """The surprisal minus the expected surprisal, in nats per token."""
        return self.surplus / max(self.tokens, 1)

    @property
    def excess_error(self) -> float:
        """The standard error of `excess`."""
        return math.sqrt(self.variance) / self.tokens if self.tokens else math.inf

    @property
    def excess_p(self) -> float:
        """An upper bound of the probability that the `excess` of a correct pair is at least this far from 0.

        The bound is Bernstein's inequality for a sum of independent terms with a mean of 0.
        """
        if self.variance <= 0.0:
            return 1.0 if abs(self.surplus) <= 1e-9 * self.largest else 0.0
        spread = self.variance + self.largest * abs(self.surplus) / 3.0
        return min(1.0, 2.0 * math.exp(-(self.surplus**2) / (2.0 * spread)))


@dataclass(frozen=True, slots=True)
class Verification:
    """The results of `verify`; a part for which the time was too short is empty."""

    cases: tuple[GreedyCase, ...]
    width_difference: float  # the largest `width_gap` of the greedy texts
    sampled: SampledResult
    temperature: float  # temperature of the sampled texts
    seed: int  # the seed of the sampled texts; each text adds its number
    seconds: float
    stopped: bool  # whether the user ended the test early
    at_once: int = 1  # number of sampled texts in one pass


def verify(
    session: Session,
    *,
    seconds: float = 180.0,
    temperature: float = TEMPERATURE,
    seed: int | None = None,
    prompts: Sequence[BenchPrompt] = VERIFY_PROMPTS,
    on_step: Callable[[Phase, float, BenchPrompt, float], None] = lambda *step: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Verification:
    """Test within about `seconds` whether drafting changes a loaded pair's texts.

    `on_step`: called before each text, with the share of the phase that is done, and the seconds since the test began.
    `stopped`: a function that returns True to end the test early. The session keeps its conversation. Raises
    BadSetting for a pair that cannot draft.
    """
    pair, began = session.pair, perf_counter()
    if pair.rollback_limit == 0:
        what = f"{session.target_name} cannot remove rejected draft tokens, so nothing can be drafted and verified"
        raise BadSetting(what, hint="verify another pair: `localspec pairs` lists them")

    def share() -> float:  # returns the share of `seconds` that has passed; 1 if the user stopped the test
        return 1.0 if stopped() else (perf_counter() - began) / seconds

    def tell(phase: Phase, done: float, prompt: BenchPrompt) -> None:
        on_step(phase, done, prompt, perf_counter() - began)

    encoded = [(prompt, encoded_prompt(pair, prompt.text)) for prompt in prompts]
    cases, width_difference = list[GreedyCase](), 0.0
    with pair.threads.keeping():
        for number, (prompt, tokens) in enumerate(encoded):
            if share() >= (0.5 if cases else 1.0):  # sampled texts get half of the time
                break
            tell(Phase.GREEDY, number / len(encoded), prompt)
            found, difference = greedy_cases(session, prompt, tokens, share, first=not cases)
            cases += found
            width_difference = max(width_difference, difference)
        drawn = fresh_seed() >> 1 if seed is None else seed
        sampled = run_sampled(session, encoded, temperature, drawn, share, stopped, tell)
    took, at_once = perf_counter() - began, len(pair.slots.all)
    return Verification(tuple(cases), width_difference, sampled, temperature, drawn, took, stopped(), at_once)


def encoded_prompt(pair: LoadedPair, text: str) -> list[int]:
    return encode(pair.vocabulary, pair.template, (Message("user", text),)).tokens


def greedy_cases(
    session: Session, prompt: BenchPrompt, tokens: Sequence[int], share: Callable[[], float], *, first: bool
) -> tuple[list[GreedyCase], float]:
    """Return a case of one prompt for each of two draft depths, and the largest `width_gap` of the two texts.

    `share`: a function that returns the share of the test's time that has passed. `first`: whether to measure
    `width_gap` even without a branch point. The gap is 0 if it was not measured.
    """
    pair, cases, difference = session.pair, list[GreedyCase](), 0.0
    known: dict[tuple[int, ...], tuple[BranchPoint, ...]] = {}
    for depth in (DEPTH, None):
        ends = share() + 0.06  # one text may take 0.06 of the time
        empty_caches(pair)  # both depths prefill in the same chunks, because chunks affect rounding
        reply, widths = written(session, tokens, 0.0, lambda e=ends: share() >= e, depth=depth)  # type: ignore[misc]
        if not reply.tokens or share() >= 1.0:
            continue
        if reply.tokens not in known:
            known[reply.tokens] = tuple(branch_points(pair, tokens, reply.tokens))
        parts, stats = known[reply.tokens], reply.stats
        size = len(reply.tokens), stats.drafted, stats.accepted
        cases.append(GreedyCase(prompt.name, prompt.category, depth, *size, parts))
        if first or parts:
            text = [*tokens, *reply.tokens]
            compared = text[: len(tokens) + parts[-1].index] if parts else text[-24:]
            difference, first = max(difference, width_difference_on(pair, compared, widths)), False
    return cases, difference


def branch_points(pair: LoadedPair, prompt: Sequence[int], tokens: Sequence[int]) -> Iterator[BranchPoint]:
    """Yield each place of a reply where the target prefers another token in a pass of one token."""

    def word(token: int) -> str:
        vocabulary = pair.vocabulary
        end = vocabulary.is_end(token)
        return "the end" if end else repr(vocabulary.piece(token).decode(errors="replace"))

    for index, (row, token) in enumerate(zip(read_again(pair, prompt, tokens, 1), tokens, strict=True)):
        if token != (best := int(row.argmax())):
            yield BranchPoint(index, word(token), word(best), float(row[best] - row[token]), likeliest(row))


def read_again(
    pair: LoadedPair, prompt: Sequence[int], tokens: Sequence[int], width: int
) -> Iterator[np.ndarray]:
    """Yield the target's row of logits for each token of a reply, from passes of `width` tokens."""
    pair.target.rollback(0)
    yield from rows_of(pair.target, [*prompt, *tokens[:-1]], len(prompt) - 1, width)
    # Release the rows of the last pass, because passes of other slots wait until then.
    pair.target.rollback(0)


def run_sampled(
    session: Session,
    prompts: Sequence[tuple[BenchPrompt, list[int]]],
    temperature: float,
    seed: int,
    share: Callable[[], float],
    stopped: Callable[[], bool],
    tell: Callable[[Phase, float, BenchPrompt], None],
) -> SampledResult:
    """Sample texts in rounds over the prompts, on all slots at once; return the sum of their results."""
    result, texts, slots = SampledResult(), [*prompts] * ROUNDS, session.pair.slots.all
    with ExitStack() as opened, ThreadPoolExecutor(len(slots)) as threads:
        sessions = [session, *(opened.enter_context(session.another()) for _ in slots[1:])]
        for first in range(0, len(texts), len(slots)):
            if share() >= 1.0:
                break
            together = texts[first : first + len(slots)]
            tell(Phase.SAMPLED, first / len(texts), together[0][0])
            running = [
                threads.submit(written, own, tokens, temperature, stopped, seed + first + number)
                for number, (own, (_, tokens)) in enumerate(zip(sessions, together, strict=False))
            ]
            replies = [each.result()[0] for each in running]
            for (_, tokens), reply in zip(together, replies, strict=True):
                if not stopped():
                    result += scored(session.pair, tokens, reply.tokens, temperature)
    return result


def written(
    session: Session,
    prompt: Sequence[int],
    temperature: float,
    cancelled: Callable[[], bool],
    seed: int | None = None,
    depth: int | None = DEPTH,
) -> tuple[Reply, set[int]]:
    """Return a reply with drafting and without sampler filters, and the widths of its passes."""
    options: dict[str, Any] = asdict(Sampling(temperature, top_k=0, top_p=1.0, min_p=0.0))
    options |= {"logit_bias": None, "seed": seed, "rule": "block", "max_tokens": NEW_TOKENS}
    options["depth"] = "auto" if depth is None else depth
    *events, finished = session.stream_complete(prompt, cancelled=cancelled, speculate=True, **options)
    assert isinstance(finished, Finished)
    return finished.reply, {max(e.width, e.pass_width) for e in events if isinstance(e, Cycle)}


def scored(
    pair: LoadedPair, prompt: Sequence[int], tokens: Sequence[int], temperature: float
) -> SampledResult:
    result = SampledResult(texts=1)
    for row, token in zip(read_again(pair, prompt, tokens, CHUNK), tokens, strict=True):
        scores = (row - row.max()).astype(np.float64) / temperature
        weights = np.exp(scores)
        # A surprisal above 10 nats counts as 10, so that one token does not decide the sum.
        surprisals = np.minimum(np.log(weights.sum()) - scores, 10.0)
        p = weights / weights.sum()
        beyond = surprisals - p @ surprisals
        result += SampledResult(0, 1, float(beyond[token]), float(p @ beyond**2), float(np.abs(beyond).max()))
    return result


def problems(found: Verification) -> list[str]:
    """Return a sentence for each difference that rounding does not explain."""
    sentences, p = [], found.sampled.excess_p
    if apart := sum(not case.explained(found.width_difference) for case in found.cases):
        sentences.append(
            f"At temperature 0, {apart} of {len(found.cases)} texts differ by more than rounding explains."
        )
    if p < ALARM:
        sentences.append(
            "Sampled replies are less likely than the target's own. "
            f"A pair without a fault shows this in less than one of {1 / max(p, 1e-12):,.0f} runs."
        )
    return sentences


def missing(found: Verification) -> list[str]:
    """Return a sentence for each part of the test for which the time was too short."""
    sentences = [] if found.cases else ["No text at temperature 0 was finished."]
    if found.cases and not any(case.drafted for case in found.cases):
        sentences.append("Nothing was drafted in the texts at temperature 0.")
    if (count := found.sampled.tokens) < LEAST_SAMPLED:
        sentences.append(f"Too few tokens were sampled for a verdict: {count} of {LEAST_SAMPLED}.")
    return sentences


def verdict(found: Verification) -> str:
    if wrong := problems(found):
        return "\n".join(["DIFFERENT: drafting changes this pair's text.", *wrong])
    if lacking := missing(found):
        first = "NO DIFFERENCE so far, but not everything was tested."
        return "\n".join([first, *lacking, "Give the test more time: --seconds N"])
    texts, near = len(found.cases), sum(bool(case.parts) for case in found.cases)
    first = f"NO DIFFERENCE: all {texts} texts at temperature 0 are equal, token for token."
    if near:
        first = (
            f"NO DIFFERENCE beyond rounding: {texts - near} of {texts} texts at temperature 0 are equal, and {near} "
            f"{'differs' if near == 1 else 'differ'} from a near-tie on.\n"
            "At a near-tie two words are about equally likely, and rounding chooses."
        )
    replies = counted(found.sampled.texts, "reply", "replies")
    together = f" They were written {found.at_once} at a time." if found.at_once > 1 else ""
    return (
        f"{first}\nThe target read {replies} at temperature {found.temperature:g} again, "
        f"without a draft: their words are as likely as its own.{together}"
    )


def report(found: Verification) -> str:
    sampled, parts = found.sampled, [verdict(found), *([greedy_report(found)] if found.cases else [])]
    if sampled.texts:
        usual = 3 * sampled.excess_error
        parts.append(
            f"Temperature {found.temperature:g}: {counted(sampled.texts, 'reply', 'replies')} of "
            f"{counted(sampled.tokens, 'token')}, read again by the target without a draft.\n"
            f"Their tokens were {abs(sampled.excess):.3f} nats {'less' if sampled.excess > 0 else 'more'} likely "
            f"than its own; without a fault this is at most {usual:.3f}."
        )
    return "\n\n".join(parts)


def greedy_report(found: Verification) -> str:
    """Return the report on greedy texts: a row for each depth, and a line for each text that differs."""
    difference = found.width_difference
    rows: list[tuple[str, ...]] = [("depth", "texts", "the same", "rounded", "different", "accepted")]
    for depth in (DEPTH, None):
        if cases := [case for case in found.cases if case.depth == depth]:
            wrong = sum(not case.explained(difference) for case in cases)
            same = sum(not case.parts for case in cases)
            counts = map(str, (len(cases), same, len(cases) - same - wrong, wrong))
            kept = f"{sum(case.accepted for case in cases):,} of {sum(case.drafted for case in cases):,}"
            rows.append((str(depth or "auto"), *counts, kept))
    branches = [(case, max(case.parts, key=lambda part: part.gap)) for case in found.cases if case.parts]
    lines = [
        f"{case.prompt}, depth {case.depth or 'auto'}: differs at token {part.index + 1}, {part.drafted} with "
        f"drafting, {part.plain} ({part.chance:.1%}) without. Their scores are {part.gap:.2g} apart; rounding "
        f"explains up to {2 * difference:.2g}."
        for case, part in branches
    ]
    first = "Temperature 0: each text with drafting, read again by the target alone."
    rounding = f"Rounding changes the score of a word by up to {difference:.2g} here."
    rounding = rounding if difference else "Rounding changes no score here."
    return "\n".join([first, aligned(rows), rounding, *lines])


def as_json(found: Verification) -> dict[str, object]:
    wrong, lacking = problems(found), missing(found)
    answer = {"verdict": "different" if wrong else "incomplete" if lacking else "lossless"}
    derived = {"excess": found.sampled.excess, "excess_p": found.sampled.excess_p, "alarm_below": ALARM}
    return answer | {"problems": wrong, "missing": lacking} | asdict(found) | derived
