"""Make a draft: the target answers prompts, and the draft is trimmed or trained on the answers."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import numpy as np

from localspec.chat.loaded_pair import LoadedPair
from localspec.errors import BadSetting, LocalspecError
from localspec.files import FileLock, alone
from localspec.fit.collect import (
    Answer,
    add_texts,
    answers,
    is_held_out,
    made_prompts,
    needed_tokens,
    texts_in,
)
from localspec.fit.cut import ModelShape, trim, trimmable
from localspec.gguf.facts import DraftKind
from localspec.gguf.matching import vocabulary_of
from localspec.llama.context import Context
from localspec.measure.bench import (
    BUILT_IN_PROMPTS,
    VERIFY_PROMPTS,
    BenchPrompt,
    Category,
    Measurement,
    in_turn,
)
from localspec.measure.summary import (
    Finding,
    Interval,
    finding,
    grouped,
    log_ratio,
    mean_ratio,
    paired,
    speedup_text,
)
from localspec.measure.verify import encoded_prompt
from localspec.models.local_models import ModelFile, fitted_dir
from localspec.models.registry import Pair, add_pair

LENGTH = 512  # limit of tokens in a prompt and its answer together
ANSWER = 192  # limit of tokens in an answer
PART = 32  # number of answers in a file


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    layers: int
    output_tokens: int  # tokens that the draft can write
    answered: int  # tokens in the training answers
    visits: int  # training tokens; a token counts each time that it is trained on


def check_makeable(source: Path, plan: TrainingPlan) -> None:
    """Raise LocalspecError if PyTorch is missing, or if no draft of this plan can be made from the model `source`."""
    if find_spec("torch") is None:
        what = "making a draft needs PyTorch, which is not installed"
        raise LocalspecError(what, hint='pip install "torch>=2.9"')
    header = trimmable(source, plan.output_tokens)
    ModelShape.of(header)
    whole = header.of_model("block_count")
    if not 1 <= plan.layers <= whole:
        what = f"a draft of {plan.layers} layers cannot be made from {source.name}, which has {whole}"
        raise BadSetting(what, hint=f"use at most {whole} layers: --layers N")


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold the lock of a draft's folder, and remove the half-written files of a killed process."""
    what, hint = f"another command is making {folder.name}", "wait until it ends, or stop it with Ctrl-C"
    with alone(FileLock(folder / "lock"), what, hint):
        for unfinished in (*folder.glob(".*.npz.*"), *folder.glob(".checkpoint.pt.*")):
            unfinished.unlink()
        yield


def answered(folder: Path) -> int:
    return sum(len(text.tokens) for text in texts_in(folder))


def collect(pair: LoadedPair, folder: Path, wanted: int, on_progress: Callable[[int], object]) -> int:
    """Let the target answer prompts until `folder` has `wanted` answer tokens; return their number."""
    assert isinstance(pair.target, Context), "fit loads model files"
    seen = {tuple(text.prompt.tolist()) for text in texts_in(folder)}
    there, waiting = answered(folder), []

    def unseen() -> Iterator[Answer]:
        repeats = 0
        for prompt in made_prompts():
            tokens = tuple(encoded_prompt(pair, prompt.text))
            repeats = repeats + 1 if tokens in seen else 0
            if repeats > 2000:  # nearly all further prompts would be repeats
                return
            if not repeats:
                seen.add(tokens)
                yield Answer(tokens)

    with closing(answers(pair.target, unseen(), room=ANSWER, length=LENGTH)) as source:
        try:
            while there < wanted and (answer := next(source, None)):
                waiting.append(answer.text())
                there += len(answer.tokens)
                if len(waiting) >= PART:
                    add_texts(folder, waiting)
                    waiting = []
                on_progress(there)
        finally:
            if waiting:
                add_texts(folder, waiting)
    return there


TRIM_HELD_OUT = 5  # one of every TRIM_HELD_OUT answers is held out, to test the kept output tokens


@dataclass(frozen=True, slots=True)
class Trimmed:
    output_tokens: int
    whole: int  # number of the draft's output tokens before trimming
    written: int  # number of tokens in held-out answers
    written_share: float  # share of `written` that the trimmed draft can write


