"""Show every setting of config.toml, or one, with its value and its source; then the folders in use, and the
environment variables that localspec reads. Keys, tokens and passwords are not shown.
"""

import argparse
import dataclasses
import json
import os
import re
from pathlib import Path

from localspec import options
from localspec.cli.options import WRONG_USAGE
from localspec.display import say, say_json, tell
from localspec.errors import BadSetting
from localspec.models import places, registry

SECRET_VARIABLES = ("HF_TOKEN", "LOCALSPEC_API_KEY")
ADDRESSES = ("HF_ENDPOINT", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
HEEDED = (
    "LOCALSPEC_HOME",
    *SECRET_VARIABLES,
    *ADDRESSES,
    *("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "LLAMA_CACHE", "OLLAMA_MODELS"),
    *("NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "NO_COLOR", "TERM"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("setting", nargs="?", metavar="SETTING", help="show this setting alone")
    parser.add_argument("value", nargs="?", help=argparse.SUPPRESS)  # that it cannot set has a hint
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    (given, mistakes), paths = options.given_settings(), _paths()
    wanted = _wanted(arguments.setting, arguments.value)
    rows = {name: given.get(name) for name in wanted or options.SETTINGS}
    if arguments.json:
        values = {name: dataclasses.asdict(found) if found else None for name, found in rows.items()}
        folders = {name: str(path) for name, path in paths.items()}
        found = {"settings": values, "paths": folders, "environment": _environment()}
        say_json({**found, "mistakes": list(map(str, mistakes))}, indent=2)
        return WRONG_USAGE if mistakes else 0
    defaults = {name: options.OPTIONS[option].default for name, option in options.SETTINGS.items()}
    shown = {
        name: f"{json.dumps(found.value)}  {found.source}" if found else f"{defaults[name]}  (default)"
        for name, found in rows.items()
    }
    folders = {name: f"{path}{'' if path.exists() else '  (not there yet)'}" for name, path in paths.items()}
    blocks = (shown,) if wanted else (shown, folders, _environment())
    say("\n\n".join("\n".join(f"{name:<17} {text}" for name, text in block.items()) for block in blocks))
    for mistake in mistakes:
        tell(mistake)
    return WRONG_USAGE if mistakes else 0


def _wanted(setting: str | None, value: str | None) -> list[str]:
    """The one setting that was asked for; none for all of them. Raises BadSetting."""
    if setting is None:
        return []
    name = setting.replace("-", "_")
    if name not in options.SETTINGS:
        raise BadSetting(f"there is no setting called {name}", hint=options.nearest(name, options.SETTINGS))
    if value is not None:
        hint = f"write `{name} = {value}` into {options.config_file()}"
        raise BadSetting("`localspec config` shows settings and changes none", hint=hint)
    return [name]


def _paths() -> dict[str, Path]:
    return {
        "config.toml": options.config_file(),
        "your pairs": registry.users_folder(),
        "known pairs": registry.registry_file(),
        "models": places.models_dir(),
        "conversations": options.data_dir() / "conversations",
        "data": options.data_dir(),
        "cache": options.cache_dir(),
        "Hugging Face": places.hub_cache(),
    }


def _environment() -> dict[str, str]:
    """The variables that localspec reads and that are set."""
    return {
        name: "(set)" if name in SECRET_VARIABLES else _address(value) if name in ADDRESSES else value
        for name in HEEDED
        if (value := os.environ.get(name, os.environ.get(name.lower())))
    }


def _address(value: str) -> str:
    """The address without its user and password; a proxy may lack http://."""
    return re.sub(r"(^|//)[^/@\s]+@", r"\1...@", value)
