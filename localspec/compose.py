"""From files to a running pair: checks, memory plan, models, contexts, drafting; closed again in order."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from localspec import demo
from localspec.chat.loaded_pair import LoadedPair
from localspec.chat.template import template_of
from localspec.errors import RollbackUnsupported
from localspec.gguf.adapters import check_adapter
from localspec.gguf.facts import header_at
from localspec.gguf.heads import has_markov_chain
from localspec.gguf.parts import parts_of
from localspec.health.check import ensure_device, untold_note
from localspec.health.hello import use_servers
from localspec.health.servers import used_servers
from localspec.health.trial import HeadTrial
from localspec.llama.contention import give_way
from localspec.llama.context import Context
from localspec.llama.devices import Device, default_gpu, devices
from localspec.llama.model import Model
from localspec.llama.rpc import add_servers
from localspec.llama.threads import MOST_THREADS, default_threads
from localspec.logits.log import LogitLog
from localspec.memory.known_devices import DeviceMemory
from localspec.memory.plan import Plan
from localspec.memory.planning import plan_for_files
from localspec.memory.wishes import MemoryWishes
from localspec.opening import (
    OpenedDrafter,
    Opening,
    checkpoint_bytes,
    device_of,
    open_drafter,
    saved_bytes,
    wanted_rows,
)
from localspec.pair_drafting import PairDrafting, lessons_key, logit_folder, reply_store
from localspec.pairs.compatibility import check, refuse_head_alone
from localspec.pairs.registry import PairKind
from localspec.pairs.resolve import PairFiles
from localspec.pairs.trust import ensure_loadable, refuse_hazards
from localspec.sampler.sampling import Sampling
from localspec.units import size_text
from localspec.warm_up import warm_up

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
    remember_replies: bool,
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
        sampling, unsupported = Sampling.from_metadata(model.metadata)
        health_note = untold_note()
        template, template_notices = template_of(model.chat_template, model.vocab)
        if threads is None:  # what was asked for is kept
            contexts = [target, *(each.context for each in found)]
            give_way([context.threads for context in contexts if not context.model.gpu])
        drafting = drafting_of(files, plan, target, found, remember_replies)
        log = opened.enter_context(LogitLog(logit_folder(files))) if remember_logits else None
        on_stage("warming up")
        drafters = tuple(each.drafter for each in found)
        warm_up(target, drafters, drafting)
        on_stage("ready")
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
                *filter(None, (DEMO_NOTICE if is_demo(files) else "", health_note)),
                *plan.lines,
                *(each.notice for each in found if each.notice),
                *([why_plain(model)] if speculate and target.rollback_limit == 0 else []),
                *unsupported,
                *template_notices,
            ),
            drafting=drafting,
            close=opened.pop_all().close,
            log=log,
        )


def _sized(path: Path) -> str:
    return f"{path.name} ({size_text(sum(part.stat().st_size for part in parts_of(path)))})"


def checked_plan(files: PairFiles, wishes: MemoryWishes, rpc: str, on_stage: Callable[[str], object]) -> Plan:
    """How to load the pair, once servers, devices and files have shown that they work."""
    if rpc:
        connect(rpc, on_stage)
    there, embedded = devices(), is_demo(files)
    default = default_gpu() if not wishes.devices and wishes.gpu_layers != 0 else None
    check_devices(there, [*wishes.devices, wishes.draft_device, default.name if default else None], on_stage)
    on_stage("checking the files")
    if not embedded:
        check_headers(files, wishes)
    if files.kind is PairKind.LOOKUP:
        wishes = replace(wishes, draft=False)
    plan = plan_for_files(files.target, files.draft, wishes, memory_of(there), files.lora)
    loads = [load for load in (plan.target, plan.draft) if load]
    check_devices(there, [name for load in loads for name in load.devices or ()], on_stage)
    if not embedded:
        ensure_loadable(files.target, plan.target.place, files.lora, head_of(files, plan), on_stage)
        if files.draft and plan.draft and not plan.draft.kind.is_head:
            ensure_loadable(files.draft, plan.draft.place, on_stage=on_stage)
    return plan


def head_of(files: PairFiles, plan: Plan) -> HeadTrial | None:
    """The head that is tried together with its target."""
    if plan.draft is None or not plan.draft.kind.is_head:
        return None
    header, kind = header_at(files.draft or files.target), plan.draft.kind
    wants, anchored = wanted_rows(kind, header_at(files.target), header), has_markov_chain(header)
    path = str(files.draft) if files.draft else ""
    return HeadTrial(path, plan.draft.place, kind, anchored, wants.layers, wants.output)


def connect(rpc: str, on_stage: Callable[[str], object] = lambda stage: None) -> None:
    """Add the devices of RPC servers, all of them or none. Raises BadSetting, BackendFailure."""
    on_stage("asking the RPC servers")
    use_servers(rpc)
    add_servers(used_servers())


def check_devices(
    there: Iterable[Device], used: Iterable[str | None], on_stage: Callable[[str], object]
) -> None:
    """Refuse a GPU that does not work before a file is blamed. Raises BackendFailure, NotEnoughMemory."""
    names = {name.lower() for name in used if name}
    for device in there:
        if device.is_gpu and device.name.lower() in names:
            trying = f"trying {device.name} for the first time: this can take a minute"
            ensure_device(device.name, device.description, partial(on_stage, trying))


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
    """What to say of a recurrent target of which llama.cpp keeps no copies to step back to."""
    return f"{model.name} is recurrent: its state cannot step back, so nothing is drafted from the text"


def memory_of(listed: Iterable[Device]) -> tuple[DeviceMemory, ...]:
    """Devices as the memory plan knows them."""
    return tuple(
        DeviceMemory(device.name, device.kind, device.free_bytes, device.total_bytes, device.shares_memory)
        for device in listed
    )


def drafting_of(
    files: PairFiles, plan: Plan, target: Context, found: Sequence[OpenedDrafter], remember_replies: bool
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
        replies=reply_store(files.target) if remember_replies else None,
    )


def run_shares(target: Model, found: Sequence[OpenedDrafter]) -> dict[str, float]:
    """What a run of each draft model takes of a plain step, if all their weights are read; of a mixture's few are."""
    models = [each for each in found if each.drafter.wants is None and not target.expert_count]
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
