"""Fixtures that every test may need."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# Plain `pytest` does not make the checkout importable; last, so that an installed localspec stays first.
sys.path.append(str(Path(__file__).parent.parent))


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory) -> Callable[..., Path]:
    """tiny_gguf(vocab_size=300) writes a GGUF and returns its path; equal arguments give the same file."""
    from tests.gguf import Shape, write_gguf

    folder = tmp_path_factory.mktemp("gguf")
    written: dict[Shape, Path] = {}

    def write(**shape) -> Path:
        wanted = Shape(**shape)
        if wanted not in written:
            written[wanted] = write_gguf(folder / f"{wanted.name}-{len(written)}.gguf", wanted)
        return written[wanted]

    return write
