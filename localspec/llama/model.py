"""A loaded model file: its weights, metadata and vocabulary."""

import ctypes
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from math import inf
from pathlib import Path
from typing import Any

from localspec.errors import BackendFailure, BadModelFile, BadSetting
from localspec.llama import devices
from localspec.llama.check import health
from localspec.llama.library import forget_log_errors, lib, load_failure, reason, symbol, text_of
from localspec.llama.lifetimes import LOADING_SECONDS, free_with, made_progress, waiting_for
from localspec.machine.devices import Device
from localspec.stopping import Closing, DelayedInterrupt, current_stop, ending, own_stop, stopping_at

COPIED_FROM = 32  # in passes of this many tokens or more, llama.cpp copies weights from the CPU to a GPU
LONGEST_NAME = 30  # maximum characters of a model's name; the file name replaces a longer name
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"  # as in llama.cpp's --n-cpu-moe
_cpu_buffers = symbol("ggml_backend_cpu_buffer_type", ctypes.c_void_p, [])


class _Override(ctypes.Structure):  # the C structure llama_model_tensor_buft_override
    _fields_ = (("pattern", ctypes.c_char_p), ("buffers", ctypes.c_void_p))


def chosen_gpus(names: Sequence[str] | None, gpu_layers: int | None) -> tuple[Device, ...]:
    """Return the GPUs to use; () means only the CPU. Raises BadSetting for layers without a GPU."""
    if names is None:
        gpus: tuple[Device, ...] = tuple(filter(None, [devices.default_gpu()]))
    else:
        known = {found.name.lower(): found for found in devices.devices()}
        gpus = tuple(known[name.lower()] for name in names if known[name.lower()].is_gpu)
    if gpu_layers and gpu_layers > 0 and not gpus:
        hint = "leave out --gpu-layers, or install llama.cpp for your GPU: `localspec doctor` shows how"
        raise BadSetting(f"{gpu_layers} layers cannot go to a GPU: llama.cpp has no GPU to use", hint=hint)
    return () if gpu_layers == 0 else gpus


def model_params(
    gpus: Sequence[Device], gpu_layers: int | None, split: Sequence[float], cpu_moe: int, mmap: bool | None
) -> tuple[Any, tuple[Any, ...]]:
    params = lib.llama_model_default_params()
    params.use_extra_bufts = health().extra_buffers
    if mmap is not None:
        params.load_mode = lib.LLAMA_LOAD_MODE_MMAP if mmap else lib.LLAMA_LOAD_MODE_NONE
    params.split_mode = lib.LLAMA_SPLIT_MODE_LAYER if len(gpus) > 1 else lib.LLAMA_SPLIT_MODE_NONE
    if not gpus:
        params.n_gpu_layers = 0
        params.main_gpu = -1  # without this, llama.cpp would prefill on a GPU and take its memory
        return params, ()
    params.n_gpu_layers = -1 if gpu_layers is None else gpu_layers
    known = devices.handles()
    handles = (ctypes.c_void_p * (len(gpus) + 1))(*(known[gpu.name] for gpu in gpus))
    shares = (ctypes.c_float * lib.llama_max_devices())(*split)
    layers = "|".join(map(str, range(cpu_moe)))
    overrides = (_Override * 2)(_Override(rf"blk\.({layers}){_EXPERTS}".encode(), _cpu_buffers()))
    params.devices = ctypes.cast(handles, ctypes.c_void_p)
    params.tensor_split = shares
    if cpu_moe:
        params.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p)
    return params, (handles, shares, overrides)


def load_adapter(model: Any, path: Path) -> Any:
    """Load a LoRA adapter. llama.cpp frees it together with its model. Raises BadModelFile."""
    forget_log_errors()
    with DelayedInterrupt():
        pointer = lib.llama_adapter_lora_init(model, os.fsencode(path))
    if pointer:
        return pointer
    what = f"the adapter {path.name} cannot be added to the target: {reason()}"
    raise BadModelFile(what, hint="use an adapter that was made for this model")


_TYPES = {0: "none", 1: "spm", 2: "bpe", 3: "wpm", 4: "ugm", 5: "rwkv", 6: "plamo2"}
_UNKNOWN, _CONTROL, _USER_DEFINED = 1, 8, 16  # bits of llama.cpp's enum llama_token_attr
_SPECIAL = _UNKNOWN | _CONTROL | _USER_DEFINED  # attributes of the tokens that parse_special finds in a text


