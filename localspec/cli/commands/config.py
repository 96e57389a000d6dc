"""Show every setting of config.toml with its value and its source; then the folders in use, and the environment
variables that localspec reads. Keys, tokens and passwords are not shown.
"""

import argparse
import json
import os
import re
from dataclasses import asdict

from localspec import options
from localspec.cli.options import WRONG_USAGE
from localspec.conversations.database import FILE
from localspec.display import say, say_json, tell
from localspec.machine.children import SECRET_VARIABLES
from localspec.models import local_models, registry

HEEDED = (
    "LOCALSPEC_HOME",
    *SECRET_VARIABLES,
    *("HF_ENDPOINT", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"),
    *("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "LLAMA_CACHE", "OLLAMA_MODELS"),
    *("NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "NO_COLOR", "TERM"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    given, mistakes = options.given_settings()
    paths = {
        "config.toml": options.config_file(),
        "your pairs": registry.users_folder(),
        "known pairs": registry.registry_file(),
        "models": local_models.models_dir(),
        "conversations": options.data_dir() / FILE,
        "data": options.data_dir(),
        "cache": options.cache_dir(),
        "Hugging Face": local_models.folders_of(local_models.HUGGING_FACE)[0],
    }
    environment = {
        # Hide user and password in addresses, also in a proxy's address without http://.
        name: "(set)" if name in SECRET_VARIABLES else re.sub(r"(^|//)[^/@\s]+@", r"\1...@", value)
        for name in HEEDED
        if (value := os.environ.get(name, os.environ.get(name.lower())))
    }
    if arguments.json:
        values = {name: asdict(given[name]) if name in given else None for name in options.SETTINGS}
        folders = {name: str(path) for name, path in paths.items()}
        found = {"settings": values, "paths": folders, "environment": environment}
        say_json({**found, "mistakes": list(map(str, mistakes))}, indent=2)
        return WRONG_USAGE if mistakes else 0
    shown = {
        name: f"{json.dumps(given[name].value)}  {given[name].source}"
        if name in given
        else f"{options.OPTIONS[option].default}  (default)"
        for name, option in options.SETTINGS.items()
    }
    folders = {name: f"{path}{'' if path.exists() else '  (not there yet)'}" for name, path in paths.items()}
    blocks = (shown, folders, environment)
    say("\n\n".join("\n".join(f"{name:<17} {text}" for name, text in block.items()) for block in blocks))
    for mistake in mistakes:
        tell(mistake)
    return WRONG_USAGE if mistakes else 0
