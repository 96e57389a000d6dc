"""Check, plan and load a pair whose files are on this machine: models, contexts, drafters, and their files on disk."""

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path

from localspec.algorithm.protocols import Drafter
from localspec.caches.prompt_cache import DiskPromptCache
from localspec.caches.store import Facts, Store, disk_of, why_not_trusted
from localspec.chat.loaded_pair import LoadedPair, Slot, Slots
from localspec.conversations import conversations
from localspec.display import size_text
from localspec.drafters.head import (
    ASSISTANT,
    EAGLE3,
    MTP,
    BlockDrafter,
    ChainDrafter,
    HeadDrafter,
    Steps,
)
from localspec.drafters.model import ModelDrafter, OtherVocabularyDrafter
from localspec.errors import LocalspecError, RollbackUnsupported
from localspec.files import file_of
from localspec.gguf.facts import (
    DraftKind,
    has_markov_chain,
    prediction_layers,
    target_layers,
    trained_context,
    trunk_layers,
)
from localspec.gguf.header import Header
from localspec.gguf.matching import SharedTokens, in_words
from localspec.gguf.trimmed import token_table
from localspec.llama.check import ensure_gpu, ensure_projector, take_news
from localspec.llama.context import Context, SlotDecoder
from localspec.llama.devices import connect, default_gpu, devices
from localspec.llama.head import BlockContext, HeadContext
from localspec.llama.images import Projector
from localspec.llama.library import involuntary_switches, spin_less
from localspec.llama.load import CHECKPOINT_SHARE, Load
from localspec.llama.model import Model
from localspec.llama.threads import SMALL_BYTES, default_threads, yield_threads
from localspec.loading.attention import measure_when_idle
from localspec.loading.drafting import Drafting, estimated_costs, warm_up
from localspec.loading.memory import HOST, LoadChoices
from localspec.loading.plan import Plan, plan_for
from localspec.machine.devices import Device, available_bytes
from localspec.machine.llama_build import installed_build
from localspec.models.local_models import identity, is_ours
from localspec.models.registry import Pair
from localspec.options import MOST_THREADS, data_dir, texts_dir
from localspec.prompt.template import template_of
from localspec.sampler.passes import HiddenRows
from localspec.sampler.sampling import Sampling
from localspec.stopping import WorkStopped

log = logging.getLogger(__name__)

VERSION = "7"  # raise this if stored costs or acceptance rates change their meaning
PLAIN_NOTICE = "{} cannot remove rejected draft tokens (it is recurrent), so it runs without drafts"
DEMO_NOTICE = (
    "this is the small demo pair: it answers most questions with nonsense, and its speed says nothing about real "
    "pairs. `localspec pairs` lists real pairs, `localspec pull NAME` downloads one"
)


def plan_pair(
    pair: Pair,
    choices: LoadChoices,
    on_stage: Callable[[str], object] = lambda stage: None,
) -> Plan:
    """Check a pair's GPUs and headers, and plan its memory."""
    if choices.rpc:
        connect(choices.rpc, on_stage)
    there = devices()
    default = default_gpu() if not choices.devices and choices.gpu_layers != 0 else None
    asked = [*choices.devices, choices.draft_device, default.name if default else None]
    choices = check_gpus(there, asked, choices, on_stage)
    on_stage(f"checking {pair.target.name}")
    plan = plan_for(pair, choices, there)
    while (checked := check_gpus(there, gpus_of(plan), choices, on_stage)) != choices:
        choices, plan = checked, plan_for(pair, checked, there)
    if (path := pair.projector) and not is_ours(path):  # a downloaded projector was checked by its hash
        trying = partial(on_stage, f"trying {path.name} for the first time")
        ensure_projector(path, identity(path), pair.target.here, trying)
    return plan


def load_planned(pair: Pair, choices: LoadChoices, on_stage: Callable[[str], object]) -> LoadedPair:
    """Plan and load a pair. If a draft that the user did not choose fails, load only the target, with a notice."""

    def loaded(pair: Pair) -> LoadedPair:
        return load_pair(pair, plan_pair(pair, choices, on_stage), choices, on_stage)

    if not (pair.has_own_draft and pair.draft):
        return loaded(pair)
    try:
        return loaded(pair)
    except WorkStopped:
        raise
    except LocalspecError as error:
        notice = f"the draft {pair.draft.name}, found on this machine, cannot be used: {error}"
        alone = loaded(pair.alone)
        return replace(alone, notices=(notice, *alone.notices))


