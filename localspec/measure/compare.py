"""One prompt with and without drafting: the branch point, both speeds, and the verdict."""

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

import numpy as np

from localspec import api
from localspec.algorithm.protocols import Decoder
from localspec.algorithm.verification import SEED_DECIDES, Greedy
from localspec.chat.loaded_pair import DEMO_MODEL, NO_DRAFT, LoadedPair
from localspec.chat.session import Session
from localspec.control.timing import Tally
from localspec.display import counted
from localspec.errors import LocalspecError
from localspec.events import LEAST_JUDGED, Cycle, Event, Finished, FinishReason, Reply, Started, Stats
from localspec.measure.race import STOPPED, headline
from localspec.options import ReplyOptions
from localspec.prompt.messages import PromptOrMessages, as_messages
from localspec.sampler.passes import NO_TEXT, Candidates, common_prefix_length

DEMO_DEPTH = 4
FEW = 1.1  # with fewer tokens per pass, drafting hardly saves time
AS_FAR_BACK = 200  # number of a text's last tokens on which `width_gap` compares batch widths
NEAR = 32  # number of last tokens to compare first, because these mostly explain a branch point
WIDTHS = frozenset({2, 5, 9})  # batch widths that `width_gap` always includes


@dataclass(frozen=True, slots=True)
class Divergence:
    """The branch point of a plain and a speculative reply."""

    index: int  # number of equal tokens before the branch point
    plain: int | None  # the plain reply's token at `index`; None: this reply ended before
    speculative: int | None
    top_two_gap: float | None  # difference of the target's two largest logits at `index`, if measured
    likeliest: float = 0.0  # probability of the likeliest token at `index`

    @property
    def chances(self) -> str:
        """The probabilities of the two likeliest tokens, as text."""
        second = self.likeliest * float(np.exp(-(self.top_two_gap or 0.0)))
        return f"{self.likeliest:.0%} and {second:.0%}"

    def is_near(self, rounding: float) -> bool:
        """Return whether rounding explains the branch point. `rounding`: the most by which rounding moves a logit."""
        return (self.top_two_gap or 0.0) <= 2 * rounding


def first_difference(plain: Sequence[int], speculative: Sequence[int]) -> int | None:
    """Return the first index at which two token sequences differ; None when they are equal."""
    index = common_prefix_length(plain, 0, speculative)
    return None if index == len(plain) == len(speculative) else index


def top_two_gap(row: np.ndarray) -> float:
    """Return the distance between the two largest logits of a row."""
    second, first = np.partition(row, -2)[-2:]
    return float(first - second)


def likeliest(row: np.ndarray) -> float:
    """Return the probability of the likeliest token of a row, at temperature 1."""
    return float(1 / np.exp(row - row.max()).sum())


def rows_of(decoder: Decoder, tokens: Sequence[int], start: int, width: int) -> Iterator[np.ndarray]:
    """Yield the row of logits after every token from `start` on; each pass decodes `width` tokens.

    After the last row the caller must roll back to 0, because passes of other slots wait until the row is released.
    """
    kept = decoder.rewind(min(start, decoder.length))
    for _ in decoder.prefill(tokens[kept:start]):
        pass
    for first in range(start, len(tokens), width):
        batch = tokens[first : first + width]
        for row in decoder.decode(batch, len(batch)).rows:
            assert not isinstance(row, Candidates), "the target's rows are whole"
            yield row


def row_after(decoder: Decoder, tokens: Sequence[int]) -> np.ndarray:
    """Return the row of logits after a text, whose last token is decoded in a pass of its own."""
    decoder.rollback(0)
    (row,) = map(np.array, rows_of(decoder, tokens, len(tokens) - 1, 1))
    decoder.rollback(0)
    return row


def width_difference_on(
    pair: LoadedPair, tokens: Sequence[int], widths: Collection[int] = (), back: int = AS_FAR_BACK
) -> float:
    """Return `width_gap` for the last `back` tokens of a text; the tokens before them are context."""
    with pair.threads.keeping():
        return width_gap(pair.target, tokens, max(len(tokens) - back, 0), widths)


