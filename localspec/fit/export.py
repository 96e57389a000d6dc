"""Writes learned weights as a trimmed draft, with its source's tokenizer, embeddings and facts."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from localspec.fit.cut import FACTORS, OUTPUT, TensorFile
from localspec.fit.trim import write_trimmed
from localspec.gguf.header import Entry
from localspec.gguf.trimmed import EMBEDDINGS, PROVENANCE, UINT32, TensorBytes, text_entry

BLOCK = 32  # elements that Q8_0 takes at once


def export(
    path: Path,
    source: TensorFile,
    weights: Mapping[str, np.ndarray],
    token_ids: np.ndarray,
    said: Mapping[str, str],
) -> Path:
    """Write a draft with the output rows of `token_ids`; `said` describes its origin. Raises OSError."""
    header = source.header
    layers = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blk."))
    of_source = {
        key: entry
        for key, entry in header.entries.items()
        if key not in ("general.name", "general.file_type", "general.quantization_version")
    }
    entries = of_source | {
        "general.name": text_entry(
            f"{layers} layers of {header.text('general.name') or source.path.stem}, fitted"
        ),
        f"{header.text('general.architecture')}.block_count": Entry(UINT32, layers),
        **{f"{PROVENANCE}.{key}": text_entry(value) for key, value in said.items()},
    }
    tensors = [written(name, value) for name, value in weights.items() if name != OUTPUT]
    kept = [source.stored(t.name) for t in header.tensors if t.name == FACTORS]
    output_tokens = replace(written(OUTPUT, weights[OUTPUT]), name=EMBEDDINGS)
    return write_trimmed(
        path,
        replace(header, entries=entries),
        source.stored(EMBEDDINGS),
        token_ids,
        output_tokens,
        [*tensors, *kept],
    )


def written(name: str, value: np.ndarray) -> TensorBytes:
    """A tensor as it is stored: matrices in Q8_0, or in F16 where their rows are no whole blocks."""
    values = np.ascontiguousarray(value, np.float32)
    kind = GGMLQuantizationType.F32
    if values.ndim == 2:
        kind = GGMLQuantizationType.F16 if values.shape[1] % BLOCK else GGMLQuantizationType.Q8_0
    return TensorBytes(name, values.shape[::-1], int(kind), quantize(values, kind))
