"""Loads a pair of this machine: checks, plans, loads, and closes it in order."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from localspec import demo
from localspec.algorithm.protocols import Drafter
from localspec.chat.loaded_pair import Lane, Lanes, LoadedPair
from localspec.chat.template import template_of
from localspec.display import size_text
from localspec.drafters.head import ASSISTANT, EAGLE3, MTP, Block, Chain, HeadDrafter, Layout, Steps
from localspec.drafters.model import ModelDrafter
from localspec.drafters.other_vocabulary import OtherVocabularyDrafter
from localspec.errors import RollbackUnsupported
from localspec.gguf.facts import (
    DraftKind,
    has_markov_chain,
    prediction_layers,
    target_layers,
    trunk_layers,
)
from localspec.gguf.header import Header
from localspec.gguf.matching import SharedTokens, in_words
from localspec.gguf.trimmed import token_table
from localspec.health.check import ensure_gpu, untold_gpu_note, untold_note
from localspec.health.devices import Device, available_bytes
from localspec.health.servers import use_servers, used_servers
from localspec.llama.context import Context
from localspec.llama.devices import add_servers, default_gpu, devices
from localspec.llama.head import BlockContext, HeadContext
from localspec.llama.lane import Lane as Decoding
from localspec.llama.model import Model
from localspec.llama.threads import MOST_THREADS, default_threads, give_way
from localspec.models.drafting import Drafting, guess_for, lessons_file, warm_up
from localspec.models.memory import CHECKPOINT_SHARE, HOST, WIDEST_BATCH, Load, MemoryWishes
from localspec.models.plan import Plan
from localspec.models.probe import plan_for
from localspec.models.registry import Pair
from localspec.models.stored import stored_texts
from localspec.sampler.passes import HiddenRows
from localspec.sampler.sampling import Sampling

SMALL_BYTES = (
    32_000_000  # weights; the demo's 4 MB decode faster on one core than on two, even on an idle machine
)
MOST_BESIDE_GPU = 4  # threads
SAVED_SHARE = 0.25  # of the memory left beside the target's weights, for texts that others replace

PLAIN_NOTICE = "{} is recurrent: its state cannot step back, so nothing is drafted from the text"
DEMO_NOTICE = (
    "this is the small demo pair: it answers most questions with nonsense, and its speed says nothing about real "
    "pairs. `localspec pairs` lists real pairs, `localspec pull NAME` fetches one"
)


def plan_pair(
    pair: Pair, wishes: MemoryWishes, rpc: str = "", on_stage: Callable[[str], object] = lambda stage: None
) -> Plan:
    """The plan of a pair, after checks of servers, devices and headers.

    `rpc`: servers, "" for none. Raises BadSetting, BackendFailure, BadModelFile, IncompatiblePair, NotEnoughMemory.
    """
    if rpc:
        connect(rpc, on_stage)
    there = devices()
    default = default_gpu() if not wishes.devices and wishes.gpu_layers != 0 else None
    asked = [*wishes.devices, wishes.draft_device, default.name if default else None]
    wishes = heed_gpus(there, asked, wishes, on_stage)
    on_stage(f"checking {pair.target.name}")
    shared = pair.check()
    found = plan_for(pair, wishes, there)
    while (heeded := heed_gpus(there, gpus_of(found), wishes, on_stage)) != wishes:
        wishes = heeded
        found = plan_for(pair, wishes, there)
    return replace(found, shared=shared)


def load_pair(
    pair: Pair,
    plan: Plan,
    options: Mapping[str, Any],
    *,
    spare_cores: int = 0,
    speculate: bool = True,
    on_stage: Callable[[str], object] = lambda stage: None,
    owner: str = "",
) -> LoadedPair:
    """Load a pair as planned, for an owner of caches on disk; a failing step closes all earlier ones."""
    threads_of = partial(threads_for, wanted=options.get("threads"), spare_cores=spare_cores)
    with ExitStack() as opened:
        on_stage(f"loading the target, {pair.target.name} ({size_text(pair.target.all_bytes)})")
        target = open_target(pair, plan, options.get("mmap"), threads_of, opened)
        found: Sequence[Opened] = ()  # one for each lane, or none
        if plan.draft:
            file = pair.draft or pair.target
            on_stage(f"loading the draft, {file.name} ({size_text(file.all_bytes)})")
            mmap, shared = options.get("mmap"), plan.shared
            found = open_drafters(Opening(pair, plan.draft, shared, mmap, target, threads_of, opened))
        model = target.model
        contexts = [*target.lanes, *(each.context for each in found)]
        health_notes = untold_notes((each.model for each in contexts), options.get("flash_attn", "auto"))
        sampling, unsupported = Sampling.from_metadata(model.metadata)
        template, template_notices = template_of(model.chat_template, model.vocab)
        if options.get("threads") is None:  # what was asked for is kept
            give_way([context.threads for context in contexts if not context.model.gpu])
        drafting = drafting_of(pair, plan, target, found[:1])
        on_stage(f"warming up{where_of(plan)}")
        warm_up(target, [each.drafter for each in found], drafting)
        disk = stored_texts(pair, plan.target, target, options, owner)
        lanes = Lanes(lanes_of(target, found, drafting), stores=bool(disk))
        opened.enter_context(closing(lanes))
        on_stage(f"running{where_of(plan)}")
        return LoadedPair(
            name=pair.name,
            target_name=model.name,
            draft_name=next((each.name for each in found), ""),
            lanes=lanes,
            rollback_limit=target.rollback_limit,
            widest_batch=WIDEST_BATCH,
            vocabulary=model.vocab,
            template=template,
            sampling=sampling,
            notices=(
                *([DEMO_NOTICE] if is_demo(pair) else []),
                *filter(None, health_notes),
                *plan.lines,
                *(each.notice for each in found[:1] if each.notice),
                *([PLAIN_NOTICE.format(model.name)] if speculate and target.rollback_limit == 0 else []),
                *unsupported,
                *template_notices,
            ),
            is_toy=is_demo(pair),
            close=opened.pop_all().close,
        )


def lanes_of(target: Context, found: Sequence["Opened"], first: Drafting) -> Iterator[Lane]:
    """The lanes of a target, each with its drafter if there are any, and with drafting that begins as the first."""
    for number, lane in enumerate(target.lanes):
        own = found[number : number + 1]
        drafters, threads = [each.drafter for each in own], [each.context.threads for each in own]
        drafting = first if not number else first.beside(drafters, target, [lane.threads, *threads])
        yield Lane(lane, drafters, drafting, lane.running)


def gpus_of(plan: Plan) -> tuple[str, ...]:
    """The devices of both models, where these are not the CPU alone."""
    loads = [load for load in (plan.target, plan.draft) if load and load.gpu_layers != 0]
    return tuple(dict.fromkeys(name for load in loads for name in load.devices or () if name != HOST))


def where_of(plan: Plan) -> str:
    """The GPUs in the words of a stage; "" for the CPU."""
    return f" on {' and '.join(gpus_of(plan))}" if gpus_of(plan) else ""


def connect(rpc: str, on_stage: Callable[[str], object] = lambda stage: None) -> None:
    """Add the devices of RPC servers, all of them or none. Raises BadSetting, BackendFailure."""
    on_stage("asking the RPC servers")
    use_servers(rpc)
    add_servers(used_servers())


def heed_gpus(
    there: Iterable[Device],
    used: Iterable[str | None],
    wishes: MemoryWishes,
    on_stage: Callable[[str], object],
) -> MemoryWishes:
    """The wishes, without flash attention where it crashes a GPU's driver.

    Refuses a GPU that does not work. Raises BackendFailure, NotEnoughMemory.
    """
    names, dying = {name.lower() for name in used if name}, set(wishes.no_flash)
    for device in there:
        if device.is_gpu and device.name.lower() in names:
            trying = partial(on_stage, f"trying {device.name} for the first time: this can take a minute")
            found = ensure_gpu(device.name, device.description, wishes.flash_attn, wishes.kv_type, trying)
            if found.died_of:
                dying.add(device.name)
    return replace(wishes, no_flash=tuple(sorted(dying)))


def untold_notes(models: Iterable[Model], flash_attn: str) -> list[str]:
    """New notices about the build and these models' GPUs."""
    gpus = dict.fromkeys(gpu for model in models for gpu in model.gpus if flash_attn != "off")
    return [untold_note(), *(untold_gpu_note(gpu.name, gpu.description) for gpu in gpus)]