class Vocab:
    """The `Vocabulary` (see algorithm/protocols.py) of a model, valid until the model is closed."""

    def __init__(self, pointer: Any) -> None:
        self._vocab = pointer
        self.size: int = lib.llama_vocab_n_tokens(pointer)
        self.type: str = _TYPES.get(lib.llama_vocab_type(pointer), "unknown")
        self.bos = self._optional(lib.llama_vocab_bos(pointer))
        self.eos = self._optional(lib.llama_vocab_eos(pointer))
        self.add_bos = bool(lib.llama_vocab_get_add_bos(pointer))
        marks = (getattr(lib, f"llama_vocab_fim_{mark}") for mark in ("pre", "suf", "mid", "sep"))
        before, after, middle, file = (self._optional(mark(pointer)) for mark in marks)
        self.infill_tokens = before, after, middle, file
        self._pieces: dict[int, bytes] = {}
        self._ends: dict[int, bool] = {}
        self._special_tokens: dict[str, int] | None = None

    def tokenize(self, text: str, *, parse_special: bool, add_special: bool = False) -> list[int]:
        """Return the tokens of a text. `parse_special`: whether to find special tokens; False for untrusted text."""
        raw = text.encode("utf-8", "replace")
        room = len(raw) + 4
        while True:
            tokens = (ctypes.c_int32 * room)()
            count = lib.llama_tokenize(self._vocab, raw, len(raw), tokens, room, add_special, parse_special)
            if count >= 0:
                return tokens[:count]
            if count == -(2**31):
                raise BackendFailure("the text is too long", hint="send it in parts")
            room = -count

    def piece(self, token: int) -> bytes:
        if (content := self._pieces.get(token)) is not None:
            return content
        self._check(token)
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = lib.llama_token_to_piece(self._vocab, token, buffer, size, 0, False)
            if count >= 0:
                return self._pieces.setdefault(token, buffer.raw[:count])
            size = -count

    def text(self, token: int) -> str:
        self._check(token)
        return text_of(lib.llama_vocab_get_text(self._vocab, token))

    def is_end(self, token: int) -> bool:
        if (ends := self._ends.get(token)) is None:
            ends = self._ends[token] = bool(lib.llama_vocab_is_eog(self._vocab, token))
        return ends

    def is_special(self, token: int) -> bool:
        return bool(lib.llama_vocab_is_control(self._vocab, token))

    def special_tokens(self) -> dict[str, int]:
        if self._special_tokens is None:
            attributes = lib.llama_vocab_get_attr
            special = (i for i in range(self.size) if attributes(self._vocab, i) & _SPECIAL)
            self._special_tokens = {self.text(token): token for token in special}
        return self._special_tokens

    def _check(self, token: int) -> None:
        assert 0 <= token < self.size, f"token {token} of a vocabulary of {self.size}"

    def _optional(self, token: int) -> int | None:
        return token if 0 <= token < self.size else None


