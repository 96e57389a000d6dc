"""Show every setting of config.toml with its value and its source, the folders in use, and the environment
variables that localspec reads. Keys, tokens and passwords are not shown.
"""

import argparse
import dataclasses
import json
import os
from pathlib import Path

from localspec.cli.last_defence import SECRET_VARIABLES, without_userinfo
from localspec.display import say, say_json

ADDRESSES = ("HF_ENDPOINT", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
HEEDED = (
    "LOCALSPEC_HOME",
    *SECRET_VARIABLES,
    *ADDRESSES,
    *("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "LLAMA_CACHE", "OLLAMA_MODELS"),
    *("NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "NO_COLOR", "TERM"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    from localspec.settings import SETTINGS, given_settings

    given = given_settings()
    rows = [(name, given.get(name)) for name in SETTINGS]
    if arguments.json:
        settings = {name: dataclasses.asdict(found) if found else None for name, found in rows}
        paths = {name: str(path) for name, path in _paths().items()}
        say_json({"settings": settings, "paths": paths, "environment": _environment()}, indent=2)
        return 0
    for name, found in rows:
        value, source = (json.dumps(found.value), f"  {found.source}") if found else ("-", "")
        say(f"{name:<17} {value}{source}")
    say("")
    for name, path in _paths().items():
        say(f"{name:<17} {path}{'' if path.exists() else '  (not there yet)'}")
    say("")
    for name, value in _environment().items():
        say(f"{name:<17} {value}")
    return 0


def _paths() -> dict[str, Path]:
    from localspec import settings
    from localspec.models import registry, store

    return {
        "config.toml": settings.config_file(),
        "your pairs": registry.users_folder(),
        "models.toml": registry.user_file(),
        "known pairs": registry.registry_file(),
        "models": store.models_dir(),
        "conversations": settings.data_dir() / "conversations",
        "data": settings.data_dir(),
        "cache": settings.cache_dir(),
        "Hugging Face": store.hub_cache(),
    }


def _environment() -> dict[str, str]:
    """The variables that localspec reads and that are set."""
    return {
        name: "(set)" if name in SECRET_VARIABLES else _address(value) if name in ADDRESSES else value
        for name in HEEDED
        if (value := os.environ.get(name, os.environ.get(name.lower())))
    }


def _address(value: str) -> str:
    """Without its password; a proxy may be named without http://."""
    return without_userinfo(value) if "//" in value else without_userinfo(f"//{value}").removeprefix("//")
