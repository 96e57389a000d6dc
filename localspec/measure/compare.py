"""One prompt with and without drafting, side by side: where the texts part, how fast each is, and the verdict."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Unpack

import numpy as np

from localspec import api
from localspec.algorithm.protocols import Decoder, Drafter
from localspec.algorithm.verification import SEED_DECIDES, Greedy
from localspec.chat.loaded_pair import TOY, LoadedPair
from localspec.chat.messages import Message, as_messages
from localspec.chat.session import Session, never
from localspec.display import aligned, counted
from localspec.errors import BadSetting, LocalspecError
from localspec.events import Cycle, Event, Finished, FinishReason, Reply, Started, Stats
from localspec.measure.race import NO_DRAFT, caused, hardly_drafted, headline
from localspec.options import ReplyOptions
from localspec.sampler.passes import NO_TEXT, standing

COLUMNS = ("", "tokens", "passes", "kept", "a pass", "prompt s", "decode s", "tokens/s")
TOY_COLUMNS, TOY_DEPTH = 5, 4  # without times; tokens

Messages = str | Sequence[Mapping[str, Any] | Message]


FEW = 1.1  # tokens a pass: less is hardly a gain
AS_FAR_BACK = 200  # tokens before a divergence on which batch widths are compared


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first token that differs."""

    index: int  # tokens that were equal
    plain: int | None  # token without drafting; None after the end of that reply
    speculative: int | None  # token with drafting; None after the end of that reply
    top_two_gap: float | None  # between the two largest logits of the target's row there; None: not measured


def first_difference(plain: Sequence[int], speculative: Sequence[int]) -> int | None:
    """The first index at which two token sequences differ; None when they are equal."""
    index = standing(plain, 0, speculative)
    return None if index == len(plain) == len(speculative) else index


def diverged(plain: Sequence[int], speculative: Sequence[int], gap: float | None) -> Divergence | None:
    """The divergence of two replies, with a gap measured elsewhere; None when they are equal."""
    index = first_difference(plain, speculative)
    if index is None:
        return None
    one, other = (reply[index] if index < len(reply) else None for reply in (plain, speculative))
    return Divergence(index, one, other, gap)


def top_two_gap(row: np.ndarray) -> float:
    """The distance between the two largest logits of a row."""
    second, first = np.partition(row, -2)[-2:]
    return float(first - second)


def row_after(decoder: Decoder, tokens: Sequence[int]) -> np.ndarray:
    """The target's row after a text, read from an empty cache, the last token alone as in plain decoding."""
    decoder.rollback(0)
    for _ in decoder.prefill(tokens[:-1]):
        pass
    (row,) = decoder.decode(tokens[-1:], rows=1).rows
    return np.array(row)


def width_difference_on(pair: LoadedPair, tokens: Sequence[int], widths: Collection[int] = ()) -> float:
    """D: the largest logit difference between batch widths at the last 200 of these tokens, read after the others."""
    pair.drafting.keep_threads()
    return width_gap(pair.target, tokens, max(len(tokens) - AS_FAR_BACK, 0), widths)


def begin(pair: LoadedPair, prompt: Sequence[int]) -> None:
    """The target reads the prompt but for its last token, and the drafters follow."""
    forget(pair.target, pair.drafters)
    for batch in pair.target.prefill(prompt[:-1]):
        for drafter in pair.drafters:
            drafter.observe(batch, len(batch.tokens))


def forget(target: Decoder, drafters: Sequence[Drafter]) -> None:
    """Empty all caches."""
    target.rollback(0)
    for drafter in drafters:
        drafter.observe(NO_TEXT, 0)


WIDTHS = frozenset({2, 5, 9})


def width_gap(decoder: Decoder, tokens: Sequence[int], start: int = 0, widths: Collection[int] = ()) -> float:
    """D: the largest logit difference between one token at a time and 2, 5, 9 and `widths`, on the same prefixes.

    Reads the tokens from `start` on once for each width, behind those before it: kernels differ with the length of
    the text as well. Leaves the cache empty; needs 9 rows.
    """
    decoder.rollback(0)
    reference = _rows(decoder, tokens, 1, start)
    gap = max(
        float(np.abs(_rows(decoder, tokens, width, start) - reference).max())
        for width in WIDTHS.union(widths)
    )
    decoder.rollback(0)
    return gap


