"""Write drafts that are parts of models: with fewer output tokens, or with fewer layers."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from localspec.errors import BadModelFile, BadSetting
from localspec.gguf.facts import TOKENIZER, is_trimmed, table_path
from localspec.gguf.header import TOKENS, Entry, Header, parts_of
from localspec.gguf.trimmed import (
    EMBEDDINGS,
    PROVENANCE,
    SCALES,
    TABLE_HASH,
    TOKEN_IDS,
    UINT32,
    TensorBytes,
    TensorFile,
    output_tensor,
    text_entry,
    write_gguf,
)
from localspec.models.local_models import ModelFile

# Architectures that `training.py` can train. True: RoPE pairs neighbours; False: it pairs elements half a head apart.
NEIGHBOURS = {"llama": True, "qwen2": False, "qwen3": False, "gemma3": False}

BLOCK = 32  # elements in a block of Q8_0
I32 = 26
LEAST = 256  # fewest tokens of the trimmed vocabulary; with fewer, a draft could hardly write a text
NORM, OUTPUT, FACTORS = "output_norm.weight", "output.weight", "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class ModelShape:
    head_width: int
    rope_base: float
    eps: float
    neighbours: bool  # whether RoPE pairs neighbouring elements
    scale: float  # factor by which embeddings are multiplied
    gelu: bool  # whether the gate's activation is GELU, not SiLU
    window: int  # number of tokens in the window of local layers; 0 without local layers
    local_base: float  # rope_base of local layers
    period: int  # every `period`-th layer is global

    @classmethod
    def of(cls, header: Header) -> "ModelShape":
        """Return the shape of a model. Raises BadModelFile if `training.py` cannot train the model."""
        name = header.architecture
        heads, width = header.of_model("attention.head_count"), header.of_model("embedding_length")
        beyond = {
            "no attention": not (heads and width),
            "experts": header.of_model("expert_count"),
            "scaled positions": header.text(f"{name}.rope.scaling.type") not in ("", "none"),
            "capped logits": header.get(f"{name}.final_logit_softcapping"),
        }
        found = " and ".join(what for what, there in beyond.items() if there)
        if name not in NEIGHBOURS or found:
            model, kinds = header.text("general.name") or "this target", " or ".join(NEIGHBOURS)
            what = f"architecture {name}{found and f' with {found}'} is not supported"
            hint = f"use a target of architecture {kinds}, or draft with another small model: --draft FILE"
            raise BadModelFile(f"no draft can be made from the layers of {model}: {what}", hint=hint)

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


class SourceFile(TensorFile):
    def cut(self, layers: Sequence[int], token_ids: np.ndarray) -> dict[str, np.ndarray]:
        """Return the weights of `layers`, of the last norm, and of the output rows of `token_ids`."""
        weights = {
            f"blk.{place}.{name.split('.', 2)[2]}": self.tensor(name)
            for place, layer in enumerate(layers)
            for name in self.tensors
            if name.startswith(f"blk.{layer}.")
        }
        output = self.tensor(output_tensor(self.header).name, token_ids)
        return {**weights, NORM: self.tensor(NORM), OUTPUT: output}

    def rotations(self, shape: ModelShape, length: int) -> np.ndarray:
        """Return RoPE's rotations: complex64 [global and local layers, position, 1, pair of elements]."""
        bases = np.array([[shape.rope_base], [shape.local_base]])
        speed = bases ** -(np.arange(0, shape.head_width, 2) / shape.head_width)
        if FACTORS in self.tensors:
            speed = speed / self.tensor(FACTORS)
        angles = np.arange(length)[:, None, None] * speed[:, None, None]
        return np.asarray(np.exp(1j * angles), np.complex64)


def trim(source: Path, path: Path, token_ids: Sequence[int] | np.ndarray) -> Path:
    """Write a copy of `source` that can write only `token_ids`, and a file with the id of each of its output rows."""
    ids = np.unique(np.asarray(token_ids, np.int32))
    header, file = trimmable(source, len(ids)), TensorFile(source)
    embeddings, output = file.stored(EMBEDDINGS), file.stored(output_tensor(header).name)
    assert 0 <= ids[0] <= ids[-1] < len(embeddings.data), "a token that the draft lacks"
    others = [file.stored(name) for name in file.tensors if name not in (EMBEDDINGS, OUTPUT)]
    output_tokens = TensorBytes(EMBEDDINGS, (output.shape[0], len(ids)), output.type, output.data[ids])
    return write_trimmed(path, header, embeddings, ids, output_tokens, others)


