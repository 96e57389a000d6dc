"""The parameters that open a model and its context: a plan chooses them, and the C boundary uses them."""

from dataclasses import dataclass
from typing import Any

from localspec.gguf.trimmed import TokenTable

CHECKPOINT_SHARE = 0.1  # checkpoints may take this share of the bytes of the weights


@dataclass(frozen=True, slots=True)
class Load:
    length: int  # maximum tokens in each slot
    kv_type: str = "f16"
    devices: tuple[str, ...] | None = None  # names of GPUs; () for only the CPU, None for the default GPU
    gpu_layers: int | None = None  # number of last layers on GPUs, the output layer included; None: all
    split: tuple[float, ...] = ()  # each GPU's share of the layers on GPUs
    cpu_moe: int = 0  # number of first layers whose experts stay on the CPU
    flash_attn: str = "auto"  # "auto": on if the devices of all layers support it
    rows_max: int = 9  # maximum rows of logits for one slot in a pass: largest draft depth + 1
    snapshots: int = 0  # number of copies of a recurrent state; with each, one more token can be rolled back
    steps_back: bool = False  # whether a recurrent draft model keeps its newest checkpoint on the device
    prediction: bool = False  # whether to load the model's prediction layers
    slots: int = 1  # slots of the context, each with a KV cache of `length` tokens
    top_k_rows: bool = False  # whether a target may return only top-k logits if the sampler needs no more
    image_rows: int = 0  # most tokens of an image that needs all of them in one pass; 0: none
    top_k: bool = False  # whether a draft with its output layer on a GPU returns only top-k logits
    # For a draft: the size of the target's vocabulary. Rows then have only logits of tokens that both models have.
    vocabulary: int | None = None
    table: TokenTable | None = None  # for a trimmed model: its embeddings and output tokens
    threads: int | None = None  # number of CPU threads; None: one for each physical core
    batch_size: int | None = None  # maximum tokens in a call of llama.cpp, and in a chunk of a prompt

    @property
    def spills(self) -> bool:
        """Whether a model that uses GPUs has some layers or experts on the CPU."""
        return bool(self.devices) and (self.gpu_layers is not None or self.cpu_moe > 0)

    @property
    def place(self) -> dict[str, Any]:
        """Return this load as keyword arguments of `Model`."""
        names = ("devices", "gpu_layers", "split", "cpu_moe", "prediction")
        return {name: getattr(self, name) for name in names}