def _rows(decoder: Decoder, tokens: Sequence[int], width: int, start: int) -> np.ndarray:
    """The row after every token from `start` on, float32 [tokens, vocab], decoded `width` tokens at a time."""
    held = decoder.rewind(min(start, decoder.length))
    for _ in decoder.prefill(tokens[held:start]):
        pass
    rows: list[np.ndarray] = []
    for first in range(start, len(tokens), width):
        batch = tokens[first : first + width]
        rows.extend(np.array(row) for row in decoder.decode(batch, len(batch)).rows)
    return np.stack(rows)


@dataclass(frozen=True, slots=True, repr=False)
class Side:
    """One way to decode: the replies of all its runs."""

    replies: tuple[Reply, ...]

    def __repr__(self) -> str:
        return f"Side({self.reply!r}, runs={len(self.replies)})"

    @property
    def reply(self) -> Reply:
        """The first reply."""
        return self.replies[0]

    @property
    def stats(self) -> Stats:
        """Of the reply with the fewest passes for its tokens: drafting learns from run to run."""
        return max((reply.stats for reply in self.replies), key=lambda stats: stats.mean_accepted_length)

    @property
    def text(self) -> str:
        """The text of the first reply."""
        return self.reply.text

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of the first reply."""
        return self.reply.tokens

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens / decode seconds, prefill left out; median of all runs, 0 before the first token."""
        return median(reply.stats.tokens_per_second for reply in self.replies)

    @property
    def decode_seconds(self) -> float:
        """Median of all runs."""
        return median(reply.stats.decode_seconds for reply in self.replies)

    @property
    def total_tokens_per_second(self) -> float:
        """Emitted tokens / seconds of prefill and decode; median of all runs, 0 before the first token."""
        return median(
            reply.stats.emitted / max(reply.stats.prefill_seconds + reply.stats.decode_seconds, 1e-9)
            for reply in self.replies
        )


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """Plain and speculative decoding of one prompt."""

    plain: Side
    speculative: Side
    rule: str  # "greedy" at temperature 0
    divergence: Divergence | None  # None: the same tokens
    width_difference: float | None  # largest logit difference between batch widths here; None: not measured
    cancelled: bool  # ended early: the times are of unequal texts
    crowded: bool = False  # other programs kept the processor busy
    toy: bool = False  # the pair is the embedded demo

    def __repr__(self) -> str:
        text = "the same text" if self.identical else "another text"
        speed = "a toy" if self.toy else f"{self.speedup:.2f}x plain"
        return f"Comparison({speed}, {text}, plain={self.plain!r}, speculative={self.speculative!r})"

    def __str__(self) -> str:
        return about_speed(self)

    @property
    def identical(self) -> bool:
        """Whether both sides have the same tokens."""
        return self.divergence is None

    @property
    def measured_ratio(self) -> float:
        """Tokens per second, speculative / plain: decoding alone, with its noise. 0 while that is unknown."""
        plain = self.plain.tokens_per_second
        return self.speculative.tokens_per_second / plain if plain else 0.0

    @property
    def speedup(self) -> float:
        """The same as far as drafting can have caused it. 0 while that is unknown, and of a toy."""
        return self._caused(self.measured_ratio)

    @property
    def total_speedup(self) -> float:
        """The speed-up with prefill. 0 while that is unknown."""
        plain = self.plain.total_tokens_per_second
        return self._caused(self.speculative.total_tokens_per_second / plain) if plain else 0.0

    def _caused(self, ratio: float) -> float:
        """As far as the guesses can have caused it; 1 if hardly anything was drafted."""
        stats = self.speculative.stats
        if self.toy:
            return 0.0
        if ratio and hardly_drafted(stats):
            return 1.0
        return caused(ratio, stats) if ratio else 0.0


