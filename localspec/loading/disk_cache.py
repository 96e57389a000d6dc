"""Open the prompt cache on disk of a loaded target."""

import json
import logging
from hashlib import blake2b

from localspec.caches.prompt_cache import DiskPromptCache
from localspec.caches.store import Facts, Store, disk_of, why_not_trusted
from localspec.conversations import conversations
from localspec.llama.context import Context
from localspec.llama.load import Load
from localspec.loading.memory import LoadChoices
from localspec.machine.llama_build import installed_build
from localspec.models.local_models import identity
from localspec.models.registry import Pair
from localspec.options import texts_dir

log = logging.getLogger(__name__)


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
    # The key contains the owner, and everything that a stored state depends on, such as a head's file.
    heads = [pair.draft] if pair.draft and target.head_state else []
    files = (pair.target, *pair.target.rest, *heads)
    key = (
        [file.sha256 if file.repo else identity(file.here) for file in files],
        [(identity(path), scale) for path, scale in pair.lora],
        installed_build(),
        model.gpu.backend if model.gpu else "CPU",
        (load.kv_type, load.flash_attn, load.snapshots, len(target.slots)),
        target.needs_checkpoints,  # whether a sliding-window cache keeps only the tokens of its window
        target.capacity > int(trained) > 0,  # beyond the trained length some models use other rotary factors
        choices.owner,
    )
    digest = blake2b(json.dumps(key).encode(), digest_size=16).hexdigest()
    facts = Facts(digest, str(path), not target.needs_checkpoints, (), (), disk=disk_of(path))
    store, everything = Store(folder, budget, conversations.exists), choices.cache == "all"
    disk = DiskPromptCache(store, facts, capacity=target.capacity, everything=everything)
    target.prompt_cache.disk = disk
    return disk
