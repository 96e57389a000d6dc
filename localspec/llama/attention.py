"""Time attention on the CPU, with flash attention and without, in a small model with layers of a given shape."""

from contextlib import ExitStack
from itertools import product
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import numpy as np

from localspec.errors import BackendFailure
from localspec.gguf.enlarging import F32, Shape
from localspec.gguf.header import Entry
from localspec.gguf.trimmed import UINT32, text_entry, write_gguf
from localspec.llama.batch import Batch
from localspec.llama.cache import Cache, params_of, size_context
from localspec.llama.library import lib
from localspec.llama.model import Model
from localspec.llama.prompt_cache import restore_state, state_of
from localspec.llama.threads import CONTENDED, usable_cores

LENGTHS, WIDTHS, CHUNK = (512, 4096), (1, 2, 5, 128), 128  # tokens in the cache, in a pass, in a copied chunk
# Bytes of the small model's KV cache. Like a real KV cache, it does not fit into the cache of a CPU core.
_KV_BYTES, _MOST_LAYERS = 8_000_000, 8
_ROUNDS, _SECONDS = 7, 0.1  # maximum passes of a width; maximum seconds of these passes
_SIDE = 64  # rows and columns of the matrices outside attention
Seconds = dict[tuple[int, int], float]  # (tokens in the cache, tokens of a pass) -> seconds of one layer


def attention_seconds(heads: int, kv_heads: int, head_width: int, threads: int) -> dict[str, Seconds]:
    """Return the seconds of the fastest passes, with flash attention "on" and "off".

    Raises BackendFailure under CPU contention, OSError, and the errors of Model and Cache.
    """
    layers = min(max(_KV_BYTES // (4 * kv_heads * head_width * LENGTHS[-1]), 1), _MOST_LAYERS)
    found: dict[str, Seconds] = {"on": {}, "off": {}}
    with ExitStack() as opened:
        path = Path(opened.enter_context(TemporaryDirectory())) / "attention.gguf"
        _write(path, heads, kv_heads, head_width, layers)
        model = opened.enter_context(Model(path, devices=()))
        caches = dict[str, Cache]()
        for flash in found:
            params = params_of(model, LENGTHS[-1] + CHUNK, threads, flash_attn=flash)
            size_context(params, CHUNK, rows=2)
            params.n_seq_max, params.kv_unified = (
                2,
                True,
            )  # sequence 1 holds each copy before sequence 0 gets it
            caches[flash] = opened.enter_context(Cache(model, params))
        began = process_time()
        for length in LENGTHS:
            for cache in caches.values():
                _fill(cache, length)
            spent = dict.fromkeys(product(WIDTHS, caches), 0.0)
            for _, (width, flash) in product(range(_ROUNDS), spent):
                if spent[width, flash] < _SECONDS:
                    spent[width, flash] += (seconds := _pass_seconds(caches[flash], length, width))
                    least = found[flash].get((length, width), inf)
                    found[flash][length, width] = min(least, seconds / layers)
            # Threads of a pass wait for each other, so that passes are slow if one gets too little processor time.
            usable = sum(cache.busy_seconds for cache in caches.values()) * min(threads, usable_cores())
            if threads > 1 and process_time() - began < CONTENDED * usable:
                raise BackendFailure("other programs use the processor", hint="load the model again later")
    return found


def _write(path: Path, heads: int, kv_heads: int, head_width: int, layers: int) -> None:
    """Write a llama model without a vocabulary. Its weights are zeros, which take as long as other numbers."""
    shape = Shape(_SIDE, layers, heads, kv_heads, head_width, ffn=_SIDE, vocab=_SIDE)
    sizes = {"token_embd": (_SIDE, _SIDE), "output_norm": (_SIDE,)}
    sizes |= {f"blk.{layer}.{part}": size for layer in range(layers) for part, size in shape.parts.items()}
    texts = {"general.architecture": text_entry("llama"), "tokenizer.ggml.model": text_entry("no_vocab")}
    length = {"llama.context_length": Entry(UINT32, 2 * LENGTHS[-1])}
    zeros = ((f"{name}.weight", of, F32, np.zeros(of[::-1], np.float32)) for name, of in sizes.items())
    write_gguf(path, shape.entries(eps=1e-5) | length | texts, zeros)


def _fill(cache: Cache, length: int) -> None:
    """Fill sequence 0 with copies of one chunk, which takes less time than decoding them."""
    lib.llama_memory_clear(memory := cache.memory, False)
    cache.run(lib.llama_decode, Batch(CHUNK).fill([0] * CHUNK, 0, 0), CHUNK)
    chunk = state_of(cache.handle)
    for start in range(CHUNK, length, CHUNK):
        if chunk is None or not restore_state(cache.handle, chunk, 1):
            raise BackendFailure("llama.cpp cannot copy a KV cache", hint="set --flash-attn to on")
        lib.llama_memory_seq_add(memory, 1, 0, -1, start)
        lib.llama_memory_seq_cp(memory, 1, 0, -1, -1)
        lib.llama_memory_seq_rm(memory, 1, -1, -1)
    _pass_seconds(cache, length, 1)  # the first pass moves the copies to their positions


def _pass_seconds(cache: Cache, start: int, width: int) -> float:
    """Time a pass from the position `start` on, and remove its tokens."""
    before = cache.busy_seconds
    cache.run(lib.llama_decode, Batch(width).fill([0] * width, start, 0), width)
    lib.llama_memory_seq_rm(cache.memory, 0, start, -1)
    return cache.busy_seconds - before
