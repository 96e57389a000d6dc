"""The chat templates that llama.cpp carries (see README.md)."""

import tarfile
from pathlib import Path

with tarfile.open(Path(__file__).with_name("templates.tar.xz")) as _archive:
    _files = {member.name: _archive.extractfile(member).read().decode() for member in _archive}
TEMPLATES = {name.removesuffix(".jinja"): text for name, text in _files.items()}
