"""The files of a loaded pair: the prompt caches of its target, and the learned state of its drafting."""

import json
import logging
from hashlib import blake2b
from pathlib import Path

from localspec.caches.prompt_cache import DiskPromptCache
from localspec.caches.store import Facts, Store, disk_of, why_not_trusted
from localspec.conversations import conversations
from localspec.files import file_of
from localspec.llama.context import Context
from localspec.llama.devices import devices
from localspec.llama.load import Load
from localspec.loading.memory import LoadChoices
from localspec.loading.plan import Plan
from localspec.machine.llama_build import installed_build
from localspec.models.local_models import identity
from localspec.models.registry import Pair
from localspec.options import data_dir, texts_dir

log = logging.getLogger(__name__)

VERSION = "7"  # raise this if stored costs or acceptance rates change their meaning


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
    # The key has the owner, and everything that a stored state depends on, for example a head's file.
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