def width_gap(decoder: Decoder, tokens: Sequence[int], start: int = 0, widths: Collection[int] = ()) -> float:
    """Return the largest difference of a logit between passes of one token and wider passes.

    The widths of the wider passes are those of WIDTHS and `widths`. Only rows from `start` on are compared.
    At the end the KV cache is empty. A pass must be able to return 9 rows, the largest of WIDTHS.
    """
    decoder.rollback(0)
    reference, *others = (
        np.stack([np.array(row) for row in rows_of(decoder, tokens, start, width)])
        for width in (1, *WIDTHS.union(widths))
    )
    decoder.rollback(0)
    return max(float(np.abs(rows - reference).max()) for rows in others)


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """The plain and the speculative reply to one prompt."""

    plain: Reply
    speculative: Reply
    rule: str  # acceptance rule: "greedy" at temperature 0
    divergence: Divergence | None  # None: both replies have the same tokens
    width_difference: float | None  # `width_gap` of the tokens before the branch point; None: not measured
    cancelled: bool  # whether a reply was stopped before its end
    contended: bool = False  # whether other programs kept the processor busy
    is_demo: bool = False  # whether the pair is the embedded demo

    def __repr__(self) -> str:
        text = "the same text" if self.identical else "different text"
        speed = "the demo pair" if self.is_demo else f"{self.speedup:.2f}x plain"
        return f"Comparison({speed}, {text}, plain={self.plain!r}, speculative={self.speculative!r})"

    def __str__(self) -> str:
        """Return a sentence about the speed; for the demo pair, about the passes that drafting saved."""
        plain, drafted = self.plain.stats, self.speculative.stats
        if self.is_demo and drafted.drafted:
            same = "The same text" if self.identical else "Different text"
            kept = f"{drafted.accepted} of {counted(drafted.drafted, 'draft token')} accepted"
            passes = counted(drafted.cycles, "pass", "passes")
            return f"{same} in {passes} instead of {plain.cycles:,}, {kept}."
        seconds = plain.decode_seconds, drafted.decode_seconds
        kinds = {"sampled": self.rule not in SEED_DECIDES, "contended": self.contended}
        return headline(self.measured_ratio, self.identical, seconds, drafted, **kinds)

    @property
    def has_verdict(self) -> bool:
        """Whether both replies ended by themselves, or have enough tokens for a verdict."""
        return not self.cancelled or min(len(self.plain.tokens), len(self.speculative.tokens)) >= LEAST_JUDGED

    @property
    def identical(self) -> bool:
        """Whether both replies have the same tokens."""
        return self.divergence is None

    @property
    def measured_ratio(self) -> float:
        """Tokens per second of the speculative reply / those of the plain reply; 0 if unknown."""
        plain = self.plain.stats.tokens_per_second
        return self.speculative.stats.tokens_per_second / plain if plain else 0.0

    @property
    def speedup(self) -> float:
        """`measured_ratio`, clamped to the range that draft tokens can explain; 0 if unknown or for the demo."""
        ratio, stats = self.measured_ratio, self.speculative.stats
        if self.is_demo or not ratio:
            return 0.0
        return 1.0 if stats.hardly_drafted else stats.caused(ratio)


@dataclass(frozen=True, slots=True)
class SideEvent:
    """An event of the plain or the speculative reply of a comparison."""

    speculative: bool
    event: Event


def compare(
    prompt: PromptOrMessages,
    *,
    pair: str | None = None,
    target: str | Path | None = None,
    draft: str | Path | None = None,
    **options: "Unpack[ReplyOptions]",
) -> Comparison:
    """Answer a prompt with and without drafting; load the pair for this call alone.

    The options are those of `run`, but the default temperature is 0. Raises the errors of `localspec.errors`.
    """
    with api.load(pair, target=target, draft=draft, cache_gb=0, is_use=False) as session:
        return compare_on(session, prompt, **options)


def compare_on(session: Session, messages: PromptOrMessages, **options: "Unpack[ReplyOptions]") -> Comparison:
    """Answer a prompt with and without drafting on a loaded pair, and clear the session's conversation."""
    for event in compare_events(session, messages, **options):
        if isinstance(event, Comparison):
            return event
    raise LocalspecError("the comparison was stopped before both sides had replied", hint="let it run longer")


def compare_events(
    session: Session,
    messages: PromptOrMessages,
    *,
    cancelled: Callable[[], bool] = bool,
    **options: "Unpack[ReplyOptions]",
) -> Iterator[SideEvent | Comparison]:
    """Yield the events of the plain reply and of the speculative reply, then a Comparison.

    `messages`: the whole conversation. A call of `session.cancel()`, or True from `cancelled`, stops the
    running reply. The Comparison then covers the tokens that both replies have. If the plain reply was stopped, the
    speculative one has LEAST_JUDGED tokens; if the plain reply has fewer, no Comparison follows.
    """
    pair, given = session.pair, list(as_messages(messages))
    common = ReplyOptions(temperature=0.0) | options | {"overflow": "error"}
    if pair.is_demo:  # the automatic depth would be 0, because the demo's draft saves no time
        common = ReplyOptions(depth=DEMO_DEPTH) | common
    replies, rule, prompt, read, contended, widths = list[Reply](), "", list[int](), 0, False, set[int]()
    cycles: tuple[list[Cycle], list[Cycle]] = [], []
    ended = False  # whether a reply was stopped
    with pair.threads.keeping():  # keep the number of threads, because another number may change a text
        for speculative in (False, True):
            session.reset()
            empty_caches(pair)
            own = common | {"speculate": speculative}
            if speculative and common.get("depth") == 0:  # depth 0 would make both replies plain
                own["depth"] = "auto"
            if ended:
                own["max_tokens"] = LEAST_JUDGED
            for event in session.stream(given, cancelled=None if ended else cancelled, **own):
                match event:
                    case Started(rule=rule, prompt_tokens=read):
                        if rule in SEED_DECIDES:
                            common["seed"] = event.seed  # gives both replies the same random numbers
                    case Cycle():
                        cycles[speculative].append(event)
                        contended |= pair.threads.contended
                        widths.add(max(event.width, event.pass_width))
                    case Finished(reply=reply):
                        if ended:  # the plain reply was stopped, so this reply counts as stopped, too
                            event = Finished(reply := replace(reply, finish_reason=FinishReason.CANCELLED))
                        replies.append(reply)
                        prompt = list(pair.target.tokens[:read])
                yield SideEvent(speculative, event)
            ended |= replies[-1].finish_reason is FinishReason.CANCELLED
            if ended and len(replies[-1].tokens) < LEAST_JUDGED:
                break
        session.reset()
        if len(replies) == 2:
            count = min(len(reply.tokens) for reply in replies) if ended else sys.maxsize
            plain, drafted = (begun(*side, count) for side in zip(replies, cycles, strict=True))
            measured = count >= LEAST_JUDGED and rule == Greedy.name
            found = divergence_of(pair, prompt, plain, drafted, widths if measured else None)
            yield Comparison(plain, drafted, rule, *found, ended, contended, pair.is_demo)


