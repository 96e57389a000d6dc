"""Which llama.cpp is installed, told apart without loading it."""

import hashlib
import os
import re
from importlib.metadata import PackageNotFoundError, distribution

_LIBRARY = re.compile(r"\.(so|dylib|dll)[.\d]*,")  # in a line of RECORD: name, hash, size


def installed_build() -> str:
    """Its version and a digest of its libraries: builds for CPU, CUDA and Vulkan have the same version."""
    try:
        installed = distribution("llama-cpp-python")
    except PackageNotFoundError:
        return "unknown"
    libraries = sorted(filter(_LIBRARY.search, (installed.read_text("RECORD") or "").splitlines()))
    elsewhere = os.environ.get("LLAMA_CPP_LIB_PATH", "")  # llama_cpp loads those instead
    digest = hashlib.sha256("\n".join([*libraries, elsewhere]).encode()).hexdigest()
    return f"{installed.version} {digest[:12]}"
