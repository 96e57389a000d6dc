"""Training data for drafts: prompts, the target's answers with the likeliest tokens at each place, and their files."""

import io
import os
import re
import tomllib
import zipfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import count
from pathlib import Path
from random import Random
from time import time_ns
from zlib import crc32

import numpy as np

from localspec.algorithm.pass_order import Part
from localspec.errors import BadModelFile, BadSetting
from localspec.files import write_atomically
from localspec.gguf.matching import vocabulary_of
from localspec.llama.context import Context
from localspec.measure.bench import BenchPrompt, Category
from localspec.models.local_models import ModelFile
from localspec.sampler.chain import largest
from localspec.sampler.passes import Candidates, Row

KEPT = 64  # number of likeliest tokens to store for each row of logits
HELD_OUT = 16  # one of every HELD_OUT prompts is only for evaluation
_COLUMNS = ("prompt", "tokens", "likely", "log_shares")
_serials = count()  # numbers that keep file names unique if the clock is coarse


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and the target's answer, with the target's likeliest tokens at each position of the answer."""

    prompt: np.ndarray  # int32 [prompt length]
    tokens: np.ndarray  # int32 [n], the answer
    likely: np.ndarray  # int32 [n, KEPT]: the target's likeliest tokens at each position of the answer
    log_shares: np.ndarray  # float16 [n, KEPT]: log-probabilities of `likely` at temperature 1

    @property
    def length(self) -> int:
        """Return the number of tokens that the draft reads in training: all but the answer's last token."""
        return len(self.prompt) + len(self.tokens) - 1


def is_held_out(prompt: Sequence[int] | np.ndarray) -> bool:
    return crc32(np.asarray(prompt, "<i4").tobytes()) % HELD_OUT == 0


def add_texts(folder: Path, texts: Sequence[Text]) -> Path:
    columns = {name: np.concatenate([getattr(text, name) for text in texts]) for name in _COLUMNS}
    columns["lengths"] = np.array([(len(text.prompt), len(text.tokens)) for text in texts], np.int32)
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **columns)
    path = folder / f"{time_ns()}-{next(_serials):06}-{os.getpid()}.npz"
    write_atomically(path, content.getvalue())
    return path


def texts_in(folder: Path) -> Iterator[Text]:
    """Yield the texts of a folder, oldest first. Raises BadSetting if a file is damaged."""
    for path in sorted(folder.glob("[0-9]*.npz")):
        try:
            with np.load(path) as part:
                columns = {name: part[name] for name in (*_COLUMNS, "lengths")}
        except FileNotFoundError:
            continue  # another process has just deleted the file
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            hint = "delete this file: the other files are intact"
            raise BadSetting(f"{path} cannot be read: {error}", hint=hint) from None
        ends = columns["lengths"].cumsum(axis=0)
        for (prompt, tokens), (prompt_end, end) in zip(columns["lengths"], ends, strict=True):
            rows = slice(end - tokens, end)
            yield Text(
                columns["prompt"][prompt_end - prompt : prompt_end],
                *(columns[name][rows] for name in ("tokens", "likely", "log_shares")),
            )


def made_prompts() -> Iterator[BenchPrompt]:
    """Yield prompts without end, each category in turn. Every run has the same order; some prompts repeat."""

    def filled(text: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda slot: filled(chance.choice(table["words"][slot[1]])), text)

    table = tomllib.loads(files("localspec.fit").joinpath("prompts.toml").read_text("utf-8"))
    chance = Random("prompts")
    for number in count():
        category = list(table["ask"])[number % len(table["ask"])]
        text = filled(chance.choice(table["ask"][category]))
        yield BenchPrompt(f"{category} {number}", Category(category), text)


def needed_tokens(source: Path, written: Sequence[int], mass: np.ndarray, size: int) -> np.ndarray:
    """Choose `size` token ids of `source`: the `written` ids, then those with the largest mass. Return them sorted.

    `mass`: for each token id, the square roots of its probabilities, summed over the target's rows of logits.
    """
    vocabulary = vocabulary_of(ModelFile.at(source).header)
    assert vocabulary is not None, "trimmable says so"
    score = np.zeros(vocabulary.count)
    known = min(len(score), len(mass))
    score[:known] = mass[:known]
    ends = [token for token in (vocabulary.bos, vocabulary.eos, vocabulary.end) if token >= 0]
    # Keep the lowest token ids, because most of them are bytes and special tokens.
    always = [*ends, *range(min(512, size // 2)), *written]
    score[[token for token in always if token < len(score)]] = np.inf
    order = np.lexsort((np.arange(len(score)), -score))
    return np.sort(order[:size]).astype(np.int32)


AT_ONCE = 8  # number of answers that the target writes in one batch


@dataclass(frozen=True, slots=True)
class Answer:
    prompt: Sequence[int]
    mass: np.ndarray | None = None  # the `mass` of `needed_tokens`: float64 [vocabulary]
    tokens: list[int] = field(default_factory=list)
    _likely: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)

    def take(self, row: Row) -> None:
        assert not isinstance(row, Candidates), "the target's rows are whole"
        if self.mass is not None:
            np.add(self.mass, np.exp((row - row.max()) / 2), out=self.mass)
        ids, logits = largest(row, KEPT)
        order = np.argsort(-logits, kind="stable")
        total = np.exp(row - np.float32(logits.max())).sum(dtype=np.float64)
        log_shares = logits[order] - logits.max() - np.log(total)
        self._likely.append((ids[order].astype(np.int32), log_shares.astype(np.float16)))
        self.tokens.append(int(row.argmax()))

    def text(self) -> Text:
        likely, log_shares = map(np.stack, zip(*self._likely, strict=True))
        return Text(np.array(self.prompt, np.int32), np.array(self.tokens, np.int32), likely, log_shares)


def answers(target: Context, prompts: Iterable[Answer], *, room: int, length: int) -> Generator[Answer]:
    """Yield each finished answer, at most `room` tokens long; skip prompts longer than `length - room`."""
    model, fits = target.model, (answer for answer in prompts if len(answer.prompt) + room <= length)
    if not model.can_roll_back:
        what = f"fit cannot use {model.name}: its recurrent layers cannot write several texts at once"
        raise BadModelFile(what, hint="choose a target without recurrent layers (Mamba and RWKV have them)")
    threads = target.threads.usual
    with Context(
        model, length=length, threads=threads, batch_size=length, rows_max=1, slots=AT_ONCE
    ) as cache:
        writing: dict[int, Answer] = {}
        while True:
            for text in sorted(set(range(AT_ONCE)) - writing.keys()):
                if answer := next(fits, None):
                    writing[text] = answer
                    cache.slots[text].rollback(0)
                    (begun,) = cache.shared.decode([Part(text, answer.prompt, rows=1)])
                    answer.take(begun.rows[0])
            ended = [
                text
                for text, answer in writing.items()
                if len(answer.tokens) >= room or model.vocab.is_end(answer.tokens[-1])
            ]
            for text in ended:
                yield writing.pop(text)
            if writing:
                newest = [Part(text, answer.tokens[-1:], rows=1) for text, answer in writing.items()]
                for answer, found in zip(writing.values(), cache.shared.decode(newest), strict=True):
                    answer.take(found.rows[0])
            elif not ended:
                return