def trim_for(
    pair: LoadedPair, draft: Path, path: Path, count: int, room: int, on_answer: Callable[[int], object]
) -> Trimmed:
    """Trim a draft to `count` output tokens: those in the target's answers, then the likeliest others."""
    assert isinstance(pair.target, Context), "fit loads model files"
    prompts, mass = (*VERIFY_PROMPTS, *in_turn(BUILT_IN_PROMPTS)), np.zeros(pair.vocabulary.size)
    asked = (
        Answer(encoded_prompt(pair, prompt.text), mass if number % TRIM_HELD_OUT else None)
        for number, prompt in enumerate(prompts)
    )
    judged, written = list[int](), list[int]()
    for answer in answers(pair.target, asked, room=room, length=1024):  # longer prompts are skipped
        (judged if answer.mass is None else written).extend(answer.tokens)
        on_answer(len(judged) + len(written))
    ids = needed_tokens(draft, written, mass, count)
    path.parent.mkdir(parents=True, exist_ok=True)
    trim(draft, path, ids)
    whole = vocabulary_of(ModelFile.at(draft).header)
    assert whole is not None, "trimmable says so"
    return Trimmed(len(ids), whole.count, len(judged), float(np.isin(judged, ids).mean()))


def fitted_name(pair: Pair, suffix: str) -> str:
    return re.sub(r"[^a-z0-9._+-]+", "-", pair.name.lower()).strip("-._+") + f"-{suffix}"


def fitted_path(name: str) -> Path:
    return fitted_dir() / f"{name}.gguf"


def keep(name: str, pair: Pair, draft: Path, use: str) -> Path:
    target, drafted = (ModelFile.at(path.absolute()).pinned() for path in (pair.target.here, draft))
    return add_pair(Pair(name, DraftKind.MODEL, target, drafted, use=use))


EACH = 15  # limit of unseen prompts of each category


@dataclass(frozen=True, slots=True)
class Judgement:
    kept: bool
    speedup: Interval  # tokens per second with the new draft / with the old draft
    tokens_a_pass: float  # tokens per pass with the new draft

    def sentence(self) -> str:
        speed = f"{speedup_text(self.speedup)} of the speed with the old draft"
        return f"On unseen prompts: {speed}, {self.tokens_a_pass:.2f} tokens per pass."


def judge(old: Sequence[Measurement], new: Sequence[Measurement]) -> Judgement:
    """Compare the old and the new draft, prompt by prompt. The new one is kept if it is faster and often used."""

    def speedups(measurements: Sequence[Measurement]) -> dict[tuple[Category | None, str], float]:
        by_prompt = grouped(paired(measurements), lambda pair: (pair[1].category, pair[1].prompt))
        return {key: median(map(log_ratio, pairs)) for key, pairs in by_prompt.items()}

    before, after = speedups(old), speedups(new)
    gains = {key: [after[key] - before[key]] for key in after if key in before}
    by_category = grouped(gains, lambda key: key[0])
    speedup = mean_ratio([[gains[key] for key in keys] for keys in by_category.values()])
    drafting = [other for _, other in paired(new)]
    tokens_a_pass = sum(m.emitted for m in drafting) / sum(m.cycles for m in drafting)
    kept = finding(speedup) is Finding.FASTER and tokens_a_pass > 1.03
    return Judgement(kept, speedup, tokens_a_pass)


def unseen_prompts(pair: LoadedPair) -> tuple[BenchPrompt, ...]:
    """Return at most `EACH` held-out prompts of every category."""
    found: dict[Category, dict[str, BenchPrompt]] = {}
    for number, prompt in enumerate(made_prompts()):
        of_category = found.setdefault(prompt.category, {})
        if len(of_category) < EACH and is_held_out(encoded_prompt(pair, prompt.text)):
            of_category.setdefault(prompt.text, prompt)
        if min(map(len, found.values())) == EACH or number == EACH * 1000:
            return tuple(prompt for prompts in found.values() for prompt in prompts.values())
    raise AssertionError("prompts do not end")
