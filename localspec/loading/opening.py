"""How drafters that run models are opened: one row of a table for each kind."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from localspec.algorithm.protocols import Drafter
from localspec.drafters.head import ASSISTANT, EAGLE3, MTP, Block, Chain, HeadDrafter, Layout, Steps
from localspec.drafters.model import ModelDrafter
from localspec.drafters.other_vocabulary import OtherVocabularyDrafter
from localspec.gguf.header import Header, header_at
from localspec.gguf.heads import DraftKind, has_markov_chain, prediction_layers, target_layers, trunk_layers
from localspec.gguf.shared_tokens import in_words
from localspec.gguf.trimmed import token_table
from localspec.llama.context import Context
from localspec.llama.head import BlockContext, HeadContext
from localspec.llama.model import Model
from localspec.memory.devices import available_bytes
from localspec.memory.needs import CHECKPOINT_SHARE, Load
from localspec.pairs.compatibility import check
from localspec.sampler.passes import HiddenRows

SAVED_SHARE = 0.25  # of the memory that is left, for texts that other texts take the place of


@dataclass(frozen=True, slots=True)
class Opening:
    """What a drafter is opened with."""

    path: Path | None  # None: it is inside the target's file
    load: Load
    mmap: bool | None
    target: Context
    threads: Callable[[Model], int]
    opened: ExitStack  # closes what is opened


@dataclass(frozen=True, slots=True)
class OpenedDrafter:
    """A drafter, and what its model computes with."""

    drafter: Drafter
    context: Context | HeadContext | BlockContext
    target: Model
    notice: str = ""  # what the user should know about it

    @property
    def name(self) -> str:
        """What drafts."""
        model = self.context.model
        return "its own prediction head" if model is self.target else model.name


def open_drafter(opening: Opening) -> OpenedDrafter:
    """A drafter of the kind that the memory plan names; its target shows what it wants from the next pass on."""
    found = OPENERS[opening.load.kind](opening)
    if found.drafter.hidden_rows_needed:
        opening.target.extract(found.drafter.hidden_rows_needed)
    if isinstance(found.drafter, HeadDrafter):
        opening.target.accompany(found.drafter)
    return found


def open_model(opening: Opening) -> OpenedDrafter:
    """A whole model, of the target's vocabulary or another, or one that is trimmed.

    CUDA replays passes that are equal: two missing tokens take less time one after the other.
    """
    target, model = opening.target.model, model_of(opening)
    shared = check(target.path, model.path)
    context = Context(
        model,
        **opening.load.context,
        threads=opening.threads(model),
        checkpoint_bytes=checkpoint_bytes(model),
        vocabulary=None if shared else target.vocab.size,
        top_k=True,
        table=token_table(model.path, header_at(model.path)),
    )
    opening.opened.enter_context(context)
    if shared:
        other = OtherVocabularyDrafter(context, model.vocab, target.vocab, shared, target.vocab.is_end)
        return OpenedDrafter(
            other, context, target, f"{model.name} has another vocabulary: it drafts {in_words(shared)}"
        )
    drafter = ModelDrafter(context, target.vocab.is_end, one_by_one=device_of(model) == "cuda")
    return OpenedDrafter(drafter, context, target)


def open_head(opening: Opening, layout: Layout) -> OpenedDrafter:
    """A prediction head."""
    target, model, load = opening.target, model_of(opening), opening.load
    header = header_at(model.path)
    wants = wanted_rows(load.kind, header_at(target.model.path), header)
    context = HeadContext(
        model,
        target,
        encodes=load.kind is DraftKind.EAGLE3,
        **load.head_context,
        threads=opening.threads(target.model),
    )
    opening.opened.enter_context(context)
    chained = layout is MTP and prediction_layers(header) > 1
    guesses = Chain(context, prediction_layers(header)) if chained else Steps(context, layout)
    drafter = HeadDrafter(guesses, wants, target.model.vocab.is_end)
    return OpenedDrafter(drafter, context, target.model)


def open_block(opening: Opening) -> OpenedDrafter:
    """A prediction head that guesses a whole block."""
    target, model, load = opening.target, model_of(opening), opening.load
    header = header_at(model.path)
    wants = wanted_rows(load.kind, header_at(target.model.path), header)
    context = BlockContext(
        model,
        target,
        layers=len(wants.layers),
        anchored=has_markov_chain(header),
        **load.head_context,
        threads=opening.threads(target.model),
    )
    opening.opened.enter_context(context)
    drafter = HeadDrafter(Block(context), wants, target.model.vocab.is_end)
    return OpenedDrafter(drafter, context, target.model)


OPENERS: Mapping[DraftKind, Callable[[Opening], OpenedDrafter]] = {
    DraftKind.MODEL: open_model,
    DraftKind.EAGLE3: partial(open_head, layout=EAGLE3),
    DraftKind.MTP: partial(open_head, layout=MTP),
    DraftKind.ASSISTANT: partial(open_head, layout=ASSISTANT),
    DraftKind.DFLASH: open_block,
}


def model_of(opening: Opening) -> Model:
    if opening.path is None:
        return opening.target.model
    return opening.opened.enter_context(Model(opening.path, **opening.load.place, mmap=opening.mmap))


def wanted_rows(kind: DraftKind, target: Header, head: Header) -> HiddenRows:
    """What a head reads of its target."""
    if kind not in (DraftKind.EAGLE3, DraftKind.DFLASH):
        return HiddenRows(output=True)
    layers, last = target_layers(head), trunk_layers(target)
    return HiddenRows(tuple(layer for layer in layers if layer < last), output=last in layers)


def checkpoint_bytes(model: Model) -> int:
    """What the checkpoints of a model may take, the oldest being dropped first."""
    return int(CHECKPOINT_SHARE * model.size_bytes)


def saved_bytes(model: Model) -> int:
    """What the texts may take that a target held before: a share of what the computer has left beside its weights."""
    return int(SAVED_SHARE * max(0, (available_bytes() or 0) - model.size_bytes))


def device_of(model: Model) -> str:
    """What decides the cost of a batch: the backend that computes the model, in lower case."""
    return model.gpu.backend.lower() if model.gpu else "cpu"
