"""Chooses the tokens of a trimmed draft from its target's answers, and makes the pair."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from localspec import settings
from localspec.chat.loaded_pair import LoadedPair
from localspec.fit.collect import Answer, Asked, answers, needed_tokens, prompts
from localspec.fit.trim import trim
from localspec.gguf.facts import DraftKind, facts_of_file
from localspec.llama.context import Context
from localspec.models.registry import Pair, add_pair
from localspec.models.store import ModelFile

HELD_OUT = 5  # every fifth answer only judges the choice
LENGTH = 1024  # tokens of a prompt and its answer; longer prompts are passed over


@dataclass(frozen=True, slots=True)
class Trimmed:
    """A draft that was trimmed."""

    path: Path
    output_tokens: int  # tokens
    whole: int  # tokens of the draft before
    written: int  # tokens of the answers that were held out
    said: float  # the share of these that the trimmed draft can say


def trim_for(
    pair: LoadedPair, draft: Path, path: Path, count: int, room: int, on_answer: Callable[[int], object]
) -> Trimmed:
    """Trim a draft to the tokens that the target of `pair` writes or finds likely in answers to built-in prompts.

    room: tokens of each answer; on_answer: called with the tokens so far. Raises BadModelFile, BadSetting, OSError, and
    errors of decoding.
    """
    vocabulary = facts_of_file(draft).vocabulary
    assert vocabulary is not None, "trimmable says so"
    seen: list[Answer] = []
    mass = np.zeros(pair.vocabulary.size)
    for answer in answers_of(pair, room, mass):
        seen.append(answer)
        on_answer(sum(len(one.tokens) for one in seen))
    judged = [token for one in seen if one.asked.mass is None for token in one.tokens]
    written = [token for one in seen if one.asked.mass is not None for token in one.tokens]
    ids = needed_tokens(vocabulary, written, mass, count)
    path.parent.mkdir(parents=True, exist_ok=True)
    trim(draft, path, ids)
    return Trimmed(path, len(ids), vocabulary.count, len(judged), float(np.isin(judged, ids).mean()))


def answers_of(pair: LoadedPair, room: int, mass: np.ndarray) -> Iterator[Answer]:
    """The target's answers to the built-in prompts at temperature 0; `mass` sums up those that are not held out."""
    assert isinstance(pair.target, Context), "only files are fitted to"
    target = pair.target
    asked = (Asked(prompt, mass if i % HELD_OUT else None) for i, prompt in enumerate(prompts(pair)))
    return answers(target.model, asked, room=room, length=LENGTH, threads=target.threads.usual)


def fitted_name(pair: Pair, suffix: str) -> str:
    """The name of a fitted pair."""
    return re.sub(r"[^a-z0-9._+-]+", "-", pair.name.lower()).strip("-._+") + f"-{suffix}"


def fitted_path(name: str) -> Path:
    return settings.data_dir() / "fitted" / f"{name}.gguf"


def keep(name: str, pair: Pair, draft: Path, use: str) -> Path:
    """Write the pair of a target and its new draft among the user's pairs; returns its file. Raises OSError."""
    target, drafted = (ModelFile.at(path.absolute()).pinned() for path in (pair.target.here, draft))
    return add_pair(Pair(name, DraftKind.MODEL, target, drafted, use=use, starting_depth=pair.starting_depth))
