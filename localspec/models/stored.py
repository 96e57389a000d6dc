"""The texts on disk of a loaded target: what their states depend on, where they lie, how much room they have."""

import json
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from localspec import options
from localspec.caches.state_file import Facts
from localspec.caches.store import Store
from localspec.health.installed import installed_build
from localspec.llama.context import Context
from localspec.llama.stored_texts import StoredTexts
from localspec.models.memory import Load
from localspec.models.places import known_sha256
from localspec.models.registry import Pair

DEFAULT_GB = 8


def stored_texts(
    pair: Pair, load: Load, target: Context, settings: Mapping[str, Any], owner: str
) -> StoredTexts | None:
    """The stored texts of a target, which it uses from now on; None without a budget. Another owner has others."""
    budget = int(1e9 * settings.get("cache_gb", DEFAULT_GB))
    if not budget or target.model.remote:
        return None
    facts = Facts(
        key=_key_of(pair, load, target, owner),
        model=str(pair.target.here),
        steps_back=not target.needs_checkpoints,
        marks=(),
        parts=(),
        token_seconds=0.0,
    )
    disk = StoredTexts(Store(options.texts_dir(settings), budget), facts, capacity=target.capacity)
    target.saved_texts.disk = disk
    return disk


def _key_of(pair: Pair, load: Load, target: Context, owner: str) -> str:
    """A digest of all that a state depends on, and of whose it is."""
    model = target.model
    trained = model.metadata.get(f"{model.architecture}.rope.scaling.original_context_length", "0")
    return _digest(
        [_identity(path) for path in (pair.target.here, *(part.here for part in pair.target.rest))],
        [(_identity(path), scale) for path, scale in pair.lora],
        installed_build(),
        model.gpu.backend if model.gpu else "CPU",
        (load.kv_type, load.flash_attn, load.snapshots, len(target.lanes)),  # each lane is a stream
        target.needs_checkpoints,  # whether the cache of a window has its size
        target.capacity > int(trained) > 0,  # some models have other rotary factors from there on
        owner,
    )


def _identity(path: Path) -> str:
    """What the download hashed, else place, size and time."""
    facts = path.stat()
    return known_sha256(path) or f"{path.resolve()} {facts.st_size} {facts.st_mtime_ns}"


def _digest(*facts: object) -> str:
    return blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()
