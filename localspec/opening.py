"""How drafters that run models are opened: one row of a table for each kind."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from localspec.algorithm.protocols import Drafter
from localspec.drafters.model import ModelDrafter
from localspec.drafters.other_vocabulary import OtherVocabularyDrafter
from localspec.gguf.facts import header_at
from localspec.gguf.heads import DraftKind
from localspec.gguf.shared_tokens import in_words
from localspec.gguf.trimmed import token_table
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.memory.needs import CHECKPOINT_SHARE, Load
from localspec.pairs.compatibility import check


@dataclass(frozen=True, slots=True)
class Opening:
    """What a drafter is opened with."""

    path: Path
    load: Load
    mmap: bool | None
    target: Context
    threads: Callable[[Model], int]
    opened: ExitStack  # closes what is opened


@dataclass(frozen=True, slots=True)
class OpenedDrafter:
    """A drafter, and what its model computes with."""

    drafter: Drafter
    context: Context
    notice: str = ""  # what the user should know about it

    @property
    def name(self) -> str:
        return self.context.model.name


def open_drafter(kind: DraftKind, opening: Opening) -> OpenedDrafter:
    return OPENERS[kind](opening)


def open_model(opening: Opening) -> OpenedDrafter:
    """A whole model, of the target's vocabulary or another, or one that is trimmed.

    CUDA replays passes that are equal: two missing tokens take less time one after the other.
    """
    target, path = opening.target.model, opening.path
    shared = check(target.path, path)
    model = opening.opened.enter_context(Model(path, **opening.load.place, mmap=opening.mmap))
    context = Context(
        model,
        **opening.load.context,
        threads=opening.threads(model),
        checkpoint_bytes=checkpoint_bytes(model),
        vocabulary=None if shared else target.vocab.size,
        top_k=True,
        table=token_table(path, header_at(path)),
    )
    opening.opened.enter_context(context)
    if shared:
        other = OtherVocabularyDrafter(context, model.vocab, target.vocab, shared, target.vocab.is_end)
        return OpenedDrafter(
            other, context, f"{model.name} has another vocabulary: it drafts {in_words(shared)}"
        )
    drafter = ModelDrafter(context, target.vocab.is_end, one_by_one=device_of(model) == "cuda")
    return OpenedDrafter(drafter, context)


OPENERS: Mapping[DraftKind, Callable[[Opening], OpenedDrafter]] = {
    DraftKind.MODEL: open_model,
}


def checkpoint_bytes(model: Model) -> int:
    """What the checkpoints of a model may take, the oldest being dropped first."""
    return int(CHECKPOINT_SHARE * model.size_bytes)


def device_of(model: Model) -> str:
    """What decides the cost of a batch: the backend that computes the model, in lower case."""
    return model.gpu.backend.lower() if model.gpu else "cpu"
