"""Open the models of a pair: the target, and for each slot a draft model or a prediction head."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from localspec.algorithm.protocols import Drafter
from localspec.drafters.head import (
    ASSISTANT,
    EAGLE3,
    MTP,
    BlockDrafter,
    ChainDrafter,
    HeadDrafter,
    Layout,
    Steps,
)
from localspec.drafters.model import ModelDrafter, OtherVocabularyDrafter
from localspec.errors import RollbackUnsupported
from localspec.gguf.facts import DraftKind, has_markov_chain, prediction_layers, target_layers, trunk_layers
from localspec.gguf.header import Header
from localspec.gguf.matching import SharedTokens, in_words
from localspec.gguf.trimmed import token_table
from localspec.llama.context import Context, SlotDecoder
from localspec.llama.head import BlockContext, HeadContext
from localspec.llama.images import Projector
from localspec.llama.load import CHECKPOINT_SHARE, Load
from localspec.llama.model import Model
from localspec.llama.threads import MOST_THREADS, SMALL_BYTES, default_threads
from localspec.loading.plan import Plan
from localspec.machine.devices import available_bytes
from localspec.models.local_models import identity
from localspec.models.registry import Pair
from localspec.sampler.passes import HiddenRows


def threads_for(model: Model, wanted: int | None, spare_cores: int) -> int:
    """Return the number of CPU threads: `wanted`, or by default a number for the model's size and device."""
    if wanted or model.size_bytes < SMALL_BYTES:
        return wanted or 1
    return min(max(1, default_threads() - spare_cores), 4 if model.all_on_gpu else MOST_THREADS)


def open_target(
    pair: Pair, plan: Plan, mmap: bool | None, threads: Callable[[Model], int], opened: ExitStack
) -> tuple[Context, Projector | None]:
    model = opened.enter_context(Model(pair.target.here, **plan.target.place, mmap=mmap, lora=pair.lora))
    projector, rows = None, 0
    if path := plan.projector:
        projector = opened.enter_context(Projector(path, model, identity(path), threads=threads(model)))
        rows = projector.most_rows
    context = Context(
        model,
        plan.target,
        image_rows=rows,
        threads=threads(model),
        checkpoint_bytes=int(CHECKPOINT_SHARE * model.size_bytes),
        saved_bytes=memory_for_texts(model),
    )
    if plan.draft and context.rollback_limit == 0:
        raise RollbackUnsupported(
            f"{model.name} cannot remove rejected draft tokens, because it is recurrent",
            hint="run it without a draft model: --no-draft",
        )
    return context, projector


def memory_for_texts(model: Model) -> int:
    """Return the memory for prompt caches: a quarter of the main memory that is free beside the weights."""
    return max(0, (available_bytes() or 0) - model.size_bytes) // 4


@dataclass(frozen=True, slots=True)
class Opening:
    pair: Pair
    load: Load
    shared: SharedTokens | None
    mmap: bool | None
    target: Context
    threads: Callable[[Model], int]
    opened: ExitStack  # closes all models and contexts if the load fails

    @property
    def header(self) -> Header:
        return (self.pair.draft or self.pair.target).header

    def model(self) -> Model:
        """Open and return the draft's model; for a head inside the target, return the target's model."""
        if self.pair.draft is None:
            return self.target.model
        path = self.pair.draft.here
        return self.opened.enter_context(Model(path, **self.load.place, mmap=self.mmap))


@dataclass(frozen=True, slots=True)
class Opened:
    drafter: Drafter
    context: SlotDecoder | HeadContext | BlockContext
    name: str
    notice: str = ""


def open_model(opening: Opening) -> Sequence[Opened]:
    vocab, model, shared = opening.target.model.vocab, opening.model(), opening.shared
    context = Context(
        model,
        opening.load,
        batcher=opening.target.shared.batcher,
        threads=opening.threads(model),
        checkpoint_bytes=int(CHECKPOINT_SHARE * model.size_bytes),
        saved_bytes=memory_for_texts(model),
        vocabulary=None if shared else vocab.size,
        top_k=True,
        table=token_table(model.path, opening.header),
    )
    opening.opened.enter_context(context)
    notice = f"{model.name} has another vocabulary: it drafts {in_words(shared)}" if shared else ""
    opened = []
    for slot in context.slots:
        drafter = ModelDrafter(slot, vocab.is_end)
        if shared:
            drafter = OtherVocabularyDrafter(slot, model.vocab, vocab, shared, vocab.is_end)
        opened.append(Opened(drafter, slot, model.name, notice))
    return opened


def open_head(opening: Opening, layout: Layout | None) -> Sequence[Opened]:
    """Open a prediction head for each slot. `layout` is None for a DFlash head."""
    target, model, header, kind = opening.target, opening.model(), opening.header, opening.pair.drafter
    wants = HiddenRows(output=True)  # the target's hidden rows that the head reads
    if kind in (DraftKind.EAGLE3, DraftKind.DFLASH):
        read, last = target_layers(header), trunk_layers(opening.pair.target.header)
        wants = HiddenRows(tuple(layer for layer in read if layer < last), output=last in read)
    name = "its own prediction head" if model is target.model else model.name
    load = replace(opening.load, threads=opening.threads(target.model))
    is_end, layers = target.model.vocab.is_end, prediction_layers(header)
    head: HeadContext | BlockContext
    if layout is None:
        head = BlockContext(model, target, load, layers=len(wants.layers), anchored=has_markov_chain(header))
    else:
        head = HeadContext(model, target, load, encodes=kind is DraftKind.EAGLE3)
    opening.opened.enter_context(head)
    opened = []
    for slot in target.slots:
        drafter: HeadDrafter
        if isinstance(context := head.on(slot.sequence), BlockContext):
            drafter = BlockDrafter(context, wants, is_end)
        elif layout is MTP and layers > 1:
            drafter = ChainDrafter(context, wants, is_end, layers)
        else:
            drafter = Steps(context, wants, is_end, layout or MTP)
            context.shift = context.shift if drafter.keeps else slot.text_shift
        slot.head_state = drafter
        opened.append(Opened(drafter, context, name))
    target.extract(wants)
    return opened


OPENERS: Mapping[DraftKind, Callable[[Opening], Sequence[Opened]]] = {
    DraftKind.MODEL: open_model,
    DraftKind.EAGLE3: partial(open_head, layout=EAGLE3),
    DraftKind.MTP: partial(open_head, layout=MTP),
    DraftKind.ASSISTANT: partial(open_head, layout=ASSISTANT),
    DraftKind.DFLASH: partial(open_head, layout=None),
}
