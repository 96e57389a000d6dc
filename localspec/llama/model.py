"""A loaded model file: its weights, its facts and its vocabulary."""

import ctypes
import os
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from localspec.errors import BadSetting
from localspec.health.check import health
from localspec.health.missing import missing_device
from localspec.llama import devices
from localspec.llama.failures import load_failure
from localspec.llama.library import forget_log_errors, last_log_errors, lib
from localspec.llama.modelfile import check_model_file
from localspec.llama.vocab import Vocab
from localspec.llama.watch import LOADING_SECONDS, made_progress, waiting_for

if TYPE_CHECKING:
    from localspec.llama.context import Context


class Model:
    """Weights in memory, on one device; contexts made from it are closed with it."""

    def __init__(
        self,
        path: Path,
        *,
        gpu_layers: int | None = None,
        no_alloc: bool = False,
        device: str | None = None,
    ) -> None:
        """Load a GGUF; raises BadModelFile, NotEnoughMemory or BadSetting.

        gpu_layers: how many layers go to the GPU; None is all where there is one, 0 leaves the GPU alone.
        device: a name from `devices()`; None is `default_gpu()`, or the CPU where there is none.
        no_alloc: read no weights and reserve no memory: contexts only log what they would need.
        """
        check_model_file(path)
        self.path = path
        # The parameters point into the handles, which have to live until the model is loaded.
        gpu = _chosen_gpu(gpu_layers, device)
        params, _handles = _model_params(gpu_layers, gpu)
        if no_alloc:
            params.no_alloc, params.load_mode = True, lib.LLAMA_LOAD_MODE_NONE
        self.remote = gpu.remote if gpu else ""  # what a device of another machine is called in sentences
        if self.remote:
            params.progress_callback = _on_progress
        forget_log_errors()
        with waiting_for(self.remote, LOADING_SECONDS):
            pointer = lib.llama_model_load_from_file(os.fsencode(path), params)
        if not pointer:
            raise load_failure(path, last_log_errors())
        self._pointer: Any = pointer
        self._contexts: weakref.WeakSet[Context] = weakref.WeakSet()
        self._finalizer = weakref.finalize(self, _free, pointer, self.remote)
        self.metadata: Mapping[str, str] = _metadata(pointer)
        self.vocab = Vocab(lib.llama_model_get_vocab(pointer))
        self.architecture = self.metadata.get("general.architecture", "")
        self.name = self.metadata.get("general.name") or path.stem
        self.size_bytes: int = lib.llama_model_size(pointer)
        self.parameter_count: int = lib.llama_model_n_params(pointer)
        self.layer_count: int = lib.llama_model_n_layer(pointer)
        self.trained_context_length: int = lib.llama_model_n_ctx_train(pointer)
        self.chat_template = _text(lib.llama_model_chat_template(pointer, None))
        self.gpu = gpu  # None: the CPU computes all of it
        # llama.cpp counts the output matrix as one layer more than the file has.
        self.output_on_gpu = gpu is not None and not 0 <= params.n_gpu_layers <= self.layer_count
        self.is_recurrent = bool(lib.llama_model_is_recurrent(pointer))
        self.is_hybrid = bool(lib.llama_model_is_hybrid(pointer))

    @property
    def generates_text(self) -> bool:
        """False for embedding, encoder-decoder and diffusion models, which decode differently."""
        causal = self.metadata.get(f"{self.architecture}.attention.causal", "true") == "true"
        pointer = self.pointer
        encoder, diffusion = lib.llama_model_has_encoder(pointer), lib.llama_model_is_diffusion(pointer)
        return causal and bool(lib.llama_model_has_decoder(pointer)) and not encoder and not diffusion

    @property
    def can_roll_back(self) -> bool:
        """Whether the cache can drop any number of its last tokens; see also Context.rollback_limit."""
        return not (self.is_recurrent or self.is_hybrid)

    @property
    def pointer(self) -> Any:  # noqa: ANN401  a C pointer, for this package only
        assert self._finalizer.alive, f"{self.name} is closed"
        return self._pointer

    def adopt(self, context: "Context") -> None:
        """Close this context before the model."""
        self._contexts.add(context)

    def close(self) -> None:
        """Free the contexts, then the weights. Saying it twice is saying it once."""
        for context in list(self._contexts):
            context.close()
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@lib.llama_progress_callback  # type: ignore[untyped-decorator]
def _on_progress(_share: float, _data: object) -> bool:
    made_progress()
    return True


def _free(pointer: Any, remote: str) -> None:  # noqa: ANN401  a C pointer
    with waiting_for(remote):
        lib.llama_model_free(pointer)


def _model_params(gpu_layers: int | None, gpu: devices.Device | None) -> tuple[Any, Any]:
    """The parameters, and the device handles that they point into."""
    params = lib.llama_model_default_params()
    params.use_extra_bufts = health().extra_buffers
    params.split_mode = lib.LLAMA_SPLIT_MODE_NONE  # the whole model on one device
    if gpu is None:
        params.n_gpu_layers = 0
        params.main_gpu = -1  # not even for prompts, so that no memory of the GPU is taken
        return params, None
    params.n_gpu_layers = -1 if gpu_layers is None else gpu_layers
    handles = (ctypes.c_void_p * 2)(devices.handle_of(gpu), None)
    params.devices = ctypes.cast(handles, ctypes.c_void_p)
    return params, handles


def _chosen_gpu(gpu_layers: int | None, device: str | None) -> devices.Device | None:
    """The GPU to use, None for the CPU alone; BadSetting for what this machine cannot do."""
    if device is None:
        gpu = devices.default_gpu()
    else:
        known = devices.devices()
        named = next((found for found in known if found.name.lower() == device.lower()), None)
        if named is None:
            raise missing_device(device, (found.name for found in known))
        gpu = named if named.is_gpu else None
    if gpu_layers and gpu_layers > 0 and gpu is None:
        raise BadSetting(
            f"{gpu_layers} layers cannot go to a GPU: llama.cpp has none to use here",
            hint="leave the number of GPU layers out, or see `localspec doctor` for a build that has one",
        )
    return None if gpu_layers == 0 else gpu


def _metadata(pointer: Any) -> dict[str, str]:  # noqa: ANN401  a C pointer
    """Every key-value of the file that is not an array, as llama.cpp prints it."""
    count = lib.llama_model_meta_count(pointer)
    read_key, read_value = lib.llama_model_meta_key_by_index, lib.llama_model_meta_val_str_by_index
    return {_whole(read_key, pointer, i): _whole(read_value, pointer, i) for i in range(count)}


def _whole(read: Callable[..., int], pointer: Any, index: int) -> str:  # noqa: ANN401  a C pointer
    """A string whose length C tells only while it writes: asked again with room for all of it."""
    size = 256
    while True:
        buffer = ctypes.create_string_buffer(size)
        needed = read(pointer, index, buffer, size)
        if needed < size:
            return _text(buffer.value) or ""
        size = needed + 1


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode("utf-8", "replace")
