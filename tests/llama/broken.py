"""Installations of llama_cpp that really die: a package in front of the real one that ends its process by a signal."""

import importlib.util
import signal
from pathlib import Path

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
    params.use_extra_bufts = False  # this machine's own build may die of them
    return load(path, params)

make, decode = module.llama_init_from_model, module.llama_decode
models, contexts = {{}}, {{}}  # what is known of each, by pointer

def load_and_note(path, params):
    model = load_or_die(path, params)
    models[model] = bool(params.n_gpu_layers)
    return model

def make_and_note(model, params):
    context = make(model, params)
    flash = params.flash_attn_type != module.LLAMA_FLASH_ATTN_TYPE_DISABLED
    contexts[context] = (models[model], flash, params.type_k, [])
    return context

def decode_or_die(context, batch):
    gpu, flash, kv_type, widths = contexts[context]
    widths.append(batch.n_tokens)
    if {decode_dies_if}:
        die()
    return decode(context, batch)

module.llama_model_load_from_file = load_and_note
module.llama_init_from_model = make_and_note
module.llama_decode = decode_or_die
sys.modules[__name__] = module
"""


def install(
    folder: Path,
    signal: signal.Signals,
    *,
    dies_if: str = "False",
    decode_dies_if: str = "False",
    while_importing: bool = False,
) -> Path:
    """Write the package, and return what goes onto the path.

    `dies_if` is an expression of `path` and `params`, `decode_dies_if` of `gpu`, `flash`, `kv_type` (a
    GGML_TYPE) and `widths`, the numbers of tokens in the passes of a context.
    """
    real = str(Path(importlib.util.find_spec("llama_cpp").origin).parent)
    package = folder / "llama_cpp"
    (package / "lib").mkdir(parents=True)
    (package / "lib" / "libllama.so").write_text(f"{signal} {dies_if} {decode_dies_if} {while_importing}")
    (package / "__init__.py").touch()
    for module in ("_ctypes_extensions.py", "_ggml.py"):
        (package / module).symlink_to(Path(real, module))
    on_import = "die()" if while_importing else ""
    (package / "llama_cpp.py").write_text(
        _MODULE.format(
            real=real, signal=int(signal), on_import=on_import, dies_if=dies_if, decode_dies_if=decode_dies_if
        )
    )
    return folder