def is_demo(pair: Pair) -> bool:
    """Whether these are the embedded files."""
    embedded = {demo.target_path(), demo.draft_path()}
    return not pair.lora and {file.path for file in pair.files} <= embedded


def drafting_of(pair: Pair, plan: Plan, target: Context, found: Sequence["Opened"]) -> Drafting:
    device, limit = device_of(target.model), target.rollback_limit
    # A run costs about its bytes of weights; a mixture reads few of them.
    models = [each for each in found if not (each.drafter.hidden_rows_needed or target.model.expert_count)]
    size = target.model.size_bytes
    shares = {str(each.drafter.source): each.context.model.size_bytes / size for each in models}
    return Drafting(
        [each.drafter for each in found],
        guess_for(device, shares),
        most=WIDEST_BATCH - 1 if limit is None else min(WIDEST_BATCH - 1, limit),
        # Rows that fill a batch have to be taken back, and would ask a mixture for experts of their own.
        pads=device != "cpu" and target.model.can_roll_back and target.model.expert_count == 0,
        target=target,
        threads=[target.threads, *(each.context.threads for each in found)],
        starting_depth=pair.starting_depth,
        stored=lessons_file(pair, plan, target.threads.usual),
    )


def threads_for(model: Model, wanted: int | None, spare_cores: int) -> int:
    """The wanted threads.

    Otherwise one for a tiny model, all cores but the spare ones for others, and few if the GPU does all but embeddings.
    """
    if wanted or model.size_bytes < SMALL_BYTES:
        return wanted or 1
    return min(max(1, default_threads() - spare_cores), MOST_BESIDE_GPU if model.all_on_gpu else MOST_THREADS)


