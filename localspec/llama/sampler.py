"""A top-k sampler that runs on the device, so that only the k largest logits of a row cross the bus."""

from typing import Any

from localspec.llama.library import lib


class TopK:
    """Owns the chain that llama.cpp keeps a pointer to while it is installed."""

    def __init__(self) -> None:
        self._chain: Any = None
        self.k: int | None = None  # what is installed now

    def install(self, context: Any, k: int | None) -> bool:  # noqa: ANN401  a C pointer
        """Replace the chain by one that keeps k logits, or by none; False where the device cannot."""
        if k == self.k:
            return True  # a change makes llama.cpp plan its memory anew
        lib.llama_set_sampler(context, 0, None)
        self.free()
        if k is None:
            return True
        self._chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        lib.llama_sampler_chain_add(self._chain, lib.llama_sampler_init_top_k(k))
        # llama_set_sampler is true even where the device lacks the operation; only the sampler's name tells.
        if lib.llama_set_sampler(context, 0, self._chain) and self._runs_on_device():
            self.k = k
            return True
        lib.llama_set_sampler(context, 0, None)
        self.free()
        return False

    def free(self) -> None:
        """Only after the context was freed or told to forget the chain."""
        chain, self._chain, self.k = self._chain, None, None
        if chain:
            lib.llama_sampler_free(chain)

    def _runs_on_device(self) -> bool:
        return bool(lib.llama_sampler_name(lib.llama_sampler_chain_get(self._chain, 0)).startswith(b"+"))
