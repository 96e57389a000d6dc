"""Some of a target's own layers as a small model, in floats."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from localspec.errors import BadModelFile
from localspec.gguf.facts import header_at
from localspec.gguf.header import Header
from localspec.gguf.trimmed import EMBEDDINGS, output_tensor
from localspec.gguf.writing import TensorBytes, stored

# Those whose graph `student.py` computes, and whether positions turn neighbouring elements, or those half a head apart.
NEIGHBOURS = {"llama": True, "qwen2": False, "qwen3": False}
Weights = dict[str, np.ndarray]  # by the names of the file

NORM, OUTPUT, FACTORS = "output_norm.weight", "output.weight", "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers that a model is made of, whatever the count of its layers."""

    heads: int
    kv_heads: int
    head_width: int
    rope_base: float
    eps: float
    neighbours: bool  # see NEIGHBOURS

    @classmethod
    def of(cls, header: Header) -> "Shape":
        """Raises BadModelFile for a model that cannot be computed here."""
        name = header.text("general.architecture")
        dense = not header.number(f"{name}.expert_count")
        heads, width = (
            header.number(f"{name}.{key}") for key in ("attention.head_count", "embedding_length")
        )
        scaling = header.text(f"{name}.rope.scaling.type")
        if name not in NEIGHBOURS or not (heads and width and dense and scaling in ("", "none")):
            raise BadModelFile(
                f"no draft can be made of layers of {header.text('general.name') or 'this target'}: "
                f"its architecture is {name}{' with experts' if not dense else ''}{scaling and f', {scaling}'}",
                hint=f"targets of {', '.join(NEIGHBOURS)} can give some, or name a draft of another vocabulary",
            )
        head_width = header.number(f"{name}.attention.key_length") or width // heads
        base, eps = (
            header.get(f"{name}.{key}") for key in ("rope.freq_base", "attention.layer_norm_rms_epsilon")
        )
        return cls(
            heads,
            header.number(f"{name}.attention.head_count_kv") or heads,
            head_width,
            float(base) if isinstance(base, float) else 10_000.0,
            float(eps) if isinstance(eps, float) else 1e-5,
            NEIGHBOURS[name],
        )


class ModelFile:
    """A GGUF whose tensors are read as floats."""

    def __init__(self, path: Path) -> None:
        self.path, self.header = path, header_at(path)
        self.tensors = {tensor.name: tensor for tensor in self.header.tensors}

    def tensor(self, name: str, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Some rows of a matrix, or a whole tensor. Needs the package gguf, as `localspec[fit]` has it."""
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        found = self.tensors[name]
        values = dequantize(self.stored(name).data[rows], GGMLQuantizationType(found.type))
        return np.array(values, np.float32).reshape(-1, *found.shape[-2::-1])

    def stored(self, name: str) -> TensorBytes:
        """A tensor as the file has it."""
        return stored(self.path, self.tensors[name], self.header.data_offset)

    def cut(self, layers: Sequence[int], token_ids: np.ndarray) -> Weights:
        """Weights of a model of these layers that says these tokens."""
        weights = {
            f"blk.{place}.{name.split('.', 2)[2]}": self.tensor(name)
            for place, layer in enumerate(layers)
            for name in self.tensors
            if name.startswith(f"blk.{layer}.")
        }
        output = self.tensor(output_tensor(self.header).name, token_ids)
        return {**weights, NORM: self.tensor(NORM), OUTPUT: output}

    def rotations(self, shape: Shape, length: int) -> np.ndarray:
        """By what complex number each pair is turned at each position [length, 1, pairs]."""
        speed = shape.rope_base ** -(np.arange(0, shape.head_width, 2) / shape.head_width)
        if FACTORS in self.tensors:
            speed = speed / self.tensor(FACTORS)
        turned: np.ndarray = np.exp(1j * np.arange(length)[:, None, None] * speed).astype(np.complex64)
        return turned

    def embeddings(self) -> np.ndarray:
        return self.tensor(EMBEDDINGS)