def load_pair(
    pair: Pair,
    plan: Plan,
    choices: LoadChoices,
    on_stage: Callable[[str], object] = lambda stage: None,
) -> LoadedPair:
    """Load a pair as planned; if this fails, close everything."""
    threads, mmap = choices.threads, choices.mmap
    threads_of = partial(threads_for, wanted=threads, spare_cores=choices.spare_cores)
    with ExitStack() as opened:
        on_stage(f"loading the target, {pair.target.name} ({size_text(pair.target.all_bytes)})")
        target, projector = open_target(pair, plan, mmap, threads_of, opened)
        found: Sequence[Opened] = ()  # the opened draft of each slot; () without a draft
        if plan.draft:
            file = pair.draft or pair.target
            on_stage(f"loading the draft, {file.name} ({size_text(file.all_bytes)})")
            opening = Opening(pair, plan.draft, plan.shared, mmap, target, threads_of, opened)
            found = open_model(opening) if pair.drafter is DraftKind.MODEL else open_head(opening)
        model, contexts = target.model, [*target.slots, *(each.context for each in found)]
        sampling, unsupported = Sampling.from_metadata(model.metadata)
        template, about_template = template_of(model.chat_template, model.vocab)
        for context in contexts:
            context.threads.reading = threads_of(context.model, spare_cores=0)
        on_cpu = (each.threads for each in contexts if not each.model.gpu)
        giving_way = partial(yield_threads, spin_less=spin_less, switches=involuntary_switches)
        counts = giving_way(on_cpu, target.calling, fixed=threads is not None)
        where = f" on {' and '.join(gpus_of(plan))}" if gpus_of(plan) else ""
        on_stage(f"warming up{where}")
        warm_up(target, made := slots_of(pair, plan, target, found))
        disk = disk_prompt_cache(pair, plan.target, target, choices)
        slots = opened.enter_context(closing(Slots(made, stores=disk is not None)))
        on_stage(f"running{where}")
        return LoadedPair(
            name=pair.name,
            target_name=pair.target.label or model.name,
            draft_name=next((each.name for each in found), ""),
            slots=slots,
            rollback_limit=target.rollback_limit,
            widest_batch=target.rows_max,
            vocabulary=model.vocab,
            template=template,
            sampling=sampling,
            threads=counts,
            notices=(
                *([DEMO_NOTICE] if pair.is_demo else []),
                *(*take_news(), *plan.lines),
                *(each.notice for each in found[:1] if each.notice),
                *([PLAIN_NOTICE.format(model.name)] * (choices.speculate and target.rollback_limit == 0)),
                *(*unsupported, *about_template),
            ),
            is_demo=pair.is_demo,
            read_image=projector.tokens if projector else None,
            runs_ahead=model.all_on_gpu and target.rollback_limit is None,
            trained_context=trained_context(pair.target.header),
            reads_ahead=choices.read_ahead,
            when_idle=partial(measure_when_idle, pair, plan.target, threads, target),
            close=opened.pop_all().close,
        )


def gpus_of(plan: Plan) -> tuple[str, ...]:
    loads = [load for load in (plan.target, plan.draft) if load and load.gpu_layers != 0]
    return tuple(dict.fromkeys(name for load in loads for name in load.devices or () if name != HOST))


def check_gpus(
    there: Iterable[Device],
    used: Iterable[str | None],
    choices: LoadChoices,
    on_stage: Callable[[str], object],
) -> LoadChoices:
    """Test the used GPUs; return the choices with those that crash with flash attention in `no_flash`.

    Raises the errors of `ensure_gpu`.
    """
    names, dying = {name.lower() for name in used if name}, set(choices.no_flash)
    for device in there:
        if device.is_gpu and device.name.lower() in names:
            trying = partial(on_stage, f"trying {device.name} for the first time: this can take a minute")
            found = ensure_gpu(device.name, device.description, choices.flash_attn, choices.kv_type, trying)
            if found.died_of:
                dying.add(device.name)
    return replace(choices, no_flash=tuple(sorted(dying)))


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
    if path := pair.projector:
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


LAYOUTS = {DraftKind.EAGLE3: EAGLE3, DraftKind.ASSISTANT: ASSISTANT, DraftKind.MTP: MTP}


