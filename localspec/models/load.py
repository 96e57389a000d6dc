"""From files to a running pair: checks, memory plan, models, contexts, drafting; closed again in order."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from localspec import demo
from localspec.algorithm.protocols import Drafter
from localspec.chat.loaded_pair import LoadedPair
from localspec.chat.logits import LogitLog
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
    refuse_hazards,
    target_layers,
    trunk_layers,
)
from localspec.gguf.header import Header, header_at, parts_of
from localspec.gguf.matching import check, check_adapter, in_words, refuse_head_alone
from localspec.gguf.trimmed import token_table
from localspec.health.check import untold_note
from localspec.health.gpu import ensure_gpu
from localspec.health.gpu import untold_note as untold_gpu_note
from localspec.health.servers import use_servers, used_servers
from localspec.llama.context import Context
from localspec.llama.devices import Device, add_servers, default_gpu, devices
from localspec.llama.head import BlockContext, HeadContext
from localspec.llama.model import Model
from localspec.llama.threads import MOST_THREADS, default_threads, give_way
from localspec.models.devices import DeviceMemory, available_bytes
from localspec.models.drafting import PairDrafting, lessons_key, logit_folder, warm_up
from localspec.models.find import PairFiles
from localspec.models.needs import CHECKPOINT_SHARE, HOST, Load, MemoryWishes
from localspec.models.plan import Plan, plan_for_files
from localspec.models.registry import PairKind
from localspec.sampler.passes import HiddenRows
from localspec.sampler.sampling import Sampling

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


WIDEST_BATCH = 33  # tokens in a verify batch: the newest token and at most 32 draft tokens
SMALL_BYTES = (
    32_000_000  # weights; the demo's 4 MB decode faster on one core than on two, even on an idle machine
)
MOST_BESIDE_GPU = 4  # threads

DEMO_NOTICE = (
    "this is the embedded demonstration pair, too small to gain much: it always drafts, to show how. "
    "`localspec pairs` lists real ones, `localspec pull NAME` fetches one"
)


def open_engine(
    files: PairFiles,
    wishes: MemoryWishes,
    *,
    rpc: str,
    mmap: bool | None,
    threads: int | None,
    spare_cores: int,
    speculate: bool,
    remember_logits: bool,
    on_stage: Callable[[str], object],
) -> LoadedPair:
    """Load a pair; what was opened is closed again when a later step fails. `rpc`: servers, "" for none."""
    threads_of = partial(threads_for, wanted=threads, spare_cores=spare_cores)
    plan = checked_plan(files, wishes, rpc, on_stage)
    with ExitStack() as opened:
        on_stage(f"loading the target, {_sized(files.target)}")
        target = opened.enter_context(open_target(files, plan, mmap, threads_of, opened))
        found: list[OpenedDrafter] = []
        if plan.draft:
            on_stage(f"loading the draft, {_sized(files.draft or files.target)}")
            found.append(open_drafter(Opening(files.draft, plan.draft, mmap, target, threads_of, opened)))
        model = target.model
        health_notes = untold_notes([model, *(each.context.model for each in found)], wishes.flash_attn)
        sampling, unsupported = Sampling.from_metadata(model.metadata)
        template, template_notices = template_of(model.chat_template, model.vocab)
        if threads is None:  # what was asked for is kept
            contexts = [target, *(each.context for each in found)]
            give_way([context.threads for context in contexts if not context.model.gpu])
        drafting = drafting_of(files, plan, target, found)
        on_stage(f"warming up{where_of(plan)}")
        drafters = tuple(each.drafter for each in found)
        warm_up(target, drafters, drafting)
        on_stage(f"running{where_of(plan)}")
        return LoadedPair(
            name=files.name,
            target_name=model.name,
            draft_name=found[0].name if found else "",
            target=target,
            drafters=drafters,
            rollback_limit=target.rollback_limit,
            widest_batch=WIDEST_BATCH,
            vocabulary=model.vocab,
            template=template,
            sampling=sampling,
            expected_acceptance=files.acceptance,
            notices=(
                *filter(None, (DEMO_NOTICE if is_demo(files) else "", *health_notes)),
                *plan.lines,
                *(each.notice for each in found if each.notice),
                *([why_plain(model)] if speculate and target.rollback_limit == 0 else []),
                *unsupported,
                *template_notices,
            ),
            drafting=drafting,
            log=opened.enter_context(LogitLog(logit_folder(files))) if remember_logits else None,
            close=opened.pop_all().close,
        )


def _sized(path: Path) -> str:
    return f"{path.name} ({size_text(sum(part.stat().st_size for part in parts_of(path)))})"


def checked_plan(files: PairFiles, wishes: MemoryWishes, rpc: str, on_stage: Callable[[str], object]) -> Plan:
    """How to load the pair, once servers and devices have shown that they work and headers that they fit."""
    if rpc:
        connect(rpc, on_stage)
    there = devices()
    default = default_gpu() if not wishes.devices and wishes.gpu_layers != 0 else None
    asked = [*wishes.devices, wishes.draft_device, default.name if default else None]
    wishes = heed_gpus(there, asked, wishes, on_stage)
    on_stage(f"checking {files.target.name}")
    if not is_demo(files):
        check_headers(files, wishes)
    if files.kind is PairKind.LOOKUP:
        wishes = replace(wishes, draft=False)
    plan = plan_for_files(files.target, files.draft, wishes, memory_of(there), files.lora)
    while (heeded := heed_gpus(there, gpus_of(plan), wishes, on_stage)) != wishes:
        wishes = heeded
        plan = plan_for_files(files.target, files.draft, wishes, memory_of(there), files.lora)
    return plan


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
    """The wishes without flash attention where it kills a GPU's driver.

    Refuses a GPU that does not work before a file is blamed. Raises BackendFailure, NotEnoughMemory.
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
    """What the user should know about the build and these models' GPUs, and has not read yet."""
    gpus = dict.fromkeys(gpu for model in models for gpu in model.gpus if flash_attn != "off")
    return [untold_note(), *(untold_gpu_note(gpu.name, gpu.description) for gpu in gpus)]


