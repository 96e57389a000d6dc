"""A top-k sampler that runs on the device, so that only the k largest logits of a row cross the bus."""

import ctypes
import weakref
from typing import Any

from localspec.llama.library import lib


class TopK:
    """One chain with one k for the life of a context.

    A change makes llama.cpp plan its memory anew, and taking the chain out corrupts the heap on Vulkan devices.
    """

    def __init__(self, k: int, params: Any) -> None:  # noqa: ANN401  a C struct
        """The context that is made with `params` begins with the chain, so that its memory is planned with it."""
        self._chain: Any = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        lib.llama_sampler_chain_add(self._chain, lib.llama_sampler_init_top_k(k))
        # A context that cannot be made leaves the chain to nobody else.
        self._finalizer = weakref.finalize(self, lib.llama_sampler_free, self._chain)
        self._config = lib.llama_sampler_seq_config(
            seq_id=0, sampler=ctypes.cast(self._chain, ctypes.c_void_p)
        )
        params.samplers, params.n_samplers = ctypes.pointer(self._config), 1

    def installed_on(self, context: Any) -> bool:  # noqa: ANN401  a C pointer
        """Whether it runs on the device of the context that was made; it is taken out where it does not."""
        # Only the sampler's name tells.
        if lib.llama_sampler_name(lib.llama_sampler_chain_get(self._chain, 0)).startswith(b"+"):
            return True
        lib.llama_set_sampler(context, 0, None)
        self.free()
        return False

    def free(self) -> None:
        """Only after the context was freed or told to forget the chain."""
        self._finalizer()
