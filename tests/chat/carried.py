"""The chat templates that llama.cpp carries (see README.md)."""

import tarfile
from pathlib import Path

_ARCHIVE = Path(__file__).with_name("templates.tar.xz")


def _read() -> dict[str, str]:
    with tarfile.open(_ARCHIVE) as archive:
        return {
            member.name.removesuffix(".jinja"): archive.extractfile(member).read().decode()
            for member in archive
        }


TEMPLATES = _read()