def is_demo(files: PairFiles) -> bool:
    """Whether these are the embedded files, which need no check of their own."""
    return not files.lora and {files.target, files.draft} <= {demo.target_path(), demo.draft_path(), None}


def check_headers(files: PairFiles, wishes: MemoryWishes) -> None:
    """Refuse what cannot work before anything is loaded: impossible files, pairs and adapters that do not match."""
    refuse_hazards(files.target)
    refuse_head_alone(header_at(files.target), files.target.name)
    for path, _ in files.lora:
        check_adapter(path, header_at(files.target))
    if files.draft is not None and wishes.draft:
        refuse_hazards(files.draft)
        check(files.target, files.draft)


def why_plain(model: Model) -> str:
    """The notice for a recurrent target without copies of its state in llama.cpp."""
    return f"{model.name} is recurrent: its state cannot step back, so nothing is drafted from the text"


def memory_of(listed: Iterable[Device]) -> tuple[DeviceMemory, ...]:
    """Devices as the memory plan knows them."""
    return tuple(
        DeviceMemory(device.name, device.kind, device.free_bytes, device.total_bytes, device.shares_memory)
        for device in listed
    )


def drafting_of(
    files: PairFiles, plan: Plan, target: Context, found: Sequence[OpenedDrafter]
) -> PairDrafting:
    return PairDrafting(
        target,
        [each.drafter for each in found],
        threads=[each.context.threads for each in found],
        run_shares=run_shares(target.model, found),
        starting_depth=files.starting_depth,
        deepest=WIDEST_BATCH - 1,
        device=device_of(target.model),
        key=lessons_key(files, plan, target.threads.usual),
    )


def run_shares(target: Model, found: Sequence[OpenedDrafter]) -> dict[str, float]:
    """What a run of each draft model takes of a plain step, if all their weights are read; of a mixture's few are."""
    models = [each for each in found if each.drafter.hidden_rows_needed is None and not target.expert_count]
    return {str(each.drafter.source): each.context.model.size_bytes / target.size_bytes for each in models}


def threads_for(model: Model, wanted: int | None, spare_cores: int) -> int:
    """As many as are wanted; else one for a model so small that its threads would mostly wait for each other.

    For others all cores but those to spare, and few where the GPU does all but looking up embeddings.
    """
    if wanted or model.size_bytes < SMALL_BYTES:
        return wanted or 1
    return min(max(1, default_threads() - spare_cores), MOST_BESIDE_GPU if model.all_on_gpu else MOST_THREADS)


def open_target(
    files: PairFiles, plan: Plan, mmap: bool | None, threads: Callable[[Model], int], opened: ExitStack
) -> Context:
    model = opened.enter_context(Model(files.target, **plan.target.place, mmap=mmap, lora=files.lora))
    context = Context(
        model,
        **plan.target.context,
        threads=threads(model),
        checkpoint_bytes=checkpoint_bytes(model),
        saved_bytes=saved_bytes(model),
    )
    if plan.draft and context.rollback_limit == 0:
        raise RollbackUnsupported(
            f"{model.name} is recurrent: its state cannot step back to reject drafts",
            hint="run it without a draft model: --no-draft",
        )
    return context