def begun(reply: Reply, cycles: Sequence[Cycle], count: int) -> Reply:
    """Return a reply cut to its first `count` tokens, with the statistics of these tokens, but the full text."""
    if len(reply.tokens) <= count:
        return reply
    of_prompt = ("prompt_tokens", "reused_tokens", "prefill_seconds", "first_token_seconds")
    tally = Tally(Stats(**{name: getattr(reply.stats, name) for name in of_prompt}))
    for cycle in cycles:
        if tally.sums.emitted < count:
            tally.add(cycle)
    return replace(reply, tokens=reply.tokens[:count], stats=tally.stats())


def empty_caches(pair: LoadedPair) -> None:
    """Empty the caches, so that the next reply prefills its whole prompt."""
    pair.target.rollback(0)
    for drafter in pair.drafters:
        drafter.observe(NO_TEXT, 0)


def divergence_of(
    pair: LoadedPair, prompt: Sequence[int], plain: Reply, drafted: Reply, widths: Collection[int] | None
) -> tuple[Divergence | None, float | None]:
    """Return the divergence of two replies, and `width_gap` before it; None for both if the tokens are equal.

    `widths`: the batch widths of the speculative reply; None: measure no logits.
    """
    if (index := first_difference(plain.tokens, drafted.tokens)) is None:
        return None, None
    one, other = (next(iter(side.tokens[index:]), None) for side in (plain, drafted))
    if widths is None:
        return Divergence(index, one, other, None), None
    text = [*prompt, *plain.tokens[:index]]
    row = row_after(pair.target, text)
    where = Divergence(index, one, other, top_two_gap(row), likeliest(row))
    difference = width_difference_on(pair, text, widths, NEAR)
    if not where.is_near(difference):
        difference = max(difference, width_difference_on(pair, text, widths))
    return where, difference


def verdicts(comparison: Comparison, text_of: Callable[[int], str]) -> list[str]:
    """Return sentences about the speed, a difference of the texts, and doubts about the comparison."""
    if not comparison.has_verdict:
        return [STOPPED]
    sentences, where = [str(comparison)], comparison.divergence
    stats, rounding = comparison.speculative.stats, comparison.width_difference
    if where and where.top_two_gap is not None and rounding is not None:
        at = f"{where.index + 1:,}"
        drafted, plain = (
            "the end" if token is None else repr(text_of(token)) for token in (where.speculative, where.plain)
        )
        sentences += [
            f"Token {at} was a near-tie, {where.chances}: rounding decides here."
            if where.is_near(rounding)
            else f"Token {at} was no near-tie, {where.chances}: `localspec verify` looks for the fault.",
            f"It is {drafted} with drafting, and {plain} without. The scores of the two likeliest tokens are "
            f"{where.top_two_gap:.4f} apart; rounding moves each by up to {rounding:.4f}.",
        ]
    elif where and comparison.rule in SEED_DECIDES:
        sentences.append(
            f"The texts differ from token {where.index + 1:,} on; under the rule {comparison.rule} only rounding "
            "explains that: see `localspec verify`."
        )
    elif where:
        sentences.append(
            "Both texts are random samples, so they may differ. At temperature 0 they can be compared."
        )
    if comparison.cancelled:
        sentences.append(f"Stopped early: this compares the first {len(comparison.plain.tokens):,} tokens.")
    if not stats.draft_seconds and stats.mean_accepted_length < FEW:
        sentences.append(f"{NO_DRAFT[0].upper()}{NO_DRAFT[1:]}.")
    return [*sentences, *[DEMO_MODEL] * comparison.is_demo]