def open_head(opening: Opening) -> Sequence[Opened]:
    """Open a prediction head for each slot."""
    target, model, header, kind = opening.target, opening.model(), opening.header, opening.pair.drafter
    wants = HiddenRows(output=True)  # the target's hidden rows that the head reads
    if kind in (DraftKind.EAGLE3, DraftKind.DFLASH):
        read, last = target_layers(header), trunk_layers(opening.pair.target.header)
        wants = HiddenRows(tuple(layer for layer in read if layer < last), output=last in read)
    name = "its own prediction head" if model is target.model else model.name
    load = replace(opening.load, threads=opening.threads(target.model))
    is_end, layers = target.model.vocab.is_end, prediction_layers(header)
    head: HeadContext | BlockContext
    if kind is DraftKind.DFLASH:
        head = BlockContext(model, target, load, layers=len(wants.layers), anchored=has_markov_chain(header))
    else:
        head = HeadContext(model, target, load, encodes=kind is DraftKind.EAGLE3)
    opening.opened.enter_context(head)
    opened = []
    for slot in target.slots:
        drafter: HeadDrafter
        if isinstance(context := head.on(slot.sequence), BlockContext):
            drafter = BlockDrafter(context, wants, is_end)
        elif kind is DraftKind.MTP and layers > 1:
            drafter = ChainDrafter(context, wants, is_end, layers)
        else:
            drafter = Steps(context, wants, is_end, LAYOUTS[kind])
            context.shift = context.shift if drafter.keeps else slot.text_shift
        slot.head_state = drafter
        opened.append(Opened(drafter, context, name))
    target.shared.extract(wants)
    return opened


def slots_of(pair: Pair, plan: Plan, target: Context, found: Sequence[Opened]) -> list[Slot]:
    gpu, limit = target.model.gpu, target.rollback_limit
    size, experts = target.model.size_bytes, target.model.expert_count and plan.target.spills
    kind = "experts" if experts else gpu.backend.lower() if gpu else "cpu"
    # If the target has experts, a pass reads only some. Then file sizes do not show what a draft model costs.
    models = [each for each in found if not (each.drafter.hidden_rows_needed or target.model.expert_count)]
    shares = {str(each.drafter.source): each.context.model.size_bytes / size for each in models}
    slots, first = list[Slot](), None
    for number, slot in enumerate(target.slots):
        own = found[number : number + 1]
        drafters = [each.drafter for each in own]
        drafting = Drafting(
            drafters,
            estimated_costs(kind, shares),
            most=target.rows_max - 1 if limit is None else min(target.rows_max - 1, limit),
            target=target,
            decoding=[slot, *(each.context for each in own)],
            stored=learned_state_file(pair, plan, target.threads.usual),
            first=first,
        )
        first = first or drafting
        slots.append(Slot(slot, drafters, drafting, slot.running, slot.away))
    return slots


def disk_prompt_cache(
    pair: Pair, load: Load, target: Context, choices: LoadChoices
) -> DiskPromptCache | None:
    """Attach a prompt cache on disk to the target. Return None if its budget is 0 or the model is remote."""
    budget = int(1e9 * choices.cache_gb)
    model, path = target.model, pair.target.here
    if not budget or model.remote:
        return None
    folder = texts_dir()
    if why := why_not_trusted(folder):
        log.warning("no prompt caches are stored in %s: %s; run chmod go-w", folder, why)
        return None
    trained = model.metadata.get(f"{model.architecture}.rope.scaling.original_context_length", "0")
    # Stored states are found by their owner and by everything that they depend on, for example a head's file.
    heads = [pair.draft] if pair.draft and target.head_state else []
    files = (pair.target, *pair.target.rest, *heads)
    key = (
        [file.sha256 if file.repo else identity(file.here) for file in files],
        [(identity(path), scale) for path, scale in pair.lora],
        installed_build(),
        model.gpu.backend if model.gpu else "CPU",
        (load.kv_type, load.flash_attn, load.snapshots, len(target.slots)),
        target.needs_checkpoints,  # whether the cache keeps only the tokens of a sliding window
        target.capacity > int(trained) > 0,  # beyond this length some models use other rotary factors
        choices.owner,
    )
    digest = blake2b(json.dumps(key).encode(), digest_size=16).hexdigest()
    facts = Facts(digest, str(path), not target.needs_checkpoints, (), (), disk=disk_of(path))
    store, everything = Store(folder, budget, conversations.exists), choices.cache == "all"
    disk = DiskPromptCache(store, facts, capacity=target.capacity, everything=everything)
    target.prompt_cache.disk = disk
    return disk


def learned_state_file(pair: Pair, plan: Plan, threads: int) -> Path:
    """Return the path of the learned state for these model files, load options, devices and llama.cpp."""
    inside = pair.drafter.removeprefix("draft-") if plan.draft else ""
    return file_of(
        data_dir() / "lessons",
        VERSION,
        identity(pair.target.here),
        identity(pair.draft.here) if plan.draft and pair.draft else inside,
        ", ".join(f"{identity(path)} x {scale}" for path, scale in pair.lora),
        str(threads),
        ", ".join(device.description for device in devices()),
        f"{plan.target.place}, {plan.draft and plan.draft.place}",
        f"{plan.target.kv_type}, {plan.draft and plan.draft.kv_type}",
        *(["no flash attention"] if plan.target.flash_attn == "off" else []),
        installed_build(),
    )