@dataclass(frozen=True, slots=True)
class SideEvent:
    """An event of one of the runs of a comparison."""

    speculative: bool
    run: int  # from 0
    event: Event


def compare(
    prompt: Messages,
    *,
    pair: str | None = None,
    target: str | Path | None = None,
    draft: str | Path | None = None,
    n: int = 1,
    **options: "Unpack[ReplyOptions]",
) -> Comparison:
    """Answer a prompt with and without drafting, `n` times each in turns; loads the pair for this call alone.

    Options as for `run`. Raises the errors of `localspec.errors`.
    """
    with api.load(pair, target=target, draft=draft, cache_gb=0) as session:
        return compare_on(session, prompt, n=n, **options)


def compare_on(
    session: Session, messages: Messages, *, n: int = 1, **options: "Unpack[ReplyOptions]"
) -> Comparison:
    """The same on a loaded pair; the session's own conversation is forgotten."""
    for event in compare_events(session, messages, n=n, **options):
        if isinstance(event, Comparison):
            return event
    raise LocalspecError("the comparison was stopped before both sides had replied", hint="let it run longer")


def compare_events(
    session: Session,
    messages: Messages,
    *,
    n: int = 1,
    cancelled: Callable[[], bool] = never,
    **options: "Unpack[ReplyOptions]",
) -> Iterator[SideEvent | Comparison]:
    """The same, event by event; the last one is the Comparison, missing if it was stopped on the first side.

    Messages are the whole conversation. The temperature is 0 unless another is given. Who goes first takes turns,
    and every run reads its whole prompt.
    `session.cancel()` ends the comparison, and so does `cancelled`; the text so far is kept.
    """
    if n < 1:
        raise BadSetting(f"{n} runs cannot be compared", hint="compare at least one run of each kind")
    given = list(as_messages(messages))
    common = ReplyOptions(temperature=0.0) | options | {"overflow": "error"}
    if session.pair.is_toy:  # its own times would switch drafting off
        common = ReplyOptions(depth=TOY_DEPTH) | common
    replies: dict[bool, list[Reply]] = {False: [], True: []}
    rule, prompt, read, crowded, ended, widths = "", list[int](), 0, False, False, set[int]()
    for run in range(n):
        for speculative in (False, True) if run % 2 == 0 else (True, False):
            if ended:
                continue
            session.reset()
            forget(session.pair.target, session.pair.drafters)  # every run reads its prompt
            for event in session.stream(given, cancelled=cancelled, **asked(common, speculative=speculative)):
                match event:
                    case Started(rule=rule, prompt_tokens=read):
                        if rule in SEED_DECIDES:
                            common["seed"] = event.seed  # any other would only fix the depth and the threads
                            session.pair.drafting.keep_threads()  # another number of them can part texts as well
                    case Cycle():
                        crowded |= session.pair.drafting.crowded
                        widths.add(max(event.width, event.pass_width))
                    case Finished(reply=reply):
                        replies[speculative].append(reply)
                        prompt = list(session.pair.target.tokens[:read])
                        ended = reply.finish_reason is FinishReason.CANCELLED
                yield SideEvent(speculative, run, event)
    session.reset()
    if replies[False] and replies[True]:
        plain, drafted = (Side(tuple(replies[kind])) for kind in (False, True))
        index = first_difference(plain.tokens, drafted.tokens)
        gap = width_difference = None
        if index is not None and not ended and rule == Greedy.name:
            text = [*prompt, *plain.tokens[:index]]
            width_difference = width_difference_on(session.pair, text, widths)
            gap = top_two_gap(row_after(session.pair.target, text))
        where = diverged(plain.tokens, drafted.tokens, gap)
        yield Comparison(plain, drafted, rule, where, width_difference, ended, crowded, session.pair.is_toy)


