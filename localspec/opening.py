"""How drafters that run models are opened: one row of a table for each kind."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from localspec.algorithm.protocols import Drafter
from localspec.drafters.model import ModelDrafter
from localspec.gguf.heads import DraftKind
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.memory.needs import CHECKPOINT_SHARE, Load


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

    @property
    def name(self) -> str:
        return self.context.model.name


def open_drafter(kind: DraftKind, opening: Opening) -> OpenedDrafter:
    return OPENERS[kind](opening)


def open_model(opening: Opening) -> OpenedDrafter:
    """A whole model. CUDA replays passes that are equal: two missing tokens take less time one after the other."""
    target = opening.target.model
    model = opening.opened.enter_context(Model(opening.path, **opening.load.place, mmap=opening.mmap))
    context = Context(
        model,
        **opening.load.context,
        threads=opening.threads(model),
        checkpoint_bytes=checkpoint_bytes(model),
        vocabulary=target.vocab.size,
        top_k=True,
    )
    opening.opened.enter_context(context)
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
