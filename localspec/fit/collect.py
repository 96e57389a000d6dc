"""The data for drafts: prompts, the target's answers, and the tokens that it needs."""

import re
import tomllib
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import count
from pathlib import Path
from random import Random

import numpy as np

from localspec.algorithm.batcher import Part
from localspec.chat.loaded_pair import LoadedPair
from localspec.errors import BadModelFile
from localspec.fit.texts import Text, likely_in
from localspec.gguf.facts import VocabularyFacts, vocabulary_of
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.measure.bench import VERIFY_PROMPTS, BenchPrompt, Category, built_in_prompts, in_turn
from localspec.measure.verify import encoded_prompt
from localspec.models.places import ModelFile
from localspec.sampler.passes import Candidates, Row


def prompts(pair: LoadedPair) -> Iterator[list[int]]:
    """Every built-in prompt, the short ones first, in tokens."""
    for prompt in (*VERIFY_PROMPTS, *in_turn(built_in_prompts())):
        yield encoded_prompt(pair, prompt.text)


def made_prompts() -> Iterator[BenchPrompt]:
    """Prompts of each category in turn, without end and always the same; those of few parts come again."""
    table = tomllib.loads(files("localspec.fit").joinpath("prompts.toml").read_text("utf-8"))
    chance = Random("prompts")
    for number in count():
        category = list(table["ask"])[number % len(table["ask"])]
        text = _filled(chance.choice(table["ask"][category]), table["words"], chance)
        yield BenchPrompt(f"{category} {number}", Category(category), text)


def _filled(text: str, words: Mapping[str, Sequence[str]], chance: Random) -> str:
    return re.sub(r"\{(\w+)\}", lambda slot: _filled(chance.choice(words[slot[1]]), words, chance), text)


ALWAYS = 512  # of the lowest ids: bytes and control tokens stand there in most vocabularies


def needed_tokens(
    vocabulary: VocabularyFacts, written: Sequence[int], mass: np.ndarray, count: int
) -> np.ndarray:
    """`count` tokens, ascending: those that were written, and then the likeliest ones.

    mass: how likely the target held each token, summed over its rows; float64 [its vocabulary].
    """
    score = np.zeros(vocabulary.count)
    known = min(len(score), len(mass))
    score[:known] = mass[:known]
    ends = [token for token in (vocabulary.bos, vocabulary.eos, vocabulary.end) if token >= 0]
    always = [*ends, *range(min(ALWAYS, count // 2)), *written]
    score[[token for token in always if token < len(score)]] = np.inf
    order = np.lexsort((np.arange(len(score)), -score))
    return np.sort(order[:count])


def output_tokens_for(source: Path, texts: Sequence[Text], count: int) -> np.ndarray:
    """The `count` tokens of a model that these texts need: square roots of probabilities as for a trimmed draft."""
    vocabulary = vocabulary_of(ModelFile.at(source).header)
    assert vocabulary is not None, "trimmable says so"
    mass = np.zeros(1 + max(int(text.likely.max()) for text in texts))
    for text in texts:
        np.add.at(mass, text.likely.ravel(), np.exp(text.log_shares.ravel().astype(np.float64) / 2))
    written = [token for text in texts for token in text.tokens.tolist()]
    return needed_tokens(vocabulary, written, mass, count).astype(np.int32)


AT_ONCE = 8  # texts in one batch


@dataclass(frozen=True, slots=True)
class Answer:
    """A prompt and the target's answer to it at temperature 0."""

    prompt: Sequence[int]
    # float64 [vocabulary]: each row of the answer adds the square roots of its probabilities.
    mass: np.ndarray | None = None
    tokens: list[int] = field(default_factory=list)
    _likely: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)

    def take(self, row: Row) -> int:
        """The next token, from the row behind the text so far."""
        assert not isinstance(row, Candidates), "the target's rows are whole"
        if self.mass is not None:
            np.add(self.mass, np.exp((row - row.max()) / 2), out=self.mass)
        self._likely.append(likely_in(row))
        self.tokens.append(int(row.argmax()))
        return self.tokens[-1]

    def text(self) -> Text:
        """With the likeliest tokens of every row."""
        likely, log_shares = map(np.stack, zip(*self._likely, strict=True))
        return Text(np.array(self.prompt, np.int32), np.array(self.tokens, np.int32), likely, log_shares)


def answers(
    model: Model, prompts: Iterator[Answer], *, room: int, length: int, threads: int | None = None
) -> Generator[Answer]:
    """Answers of at most `room` tokens, as they come to their ends; prompts that leave no room are passed over."""
    fits = (asked for asked in prompts if len(asked.prompt) + room <= length)
    if not model.can_roll_back:
        hint = "use a model without recurrent layers"
        raise BadModelFile(f"{model.name} cannot write several texts at once", hint=hint)
    with Context(
        model, length=length, threads=threads, batch_size=length, rows_max=1, lanes=AT_ONCE
    ) as cache:
        writing: dict[int, Answer] = {}
        while True:
            for text in sorted(set(range(AT_ONCE)) - writing.keys()):
                if asked := next(fits, None):
                    writing[text] = asked
                    cache.lanes[text].rollback(0)
                    (begun,) = cache.shared.decode([Part(text, asked.prompt, rows=1)])
                    asked.take(begun.rows[0])
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
