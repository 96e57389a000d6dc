"""Judges a made draft on unseen texts, and reports whether to keep it."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from localspec.chat.loaded_pair import LoadedPair
from localspec.fit.collect import made_prompts
from localspec.fit.texts import is_held_out
from localspec.measure.bench import BenchPrompt, Category, Measurement
from localspec.measure.intervals import Interval, mean_ratio
from localspec.measure.summary import HARDLY_DRAFTED, Finding, finding, grouped, log_ratio, paired
from localspec.measure.verify import encoded_prompt

EACH = 15  # prompts of every category


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a draft is kept, and why."""

    kept: bool
    speedup: Interval  # tokens per second with the new draft / without it
    categories: tuple[tuple[Category, Interval], ...]
    tokens_a_pass: float  # of the new draft

    def sentence(self) -> str:
        s = self.speedup
        what = f"{s.middle:.2f}x of the speed without it"
        what += f" ({s.low:.2f}x to {s.high:.2f}x)" if s.known else ", measured on too few prompts to tell"
        by = ", ".join(f"{category} {interval.middle:.2f}x" for category, interval in self.categories)
        return f"On prompts that nothing learned from: {what}, {self.tokens_a_pass:.2f} tokens a pass; {by}."


def judge(old: Sequence[Measurement], new: Sequence[Measurement]) -> Judgement:
    """Compare two benches of one target, each against plain decoding, prompt by prompt. Raises ValueError without any.

    A draft that hardly ever drafts is not kept at any speed.
    """
    before, after = _by_prompt(old), _by_prompt(new)
    logs = {key: [after[key] - before[key]] for key in after if key in before}
    by_category = grouped(logs, lambda key: key[0])
    groups = {category: [logs[key] for key in keys] for category, keys in by_category.items()}
    speedup = mean_ratio(list(groups.values()))
    drafting = [other for _, other in paired(new)]
    tokens_a_pass = sum(m.emitted for m in drafting) / sum(m.cycles for m in drafting)
    faster = finding(speedup) in (Finding.FASTER, Finding.SLIGHTLY_FASTER)
    return Judgement(
        faster and tokens_a_pass > HARDLY_DRAFTED,
        speedup,
        tuple((category, mean_ratio([found])) for category, found in groups.items()),
        tokens_a_pass,
    )


def _by_prompt(measurements: Sequence[Measurement]) -> dict[tuple[Category, str], float]:
    """The logarithm of each prompt's speed-up over plain decoding."""
    by_prompt = grouped(paired(measurements), lambda pair: (pair[1].category, pair[1].prompt))
    return {key: median(map(log_ratio, pairs)) for key, pairs in by_prompt.items()}


def unseen_prompts(pair: LoadedPair) -> tuple[BenchPrompt, ...]:
    """The first held-out prompts of every category; those of few parts are not waited for without end."""
    found: dict[Category, dict[str, BenchPrompt]] = {}
    for number, prompt in enumerate(made_prompts()):
        of_category = found.setdefault(prompt.category, {})
        if len(of_category) < EACH and is_held_out(encoded_prompt(pair, prompt.text)):
            of_category.setdefault(prompt.text, prompt)
        if min(map(len, found.values())) == EACH or number == EACH * 1000:
            return tuple(prompt for prompts in found.values() for prompt in prompts.values())
    raise AssertionError("prompts do not end")
