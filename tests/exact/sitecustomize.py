"""Exact arithmetic in every process of the tests: Python imports this file at its start from PYTHONPATH.

Rounding decides between two tokens when their logits are close, and each processor rounds in another way. With
weights and a KV cache in F32, and without flash attention, logits move by 1e-5 and not by 1e-2; tests/test_ground.py
measures it. So localspec's default KV cache is F32 here, "auto" has no flash attention, the demo pair is loaded with
its weights in F32, and contexts have one thread by default. Quantised caches stay as they are; the fixture `shipped`
brings all of it back.
"""

import filecmp
import importlib.util
import os
import sys
from dataclasses import replace
from importlib.abc import MetaPathFinder
from pathlib import Path

FOLDER = "LOCALSPEC_EXACT_DEMO"  # names the folder of the demo pair in F32


def exact_cache(module):
    """Make contexts with an F32 cache and plain attention where localspec has "f16" and "auto"."""
    module.exact, params_of = True, module.params_of

    def exact_params(model, load):
        if module.exact and load.kv_type == "f16":
            flash_attn = "off" if load.flash_attn == "auto" else load.flash_attn
            # Several threads would wait for each other on a busy machine.
            load = replace(load, kv_type="f32", flash_attn=flash_attn, threads=load.threads or 1)
        return params_of(model, load)

    module.params_of = exact_params


def exact_demo(module):
    """Load copies of the demo pair whose weights are in F32, by whatever path."""
    load, demo = module.lib.llama_model_load_from_file, Path(module.__file__).parents[1] / "demo"
    shipped = {path.stat().st_size: path for path in demo.glob("*.gguf")}

    def load_exact(path, params):
        known = shipped.get(os.path.getsize(path)) if os.path.isfile(path) else None
        if module.exact and known and filecmp.cmp(path, known, shallow=False):
            path = os.fsencode(with_f32_weights(known))
        return load(path, params)

    module.exact, module.lib.llama_model_load_from_file = True, load_exact


def with_f32_weights(source):
    """Return the path of a GGUF with the same tensors in F32, and write it if it is not there yet."""
    out = Path(os.environ[FOLDER], source.name)
    if out.exists():
        return out
    import gguf
    import numpy as np

    reader, part = gguf.GGUFReader(source), out.with_suffix(f".{os.getpid()}")
    writer = gguf.GGUFWriter(part, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            kind, *inner = field.types
            writer.add_key_value(name, field.contents(), kind, sub_type=inner[-1] if inner else None)
    for tensor in reader.tensors:
        writer.add_tensor(
            tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(part, out)  # another process may have written it in the meantime
    return out


CHANGED = {
    "localspec.llama.cache": exact_cache,
    "localspec.llama.model": exact_demo,
}


class Exact(MetaPathFinder):
    """Changes the modules above when they are imported."""

    def __init__(self):
        self.left = dict(CHANGED)

    def find_spec(self, name, path=None, target=None):
        change = self.left.pop(name, None)
        if change is None:
            return None
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            change(module)

        spec.loader.exec_module = exec_module
        return spec


if FOLDER in os.environ and not any(type(finder).__name__ == "Exact" for finder in sys.meta_path):
    sys.meta_path.insert(0, Exact())