def open_target(
    pair: Pair, plan: Plan, mmap: bool | None, threads: Callable[[Model], int], opened: ExitStack
) -> Context:
    model = opened.enter_context(Model(pair.target.here, **plan.target.place, mmap=mmap, lora=pair.lora))
    context = Context(
        model,
        **plan.target.context,
        threads=threads(model),
        checkpoint_bytes=int(CHECKPOINT_SHARE * model.size_bytes),
        saved_bytes=room_for_texts(model),
    )
    if plan.draft and context.rollback_limit == 0:
        raise RollbackUnsupported(
            f"{model.name} is recurrent: its state cannot step back to reject drafts",
            hint="run it without a draft model: --no-draft",
        )
    return context


def room_for_texts(model: Model) -> int:
    """Bytes of the computer's memory for texts that are in no cache, or on the way from one lane to another."""
    return int(SAVED_SHARE * max(0, (available_bytes() or 0) - model.size_bytes))


@dataclass(frozen=True, slots=True)
class Opening:
    """The arguments for opening a drafter."""

    pair: Pair
    load: Load
    shared: SharedTokens | None
    mmap: bool | None
    target: Context
    threads: Callable[[Model], int]
    opened: ExitStack  # closes all opened resources

    @property
    def header(self) -> Header:
        return (self.pair.draft or self.pair.target).header

    def model(self) -> Model:
        """The draft's, or the target's where the head is inside it."""
        if self.pair.draft is None:
            return self.target.model
        path = self.pair.draft.here
        return self.opened.enter_context(Model(path, **self.load.place, mmap=self.mmap))

    def hidden_rows(self) -> HiddenRows:
        """The hidden rows that a head reads of its target."""
        if self.load.kind not in (DraftKind.EAGLE3, DraftKind.DFLASH):
            return HiddenRows(output=True)
        layers, last = target_layers(self.header), trunk_layers(self.pair.target.header)
        return HiddenRows(tuple(layer for layer in layers if layer < last), output=last in layers)


