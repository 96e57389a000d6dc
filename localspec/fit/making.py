"""Makes a draft of some of a target's layers: the target answers prompts, the draft learns from the answers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from localspec.chat.loaded_pair import LoadedPair
from localspec.errors import BadSetting, LocalspecError
from localspec.files import FileLock, alone
from localspec.fit.collect import Answer, answers, made_prompts
from localspec.fit.texts import Text, add_texts, texts_in
from localspec.fit.trim import trimmable
from localspec.llama.context import Context
from localspec.measure.verify import encoded_prompt

LENGTH = 512  # tokens of a prompt and its answer
ANSWER = 192  # tokens
PART = 32  # answers in a file
REPEATS = 2000  # prompts in a row that were asked before: there are no more


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of the draft and of its training."""

    layers: int
    output_tokens: int  # tokens that the draft can say
    answered: int  # tokens of answers to learn from
    visits: int  # tokens learned from, each counted as often as it is


def require_torch() -> None:
    """Asked before anything is collected. Raises LocalspecError if PyTorch or gguf is missing."""
    if find_spec("torch") is None or find_spec("gguf") is None:
        raise LocalspecError(
            "a draft is made with PyTorch and gguf, which are not both installed",
            hint='pip install "torch>=2.9" "gguf>=0.17"',
        )


def require_cuttable(source: Path, plan: Plan) -> None:
    """Raises BadModelFile or BadSetting if this model cannot give a draft."""
    from localspec.fit.cut import Shape

    header = trimmable(source, plan.output_tokens)
    Shape.of(header)
    whole = header.of_model("block_count")
    if not 1 <= plan.layers <= whole:
        raise BadSetting(
            f"a draft of {plan.layers} layers cannot be made of the {whole} of {source.name}",
            hint="take no more than it has: --layers N",
        )


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold the lock of this draft, and remove half-written files of a killed process.

    Raises LocalspecError if another process has the lock, OSError.
    """
    what, hint = f"{folder.name} is being made by another command", "let it end, or stop it with Ctrl-C"
    with alone(FileLock(folder / "lock"), what, hint):
        for unfinished in (*folder.glob(".*.npz.*"), *folder.glob(".checkpoint.pt.*")):
            unfinished.unlink()
        yield


def answered(folder: Path) -> int:
    """Tokens of answers that a folder holds."""
    return sum(len(text.tokens) for text in texts_in(folder))


def collect(pair: LoadedPair, folder: Path, wanted: int, told: Callable[[int], object]) -> int:
    """Let the target answer prompts until `folder` holds the wanted tokens of answers; returns how many it holds.

    told: called with the tokens so far after every answer. Raises OSError, and errors of decoding.
    """
    assert isinstance(pair.target, Context), "only files are fitted to"
    seen, there = set[tuple[int, ...]](), 0
    for text in texts_in(folder):
        seen.add(tuple(text.prompt.tolist()))
        there += len(text.tokens)
    waiting = list[Text]()
    target = pair.target
    source = answers(
        target.model, _unasked(pair, seen), room=ANSWER, length=LENGTH, threads=target.threads.usual
    )
    try:
        while there < wanted and (answer := next(source, None)):
            waiting.append(answer.text())
            there += len(answer.tokens)
            if len(waiting) >= PART:
                add_texts(folder, waiting)
                waiting = []
            told(there)
    finally:
        source.close()
        if waiting:
            add_texts(folder, waiting)
    return there


def _unasked(pair: LoadedPair, seen: set[tuple[int, ...]]) -> Iterator[Answer]:
    repeats = 0
    for prompt in made_prompts():
        tokens = tuple(encoded_prompt(pair, prompt.text))
        repeats = repeats + 1 if tokens in seen else 0
        if repeats > REPEATS:
            return
        if not repeats:
            seen.add(tokens)
            yield Answer(tokens)
