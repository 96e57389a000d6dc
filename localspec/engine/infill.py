"""The prompt for text in the middle, in the form that the model's own tokens ask for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from localspec.algorithm.protocols import Vocabulary
from localspec.engine.messages import Infill
from localspec.errors import LocalspecError

_MARKS: Final = (  # before a beginning, an end and a middle, in the vocabularies of several families
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
)
_FILES: Final = ("<|file_sep|>", "<file_sep>")  # before the name of a file


class NoInfill(LocalspecError):
    """The model was not trained to write text in the middle."""


@dataclass(frozen=True, slots=True)
class Shares:
    """How many tokens of each part are kept: of files and beginning the newest, of the end the first."""

    files: int
    before: int
    after: int


def prompt_of(infill: Infill, vocabulary: Vocabulary, target: str, room: int) -> list[int]:
    """The tokens, `room` of them at most. Raises NoInfill."""
    known = vocabulary.control_texts()
    names = next((names for names in _MARKS if all(name in known for name in names)), None)
    if names is None:
        raise NoInfill(f"{target} has no tokens for text in the middle", hint="ask a model of code")
    files = file_tokens(infill.files, vocabulary, known)
    before = vocabulary.tokenize(infill.before, parse_special=False)
    after = vocabulary.tokenize(infill.after, parse_special=False)
    begun = vocabulary.tokenize(infill.begun, parse_special=False)
    bos = [vocabulary.bos] if vocabulary.add_bos and vocabulary.bos is not None else []
    kept = shares(len(files), len(before), len(after), room - len(bos) - len(names) - len(begun))
    prefix, suffix, middle = (known[name] for name in names)
    return [
        *bos,
        *files[len(files) - kept.files :],
        prefix,
        *before[len(before) - kept.before :],
        suffix,
        *after[: kept.after],
        middle,
        *begun,
    ]


def file_tokens(
    files: tuple[tuple[str, str], ...], vocabulary: Vocabulary, known: Mapping[str, int]
) -> list[int]:
    """Other files, each after its name, and after the model's own mark where it has one."""
    mark = [known[name] for name in _FILES if name in known][:1]
    found: list[int] = []
    for name, text in files:
        found += mark + vocabulary.tokenize(f"{name}\n{text}\n", parse_special=False)
    return found


def shares(files: int, before: int, after: int, room: int) -> Shares:
    """The text around the hole goes first, three parts of its beginning to one of its end, then other files."""
    room = max(room, 0)
    few_after = min(after, max(room // 4, room - before))
    few_before = min(before, room - few_after)
    return Shares(min(files, room - few_before - few_after), few_before, few_after)
