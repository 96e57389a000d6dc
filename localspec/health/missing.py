"""What to say of a device that was asked for and is not there."""

import re
from collections.abc import Iterable

from localspec.errors import BadSetting
from localspec.health.build import BACKENDS, has_backend, rebuild_command

# What devices are called, where it is not their backend's name.
_BACKEND_OF = {"mtl": "metal", "rocm": "hip"}


def missing_device(name: str, there: Iterable[str]) -> BadSetting:
    """An error that names what is there, and how to get a device of that kind."""
    hint = f"there are: {', '.join(there)}"
    word = re.match("[a-z]*", name.lower())
    kind = _BACKEND_OF.get(word[0], word[0]) if word else ""
    if kind in BACKENDS and not has_backend(kind):
        hint += f". This build has no {kind.upper()}: {rebuild_command(f'GGML_{kind.upper()}=on')}"
    elif kind == "rpc":
        hint += ". Devices of other machines come with --rpc HOST:PORT"
    return BadSetting(f"there is no device called {name}", hint=hint)