def asked(options: ReplyOptions, *, speculative: bool) -> ReplyOptions:
    """The options of one side; a depth of 0 would make both sides plain."""
    if not speculative:
        return options | {"speculate": False}
    drafting = options | {"speculate": True}
    return drafting if options.get("depth") != 0 else drafting | {"depth": "auto"}


def verdicts(comparison: Comparison, text_of: Callable[[int], str]) -> list[str]:
    """Sentences about the speed, texts that differ, and what keeps the speed from meaning much."""
    said, where, stats = [about_speed(comparison)], comparison.divergence, comparison.speculative.stats
    if not stats.draft_seconds and stats.mean_accepted_length < FEW:
        said.append(f"{NO_DRAFT[0].upper()}{NO_DRAFT[1:]}.")
    if where or comparison.cancelled:
        said.append(why_texts_differ(comparison))
    if where and where.top_two_gap is not None:  # sampled texts differ anyway
        tokens = (where.speculative, where.plain)
        drafted, plain = ("the end" if token is None else repr(text_of(token)) for token in tokens)
        said.append(f"Token {where.index + 1:,}: {drafted} with drafting, {plain} without.")
    return [*said, *[TOY] * comparison.toy]


def why_texts_differ(comparison: Comparison) -> str:
    """The reason as a sentence; of a race that was stopped, that nothing is compared."""
    where = comparison.divergence
    if comparison.cancelled:
        return "Stopped early, so the texts are not compared."
    assert where is not None
    if comparison.rule not in SEED_DECIDES:
        return "Both texts are two draws from one distribution. At temperature 0 they can be compared."
    part, moves = f"The texts part at token {where.index + 1}", comparison.width_difference
    if where.top_two_gap is None or moves is None:
        return (
            f"{part}; under the rule {comparison.rule} only rounding explains that: see `localspec verify`."
        )
    apart = f"the scores of the two likeliest words are {where.top_two_gap:.4f} apart there"
    if where.top_two_gap <= 2 * moves:
        return f"{part}, a near-tie: {apart}, and rounding moves each by up to {moves:.4f}."
    return (
        f"{part}, and no near-tie explains it: {apart}, and rounding moves each by {moves:.4f} at most. "
        "`localspec verify` looks closer."
    )


def about_speed(comparison: Comparison) -> str:
    """How much faster speculative decoding was; of a toy, how many passes it saved."""
    plain, drafted = comparison.plain.stats, comparison.speculative.stats
    if comparison.toy and drafted.drafted:
        same = "The same text" if comparison.identical else "Another text"
        kept = f"{drafted.accepted} of {counted(drafted.drafted, 'guess', 'guesses')} kept"
        return f"{same} in {counted(drafted.cycles, 'pass', 'passes')} instead of {plain.cycles:,}, {kept}."
    runs, total = len(comparison.plain.replies), comparison.total_speedup
    measured = f"medians of {runs} runs each; " * (runs > 1)
    seconds = comparison.plain.decode_seconds, comparison.speculative.decode_seconds
    how = f"{measured}{total:.2f} times if the reading of the prompt counts"
    sampled = comparison.rule not in SEED_DECIDES
    found, kinds = comparison.measured_ratio, {"sampled": sampled, "crowded": comparison.crowded}
    return headline(found, comparison.identical, seconds, drafted, how, **kinds)


def table(comparison: Comparison) -> str:
    """Both sides, a line each; of a toy without times."""
    rows: list[tuple[str, ...]] = [COLUMNS]
    for name, side in (("plain", comparison.plain), ("drafting", comparison.speculative)):
        stats = side.stats
        rows.append(
            (
                name,
                str(len(side.tokens)),
                str(stats.cycles),
                f"{stats.acceptance_rate:.0%}" if stats.drafted else "-",
                f"{stats.mean_accepted_length:.2f}",
                f"{median(reply.stats.prefill_seconds for reply in side.replies):.3f}",
                f"{side.decode_seconds:.3f}",
                f"{side.tokens_per_second:.1f}",
            )
        )
    return aligned([row[:TOY_COLUMNS] for row in rows] if comparison.toy else rows)