class Model(Closing):
    """A loaded model, on one or several devices. `close` also closes the contexts made from it."""

    def __init__(
        self,
        path: Path,
        *,
        devices: Sequence[str] | None = None,
        gpu_layers: int | None = None,
        split: Sequence[float] = (),
        cpu_moe: int = 0,
        mmap: bool | None = None,
        lora: Iterable[tuple[Path, float]] = (),
        prediction: bool = False,
        no_alloc: bool = False,
    ) -> None:
        """Load a GGUF file. Raises BadModelFile, NotEnoughMemory or BadSetting.

        `devices`: names of devices; None: `default_gpu()`. `gpu_layers`: how many of the last layers the GPUs
        get; None: all. `split`: each GPU's share of the layers; (): by free memory. `cpu_moe`: how many
        first layers keep their experts on the CPU. `mmap`: whether to map the file; None: llama.cpp decides.
        `lora`: adapters with their scales. `prediction`: whether to load the layers of an MTP head.
        `no_alloc`: whether to read no weights; contexts then only log how much memory they need.
        """
        self.path = path
        gpus = chosen_gpus(devices, gpu_layers)
        # `params` has pointers into the buffers of `_kept`, so these must live until the model is loaded.
        params, _kept = model_params(gpus, gpu_layers, split, cpu_moe, mmap)
        params.load_mtp = prediction
        if no_alloc:
            params.no_alloc, params.load_mode = True, lib.LLAMA_LOAD_MODE_NONE
        # The names of the remote devices, for messages; "" if no device is remote.
        self.remote = " or ".join(gpu.remote for gpu in gpus if gpu.remote)
        params.progress_callback = _on_progress
        self._pointer: Any = (pointer := _loaded(path, params, self.remote))
        self.contexts: weakref.WeakSet[Closing] = weakref.WeakSet()  # contexts to close before the model
        self._finalizer = free_with(self, _free, pointer, self.remote)
        # Load adapters before any context, because a context reserves memory for them.
        self._adapters = [(load_adapter(pointer, path), scale) for path, scale in lora]
        key, value = lib.llama_model_meta_key_by_index, lib.llama_model_meta_val_str_by_index
        count = lib.llama_model_meta_count(pointer)
        self.metadata = {_whole(key, pointer, i): _whole(value, pointer, i) for i in range(count)}
        self.vocab = Vocab(lib.llama_model_get_vocab(pointer))
        self.architecture = self.metadata.get("general.architecture", "")
        name = self.metadata.get("general.name", "")
        self.name = name if 0 < len(name) <= LONGEST_NAME else path.stem
        self.size_bytes: int = lib.llama_model_size(pointer)
        self.layer_count: int = lib.llama_model_n_layer(pointer)
        self.chat_template = text_of(lib.llama_model_chat_template(pointer, None)) or None
        self.gpus: tuple[Device, ...] = gpus  # (): the CPU computes all layers
        # llama.cpp counts the output matrix as a layer, beyond `layer_count`.
        self.output_on_gpu = bool(gpus) and not 0 <= params.n_gpu_layers <= self.layer_count
        self.all_on_gpu = self.output_on_gpu and not cpu_moe
        self.expert_count = int(self.metadata.get(f"{self.architecture}.expert_count", 0))
        recurrent = lib.llama_model_is_recurrent(pointer) or lib.llama_model_is_hybrid(pointer)
        # Whether the KV cache can drop any number of its last tokens.
        self.can_roll_back = not recurrent

    @property
    def rows_in_place(self) -> float:
        """The largest number of tokens in a pass for which llama.cpp does not copy the CPU's weights to a GPU."""
        if not self.gpus or self.all_on_gpu:
            return inf
        given = os.environ.get("GGML_OP_OFFLOAD_MIN_BATCH", "")
        return max((int(given) if given.isdecimal() else COPIED_FROM) - 1, 1)

    @property
    def gpu(self) -> Device | None:
        return self.gpus[0] if self.gpus else None

    @property
    def generates_text(self) -> bool:  # False for embedding, encoder-decoder and diffusion models
        causal = self.metadata.get(f"{self.architecture}.attention.causal", "true") == "true"
        pointer = self.pointer
        encoder, diffusion = lib.llama_model_has_encoder(pointer), lib.llama_model_is_diffusion(pointer)
        return causal and bool(lib.llama_model_has_decoder(pointer)) and not encoder and not diffusion

    @property
    def pointer(self) -> Any:
        assert self._finalizer.alive, f"{self.name} is closed"
        return self._pointer

    def use_adapters(self, context: Any) -> None:
        if self._adapters:
            pointers, scales = zip(*self._adapters, strict=True)
            count = len(pointers)
            known = (lib.llama_adapter_lora_p_ctypes * count)(*pointers)
            if lib.llama_set_adapters_lora(context, known, count, (ctypes.c_float * count)(*scales)):
                raise BackendFailure("llama.cpp cannot use these LoRA adapters", hint="run without --lora")

    def close(self) -> None:
        for context in list(self.contexts):
            context.close()
        self._finalizer()


def _loaded(path: Path, params: Any, remote: str) -> Any:
    forget_log_errors()
    stop = own_stop()
    with stopping_at(stop), DelayedInterrupt(stop), waiting_for(remote, LOADING_SECONDS):
        pointer = lib.llama_model_load_from_file(os.fsencode(path), params)
    if not pointer:
        stop.check()
        raise load_failure(path)
    return pointer


@lib.llama_progress_callback  # type: ignore[untyped-decorator]
def _on_progress(_share: float, _data: object) -> bool:
    made_progress()
    return not (current_stop().asked or ending.asked)  # returning False ends the load


def _free(pointer: Any, remote: str) -> None:
    with DelayedInterrupt(), waiting_for(remote):
        lib.llama_model_free(pointer)


def _whole(read: Callable[..., int], pointer: Any, index: int) -> str:
    size = 256
    while True:
        buffer = ctypes.create_string_buffer(size)
        needed = read(pointer, index, buffer, size)
        if needed < size:
            return text_of(buffer.value)
        size = needed + 1
