"""A small model of some of a target's own layers, in floats."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from localspec.errors import BadModelFile
from localspec.gguf.header import Header
from localspec.gguf.trimmed import EMBEDDINGS, SCALES, TensorBytes, output_tensor, stored
from localspec.models.places import ModelFile

# Those whose graph `student.py` computes, and whether positions turn neighbouring elements, or those half a head apart.
NEIGHBOURS = {"llama": True, "qwen2": False, "qwen3": False, "gemma3": False}
Weights = dict[str, np.ndarray]  # by the names of the file

NORM, OUTPUT, FACTORS = "output_norm.weight", "output.weight", "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model, except its number of layers."""

    head_width: int
    rope_base: float
    eps: float
    neighbours: bool  # see NEIGHBOURS
    scale: float  # of the embeddings
    gelu: bool  # what opens the gates: GELU, or SiLU
    window: int  # tokens that a local layer sees; 0 where all layers see all
    local_base: float  # of positions in local layers
    period: int  # one layer in this number sees all

    @classmethod
    def of(cls, header: Header) -> "Shape":
        """Raises BadModelFile for a model that cannot be computed here."""
        name = header.architecture
        heads, width = header.of_model("attention.head_count"), header.of_model("embedding_length")
        beyond = {
            "experts": header.of_model("expert_count"),
            "scaled positions": header.text(f"{name}.rope.scaling.type") not in ("", "none"),
            "capped logits": header.get(f"{name}.final_logit_softcapping"),
        }
        found = " and ".join(what for what, there in beyond.items() if there)
        if name not in NEIGHBOURS or not (heads and width) or found:
            raise BadModelFile(
                f"no draft can be made of layers of {header.text('general.name') or 'this target'}: "
                f"its architecture is {name}{found and f' with {found}'}",
                hint=f"targets of {', '.join(NEIGHBOURS)} can give some, or name a draft of another vocabulary",
            )

        def real(key: str, otherwise: float) -> float:
            value = header.get(f"{name}.{key}")
            return float(value) if isinstance(value, float) else otherwise

        gemma = name == "gemma3"
        return cls(
            head_width=header.of_model("attention.key_length") or width // heads,
            rope_base=real("rope.freq_base", 10_000.0),
            eps=real("attention.layer_norm_rms_epsilon", 1e-5),
            neighbours=NEIGHBOURS[name],
            scale=SCALES[name](width),
            gelu=gemma,
            window=header.of_model("attention.sliding_window") if gemma else 0,
            local_base=real("rope.freq_base_swa", 10_000.0),
            period=header.of_model("attention.sliding_window_pattern") or 6,
        )

    def is_local(self, layer: int) -> bool:
        """As llama.cpp counts the layers of the file."""
        return self.window > 0 and (layer + 1) % self.period > 0


class TensorFile:
    """A GGUF whose tensors are read as floats."""

    def __init__(self, path: Path) -> None:
        self.path, self.header = path, ModelFile.at(path).header
        self.tensors = {tensor.name: tensor for tensor in self.header.tensors}

    def tensor(self, name: str, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Some rows of a matrix, or a whole tensor. Needs the package gguf."""
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        found = self.tensors[name]
        values = dequantize(self.stored(name).data[rows], GGMLQuantizationType(found.type))
        return np.array(values, np.float32).reshape(-1, *found.shape[-2::-1])

    def stored(self, name: str) -> TensorBytes:
        """A tensor as the file has it."""
        return stored(self.path, self.tensors[name], self.header.data_offset)

    def cut(self, layers: Sequence[int], token_ids: np.ndarray) -> Weights:
        """Weights of a model of these layers with the output rows of these tokens."""
        weights = {
            f"blk.{place}.{name.split('.', 2)[2]}": self.tensor(name)
            for place, layer in enumerate(layers)
            for name in self.tensors
            if name.startswith(f"blk.{layer}.")
        }
        output = self.tensor(output_tensor(self.header).name, token_ids)
        return {**weights, NORM: self.tensor(NORM), OUTPUT: output}

    def rotations(self, shape: Shape, length: int) -> np.ndarray:
        """The complex rotation of each pair at each position, in global and in local layers.

        complex64 [2, length, 1, pairs]
        """
        bases = np.array([[shape.rope_base], [shape.local_base]])
        speed = bases ** -(np.arange(0, shape.head_width, 2) / shape.head_width)
        if FACTORS in self.tensors:
            speed = speed / self.tensor(FACTORS)
        angles = np.arange(length)[:, None, None] * speed[:, None, None]
        turned: np.ndarray = np.exp(1j * angles).astype(np.complex64)
        return turned

    def embeddings(self) -> np.ndarray:
        return self.tensor(EMBEDDINGS)
