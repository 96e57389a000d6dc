"""The environment of child processes that read model files: what Python and the backends need, and no secrets."""

import os

_NAMES = frozenset(
    {
        *("HOME", "PATH", "PATHEXT", "LANG", "TMPDIR", "TEMP", "TMP", "VIRTUAL_ENV", "CONDA_PREFIX"),
        *("XDG_CACHE_HOME", "XDG_CONFIG_DIRS", "XDG_DATA_DIRS", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"),
        *("SYSTEMROOT", "WINDIR", "USERPROFILE", "APPDATA", "LOCALAPPDATA", "PROGRAMDATA"),
    }
)
_PREFIXES = (
    *("PYTHON", "LC_", "LD_", "DYLD_", "NIX_", "GGML_", "LLAMA_", "OMP_", "GOMP_", "KMP_"),
    *("CUDA_", "HIP_", "HSA_", "ROC", "AMD_", "VK_", "MESA_", "MTL_", "METAL_", "ONEAPI_", "SYCL_", "ZE_"),
)
_SECRET = ("AUTH", "KEY", "PASS", "SECRET", "TOKEN")


def child_environment() -> dict[str, str]:
    """The variables of this process that such a child may see; unknown ones are left out."""
    return {name: value for name, value in os.environ.items() if _may_see(name.upper())}


def _may_see(name: str) -> bool:
    wanted = name in _NAMES or name.startswith(_PREFIXES)
    return wanted and not any(word in name for word in _SECRET)