@dataclass(frozen=True, slots=True)
class Opened:
    """A drafter, and its model's resources."""

    drafter: Drafter
    context: Decoding | HeadContext | BlockContext
    name: str  # of what drafts
    notice: str = ""  # notices about it


def open_drafters(opening: Opening) -> Sequence[Opened]:
    """A drafter of the plan's kind for each lane; the target gives its hidden rows from the next pass on."""
    found = OPENERS[opening.load.kind](opening)
    if found[0].drafter.hidden_rows_needed:
        opening.target.extract(found[0].drafter.hidden_rows_needed)
    for lane, each in zip(opening.target.lanes, found, strict=True):
        if isinstance(each.drafter, HeadDrafter):
            lane.companion = each.drafter
    return found


def open_model(opening: Opening) -> Sequence[Opened]:
    """A whole model, of the target's vocabulary or another, or one that is trimmed.

    CUDA replays passes that are equal: two missing tokens take less time one after the other.
    """
    vocab, model, shared = opening.target.model.vocab, opening.model(), opening.shared
    context = Context(
        model,
        **opening.load.context,
        threads=opening.threads(model),
        checkpoint_bytes=int(CHECKPOINT_SHARE * model.size_bytes),
        saved_bytes=room_for_texts(model),
        vocabulary=None if shared else vocab.size,
        top_k=True,
        table=token_table(model.path, opening.header),
    )
    opening.opened.enter_context(context)
    notice = f"{model.name} has another vocabulary: it drafts {in_words(shared)}" if shared else ""
    found = []
    for lane in context.lanes:
        drafter = (
            OtherVocabularyDrafter(lane, model.vocab, vocab, shared, vocab.is_end)
            if shared
            else ModelDrafter(lane, vocab.is_end, one_by_one=device_of(model) == "cuda")
        )
        if len(context.lanes) > 1:
            drafter.drafting = lane.running
        found.append(Opened(drafter, lane, model.name, notice))
    return found


def open_head(opening: Opening, layout: Layout | None) -> Sequence[Opened]:
    """A prediction head, with a cache for each lane; without a layout one that guesses a whole block."""
    model = opening.model()
    name = "its own prediction head" if model is opening.target.model else model.name
    found = []
    for lane in opening.target.lanes:
        drafter, context = head_of(opening, model, lane, layout)
        opening.opened.enter_context(context)
        found.append(Opened(drafter, context, name))
    return found


def head_of(
    opening: Opening, model: Model, target: Decoding, layout: Layout | None
) -> tuple[Drafter, HeadContext | BlockContext]:
    """The head of one lane, and its cache."""
    header, wants, common = opening.header, opening.hidden_rows(), opening.load.head_context
    common |= {"threads": opening.threads(target.model)}
    is_end = target.model.vocab.is_end
    if layout is None:
        anchored = has_markov_chain(header)
        block = BlockContext(model, target, layers=len(wants.layers), anchored=anchored, **common)
        return Block(block, wants, is_end), block
    context = HeadContext(model, target, encodes=opening.load.kind is DraftKind.EAGLE3, **common)
    if layout is MTP and (layers := prediction_layers(header)) > 1:
        return Chain(context, wants, is_end, layers), context
    return Steps(context, wants, is_end, layout), context


OPENERS: Mapping[DraftKind, Callable[[Opening], Sequence[Opened]]] = {
    DraftKind.MODEL: open_model,
    DraftKind.EAGLE3: partial(open_head, layout=EAGLE3),
    DraftKind.MTP: partial(open_head, layout=MTP),
    DraftKind.ASSISTANT: partial(open_head, layout=ASSISTANT),
    DraftKind.DFLASH: partial(open_head, layout=None),
}


def device_of(model: Model) -> str:
    """The backend that computes the model, in lower case; the cost of a batch depends on it."""
    return model.gpu.backend.lower() if model.gpu else "cpu"