def write_trimmed(
    path: Path,
    header: Header,
    embeddings: TensorBytes,
    ids: np.ndarray,
    output_tokens: TensorBytes,
    others: Sequence[TensorBytes],
) -> Path:
    """Write a token table (`embeddings`, `ids`) and a trimmed draft (the other tensors), each into a file."""
    digest = hashlib.sha256(embeddings.data.data)
    digest.update(ids.tobytes())
    tie = {TABLE_HASH: text_entry(digest.hexdigest())}
    table = [embeddings, TensorBytes(TOKEN_IDS, (len(ids),), I32, ids)]
    write_gguf(table_path(path), {"general.architecture": text_entry("token-table"), **tie}, table)
    entries = {key: entry for key, entry in header.entries.items() if key != TOKENS} | tie
    entries |= {
        TOKENIZER: entries["tokenizer.ggml.model"],
        "tokenizer.ggml.model": text_entry("none"),
        f"{header.architecture}.vocab_size": Entry(UINT32, len(ids)),
    }
    return write_gguf(path, entries, [output_tokens, *others], header.vocabulary)


def trimmable(source: Path, count: int) -> Header:
    header = ModelFile.at(source).header
    faults = {
        "is trimmed already": is_trimmed(header),
        f"is of the architecture {header.architecture}, which localspec cannot trim": (
            header.architecture not in SCALES
        ),
        "is split into several files": len(parts_of(source)) > 1,
        "has no vocabulary": header.vocabulary is None,
    }
    if why := next((fault for fault, there in faults.items() if there), ""):
        hint = f"use a draft in one file, of architecture {', '.join(SCALES)}"
        raise BadModelFile(f"{source.name} {why}", hint=hint)
    whole = header.vocabulary.count if header.vocabulary else 0
    if not LEAST <= count < whole:
        hint = f"give a number of tokens with --trim N: at least {LEAST}, and fewer than {whole:,}"
        what = f"the vocabulary of {source.name} has {whole:,} tokens and cannot be trimmed to {count:,}"
        raise BadSetting(what, hint=hint)
    return header


def export(
    path: Path,
    source: SourceFile,
    weights: Mapping[str, np.ndarray],
    token_ids: np.ndarray,
    origin: Mapping[str, str],
) -> Path:
    """Write a draft with output rows for `token_ids`, and `origin` as metadata. Raises OSError."""
    header = source.header
    layers = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blk."))
    name = f"{layers} layers of {header.text('general.name') or source.path.stem}, fitted"
    other = ("general.file_type", "general.quantization_version")
    entries = {key: entry for key, entry in header.entries.items() if key not in other}
    entries |= {"general.name": text_entry(name), f"{header.architecture}.block_count": Entry(UINT32, layers)}
    entries |= {f"{PROVENANCE}.{key}": text_entry(value) for key, value in origin.items()}
    tensors = [written(name, value) for name, value in weights.items() if name != OUTPUT]
    tensors += [source.stored(name) for name in source.tensors if name == FACTORS]
    output_tokens = written(OUTPUT, weights[OUTPUT])._replace(name=EMBEDDINGS)
    embeddings, of_draft = source.stored(EMBEDDINGS), replace(header, entries=entries)
    return write_trimmed(path, of_draft, embeddings, token_ids, output_tokens, tensors)


def written(name: str, value: np.ndarray) -> TensorBytes:
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    values = np.ascontiguousarray(value, np.float32)
    kind = GGMLQuantizationType.F32
    if values.ndim == 2:
        kind = GGMLQuantizationType.F16 if values.shape[1] % BLOCK else GGMLQuantizationType.Q8_0
    return TensorBytes(name, values.shape[::-1], int(kind), quantize(values, kind))
