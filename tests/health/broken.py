"""Installations of llama_cpp that really die: a package in front of the real one that ends its process by a signal."""

import importlib.util
import signal
from pathlib import Path

_PACKAGE = """
from pathlib import Path
__path__ = [str(Path(__file__).parent), {real!r}]
"""
_MODULE = """
import importlib.util, os, sys

def die():
    os.kill(os.getpid(), {signal})

{on_import}
spec = importlib.util.spec_from_file_location("llama_cpp.real", {real!r} + "/llama_cpp.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
load = module.llama_model_load_from_file

def load_or_die(path, params):
    if {dies_if}:
        die()
    return load(path, params)

module.llama_model_load_from_file = load_or_die
sys.modules[__name__] = module
"""


def install(
    folder: Path, signal: signal.Signals, *, dies_if: str = "False", while_importing: bool = False
) -> Path:
    """Write the package; `dies_if` is an expression of `path` and `params`. Returns what goes onto the path."""
    real = str(Path(importlib.util.find_spec("llama_cpp").origin).parent)
    package = folder / "llama_cpp"
    (package / "lib").mkdir(parents=True)
    (package / "lib" / "libllama.so").write_text(f"{signal} {dies_if} {while_importing}")
    (package / "__init__.py").write_text(_PACKAGE.format(real=real))
    on_import = "die()" if while_importing else ""
    (package / "llama_cpp.py").write_text(
        _MODULE.format(real=real, signal=int(signal), on_import=on_import, dies_if=dies_if)
    )
    return folder
