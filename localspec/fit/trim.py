"""A draft whose output vocabulary is cut to the tokens that are needed: no training, and cheaper steps."""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from localspec.chat.loaded_pair import LoadedPair
from localspec.errors import BadModelFile, BadSetting
from localspec.fit.collect import Answer, answers, needed_tokens, prompts
from localspec.gguf.facts import TOKENIZER, DraftKind, is_trimmed, table_path, vocabulary_of
from localspec.gguf.header import TOKENS, Entry, Header, parts_of
from localspec.gguf.trimmed import (
    EMBEDDINGS,
    SCALES,
    TABLE_HASH,
    TOKEN_IDS,
    UINT32,
    TensorBytes,
    output_tensor,
    stored,
    tensor_at,
    text_entry,
    write_gguf,
)
from localspec.llama.context import Context
from localspec.models.places import ModelFile, fitted_dir
from localspec.models.registry import Pair, add_pair

I32 = 26
LEAST = 256  # tokens: with fewer nothing is spared, and hardly anything could be said


def trim(source: Path, path: Path, token_ids: Sequence[int] | np.ndarray) -> Path:
    """Write the draft `source` with output rows for these tokens alone, and its table beside it.

    Raises BadModelFile for a model that cannot be trimmed, BadSetting for too many or too few tokens, OSError.
    """
    ids = np.unique(np.asarray(token_ids, np.int32))
    header = trimmable(source, len(ids))
    tensors = {tensor.name: tensor for tensor in header.tensors}
    embeddings = stored(source, tensors[EMBEDDINGS], header.data_offset)
    assert 0 <= ids[0] <= ids[-1] < len(embeddings.data), "a token that the draft does not have"
    output = output_tensor(header)
    rows = tensor_at(source, output, header.data_offset)[ids]
    kept = [
        stored(source, t, header.data_offset)
        for t in header.tensors
        if t.name not in (EMBEDDINGS, "output.weight")
    ]
    return write_trimmed(
        path,
        header,
        embeddings,
        ids,
        TensorBytes(EMBEDDINGS, (output.shape[0], len(ids)), output.type, rows),
        kept,
    )


def write_trimmed(
    path: Path,
    header: Header,
    embeddings: TensorBytes,
    ids: np.ndarray,
    output_tokens: TensorBytes,
    others: Sequence[TensorBytes],
) -> Path:
    """Write both files of a trimmed model: `embeddings` of all tokens, output rows for `ids`, and the other tensors.

    Raises OSError.
    """
    digest = hashlib.sha256(embeddings.data.data)
    digest.update(ids.tobytes())
    tie = {TABLE_HASH: text_entry(digest.hexdigest())}
    table = [embeddings, TensorBytes(TOKEN_IDS, (len(ids),), I32, ids)]
    write_gguf(table_path(path), {"general.architecture": text_entry("token-table"), **tie}, table)
    return write_gguf(
        path, {**_entries(header, len(ids)), **tie}, [output_tokens, *others], header.vocabulary
    )


def trimmable(source: Path, count: int) -> Header:
    """The header of a model that can be trimmed to `count` tokens. Raises BadModelFile, BadSetting."""
    header = ModelFile.at(source).header
    architecture = header.architecture
    why = ""
    if is_trimmed(header):
        why = "is trimmed already"
    elif architecture not in SCALES:
        why = f"is of the architecture {architecture}, which localspec cannot trim"
    elif len(parts_of(source)) > 1:
        why = "is in several files"
    elif header.vocabulary is None:
        why = "has no vocabulary"
    if why:
        raise BadModelFile(
            f"{source.name} {why}", hint=f"a draft of {', '.join(SCALES)} in one file can be trimmed"
        )
    whole = header.vocabulary.count if header.vocabulary else 0
    if not LEAST <= count < whole:
        raise BadSetting(
            f"{source.name} has {whole:,} tokens and cannot be trimmed to {count:,}",
            hint=f"say how many it can still write: --trim N, {LEAST} or more and fewer than it has",
        )
    return header


def _entries(header: Header, output_tokens: int) -> dict[str, Entry]:
    """The file's metadata: the source's, without the tokenizer."""
    kept = {key: entry for key, entry in header.entries.items() if key != TOKENS}
    return kept | {
        TOKENIZER: kept["tokenizer.ggml.model"],
        "tokenizer.ggml.model": text_entry("none"),
        f"{header.text('general.architecture')}.vocab_size": Entry(UINT32, output_tokens),
    }


HELD_OUT = 5  # every fifth answer only judges the choice
LENGTH = 1024  # tokens of a prompt and its answer; longer prompts are passed over


@dataclass(frozen=True, slots=True)
class Trimmed:
    """A draft that was trimmed."""

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
    vocabulary = vocabulary_of(ModelFile.at(draft).header)
    assert vocabulary is not None, "trimmable says so"
    seen: list[Answer] = []
    mass = np.zeros(pair.vocabulary.size)
    for answer in answers_of(pair, room, mass):
        seen.append(answer)
        on_answer(sum(len(one.tokens) for one in seen))
    judged = [token for one in seen if one.mass is None for token in one.tokens]
    written = [token for one in seen if one.mass is not None for token in one.tokens]
    ids = needed_tokens(vocabulary, written, mass, count)
    path.parent.mkdir(parents=True, exist_ok=True)
    trim(draft, path, ids)
    return Trimmed(len(ids), vocabulary.count, len(judged), float(np.isin(judged, ids).mean()))


def answers_of(pair: LoadedPair, room: int, mass: np.ndarray) -> Iterator[Answer]:
    """The target's answers to the built-in prompts at temperature 0; `mass` sums up those that are not held out."""
    assert isinstance(pair.target, Context), "only files are fitted to"
    target = pair.target
    asked = (Answer(prompt, mass if i % HELD_OUT else None) for i, prompt in enumerate(prompts(pair)))
    return answers(target.model, asked, room=room, length=LENGTH, threads=target.threads.usual)


def fitted_name(pair: Pair, suffix: str) -> str:
    """The name of a fitted pair."""
    return re.sub(r"[^a-z0-9._+-]+", "-", pair.name.lower()).strip("-._+") + f"-{suffix}"


def fitted_path(name: str) -> Path:
    return fitted_dir() / f"{name}.gguf"


def keep(name: str, pair: Pair, draft: Path, use: str) -> Path:
    """Write the pair of a target and its new draft among the user's pairs; returns its file. Raises OSError."""
    target, drafted = (ModelFile.at(path.absolute()).pinned() for path in (pair.target.here, draft))
    return add_pair(Pair(name, DraftKind.MODEL, target, drafted, use=use, starting_depth=pair.starting_depth))
