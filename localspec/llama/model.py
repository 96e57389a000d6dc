"""A loaded model file: its weights, its facts and its vocabulary."""

import ctypes
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from localspec.errors import BackendFailure, BadModelFile, BadSetting
from localspec.health.check import health
from localspec.health.devices import Device
from localspec.health.installed import missing_device
from localspec.health.stopping import Closing, Held, Stop, heeded, heeding
from localspec.llama import devices
from localspec.llama.failures import load_failure, reason
from localspec.llama.library import forget_log_errors, last_log_errors, lib, symbol, text_of
from localspec.llama.vocab import Vocab
from localspec.llama.watch import LOADING_SECONDS, made_progress, waiting_for

LONGEST_NAME = 30  # characters that a heading has room for
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"  # of a layer; llama.cpp's own pattern for --n-cpu-moe
_cpu_buffers = symbol("ggml_backend_cpu_buffer_type", ctypes.c_void_p, [])


class _Override(ctypes.Structure):
    """llama_model_tensor_buft_override: where the tensors go whose names hold a pattern."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffers", ctypes.c_void_p))


def chosen_gpus(names: Sequence[str] | None, gpu_layers: int | None) -> tuple[Device, ...]:
    """The GPUs to use, none for the CPU alone. Raises BadSetting for GPUs that this machine lacks."""
    if names is None:
        default = devices.default_gpu()
        gpus: tuple[Device, ...] = (default,) if default else ()
    else:
        known = {found.name.lower(): found for found in devices.devices()}
        for name in names:
            if name.lower() not in known:
                raise missing_device(name, (found.name for found in known.values()))
        chosen = (known[name.lower()] for name in names)
        gpus = tuple(device for device in chosen if device.is_gpu)
    if gpu_layers and gpu_layers > 0 and not gpus:
        raise BadSetting(
            f"{gpu_layers} layers cannot go to a GPU: llama.cpp has none to use here",
            hint="leave out --gpu-layers; `localspec doctor` prints how to install a build for a GPU",
        )
    return () if gpu_layers == 0 else gpus


def model_params(
    gpus: Sequence[Device],
    gpu_layers: int | None,
    split: Sequence[float],
    cpu_moe: int,
    mmap: bool | None,
) -> tuple[Any, tuple[Any, ...]]:
    """The parameters, and the buffers that they point into."""
    params = lib.llama_model_default_params()
    params.use_extra_bufts = health().extra_buffers
    if mmap is not None:
        params.load_mode = lib.LLAMA_LOAD_MODE_MMAP if mmap else lib.LLAMA_LOAD_MODE_NONE
    params.split_mode = lib.LLAMA_SPLIT_MODE_LAYER if len(gpus) > 1 else lib.LLAMA_SPLIT_MODE_NONE
    if not gpus:
        params.n_gpu_layers = 0
        params.main_gpu = -1  # not even for prompts, so that no memory of the GPU is taken
        return params, ()
    params.n_gpu_layers = -1 if gpu_layers is None else gpu_layers
    handles = (ctypes.c_void_p * (len(gpus) + 1))(*map(devices.handle_of, gpus))
    shares = (ctypes.c_float * lib.llama_max_devices())(*split)
    layers = "|".join(map(str, range(cpu_moe)))
    overrides = (_Override * 2)(_Override(rf"blk\.({layers}){_EXPERTS}".encode(), _cpu_buffers()))
    params.devices = ctypes.cast(handles, ctypes.c_void_p)
    params.tensor_split = shares
    if cpu_moe:
        params.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p)
    return params, (handles, shares, overrides)


def load_adapter(model: Any, path: Path) -> Any:  # noqa: ANN401  C pointers
    """Raises BadModelFile for one that llama.cpp cannot add to this model; it is freed with its model."""
    forget_log_errors()
    with Held():
        pointer = lib.llama_adapter_lora_init(model, os.fsencode(path))
    if not pointer:
        raise BadModelFile(
            f"{path.name} cannot be added to the target: {reason(last_log_errors())}",
            hint="use an adapter that was made for this model",
        )
    return pointer


class Model(Closing):
    """Weights in memory, on one device or over several; contexts made from it are closed with it."""

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
        """Load a GGUF; raises BadModelFile, NotEnoughMemory or BadSetting.

        devices: names from `devices()`; None is `default_gpu()`, none of them a GPU the CPU.
        gpu_layers: how many layers go to them, from the last; None is all, 0 leaves them alone.
        split: the shares of several devices in these layers; none given, by their free memory.
        cpu_moe: layers, from the first, whose experts stay on the CPU.
        mmap: map the file into memory instead of reading it; None leaves it to llama.cpp.
        lora: adapter files, and how much of each is added.
        prediction: load its prediction layers as well, for a head (MTP).
        no_alloc: read no weights and reserve no memory: contexts only log what they would need.
        """
        self.path = path
        gpus = chosen_gpus(devices, gpu_layers)
        # The parameters point into the buffers beside them, which must live until the model is loaded.
        params, _kept = model_params(gpus, gpu_layers, split, cpu_moe, mmap)
        params.load_mtp = prediction
        if no_alloc:
            params.no_alloc, params.load_mode = True, lib.LLAMA_LOAD_MODE_NONE
        # What devices of other machines are called in sentences.
        self.remote = " or ".join(gpu.remote for gpu in gpus if gpu.remote)
        params.progress_callback = _on_progress
        self._pointer: Any = (pointer := _loaded(path, params, self.remote))
        self.contexts: weakref.WeakSet[Closing] = weakref.WeakSet()  # that are closed before it
        self._finalizer = weakref.finalize(self, _free, pointer, self.remote)
        # Before any context: it is made with room for them.
        self._adapters = [(load_adapter(pointer, path), scale) for path, scale in lora]
        # Every key-value of the file that is not an array, as llama.cpp prints it.
        key_at, value_at = lib.llama_model_meta_key_by_index, lib.llama_model_meta_val_str_by_index
        self.metadata: Mapping[str, str] = {
            _whole(key_at, pointer, i): _whole(value_at, pointer, i)
            for i in range(lib.llama_model_meta_count(pointer))
        }
        self.vocab = Vocab(lib.llama_model_get_vocab(pointer))
        self.architecture = self.metadata.get("general.architecture", "")
        name = self.metadata.get("general.name", "")
        self.name = name if 0 < len(name) <= LONGEST_NAME else path.stem
        self.size_bytes: int = lib.llama_model_size(pointer)
        self.layer_count: int = lib.llama_model_n_layer(pointer)
        self.chat_template = text_of(lib.llama_model_chat_template(pointer, None)) or None
        self.gpus: tuple[Device, ...] = gpus  # none: the CPU computes all of it
        # llama.cpp counts the output matrix as one layer more than the file has.
        self.output_on_gpu = bool(gpus) and not 0 <= params.n_gpu_layers <= self.layer_count
        self.all_on_gpu = self.output_on_gpu and not cpu_moe
        self.expert_count = int(self.metadata.get(f"{self.architecture}.expert_count", 0))
        recurrent = lib.llama_model_is_recurrent(pointer) or lib.llama_model_is_hybrid(pointer)
        # Whether the cache can drop any number of its last tokens; see also Context.rollback_limit.
        self.can_roll_back = not recurrent

    @property
    def gpu(self) -> Device | None:
        """The first of its GPUs."""
        return self.gpus[0] if self.gpus else None

    @property
    def generates_text(self) -> bool:
        """False for embedding, encoder-decoder and diffusion models, which decode differently."""
        causal = self.metadata.get(f"{self.architecture}.attention.causal", "true") == "true"
        pointer = self.pointer
        encoder, diffusion = lib.llama_model_has_encoder(pointer), lib.llama_model_is_diffusion(pointer)
        return causal and bool(lib.llama_model_has_decoder(pointer)) and not encoder and not diffusion

    @property
    def pointer(self) -> Any:  # noqa: ANN401  a C pointer, for this package only
        assert self._finalizer.alive, f"{self.name} is closed"
        return self._pointer

    def use_adapters(self, context: Any) -> None:  # noqa: ANN401  a C pointer
        """From now on a context decodes with the model's adapters."""
        if self._adapters:
            pointers, scales = zip(*self._adapters, strict=True)
            count = len(pointers)
            known = (lib.llama_adapter_lora_p_ctypes * count)(*pointers)
            if lib.llama_set_adapters_lora(context, known, count, (ctypes.c_float * count)(*scales)):
                raise BackendFailure("llama.cpp refused the adapters", hint="run without --lora")

    def close(self) -> None:
        """Free the contexts, then the weights; idempotent."""
        for context in list(self.contexts):
            context.close()
        self._finalizer()


def _loaded(path: Path, params: Any, remote: str) -> Any:  # noqa: ANN401  C structs
    forget_log_errors()
    stop = heeded() or Stop()
    with heeding(stop), Held(stop), waiting_for(remote, LOADING_SECONDS):
        pointer = lib.llama_model_load_from_file(os.fsencode(path), params)
    if not pointer:
        stop.check()
        raise load_failure(path, last_log_errors())
    return pointer


@lib.llama_progress_callback  # type: ignore[untyped-decorator]
def _on_progress(_share: float, _data: object) -> bool:
    """llama.cpp ends the load if this is False."""
    made_progress()
    stop = heeded()
    return stop is None or not stop.asked


def _free(pointer: Any, remote: str) -> None:  # noqa: ANN401  a C pointer
    with Held(), waiting_for(remote):
        lib.llama_model_free(pointer)


def _whole(read: Callable[..., int], pointer: Any, index: int) -> str:  # noqa: ANN401  a C pointer
    """A string from C: asked twice, because C tells its length only while it writes."""
    size = 256
    while True:
        buffer = ctypes.create_string_buffer(size)
        needed = read(pointer, index, buffer, size)
        if needed < size:
            return text_of(buffer.value)
        size = needed + 1
