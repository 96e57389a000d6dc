"""Write heads as GGUF, with the target's tokenizer: the `eagle3` of llama.cpp, or a prediction layer of its `mimo2`."""

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from torch import Tensor

from tools.heads.head import Head
from tools.heads.mimo2 import copy_tokenizer, finish, halves, writer_like
from tools.heads.target import File

TYPES = {
    "f16": GGMLQuantizationType.F16,
    "q8_0": GGMLQuantizationType.Q8_0,
    "q4_0": GGMLQuantizationType.Q4_0,
}
TENSORS = {
    "enc_norm": "enc.output_norm",
    "fc": "fc",
    "output_norm": "output_norm",
    "output": "output",
    **{
        name: f"blk.0.{name}"
        for name in (
            *("attn_norm", "attn_norm_2", "attn_q", "attn_k", "attn_v", "attn_output"),
            *("ffn_norm", "ffn_gate", "ffn_up", "ffn_down"),
        )
    },
}


def write_eagle3(
    path: Path, target: File, head: Head, words: Tensor, layers: tuple[int, ...], kind: str
) -> None:
    """Write beside the file, then move; `words` are the target's ids of the draft's tokens."""
    part = path.with_suffix(".gguf.part")
    writer = GGUFWriter(part, "eagle3")
    s = head.shape
    writer.add_name(f"EAGLE-3 head of {target.fact('general.name', 'a target')}")
    writer.add_context_length(target.fact("llama.context_length"))
    writer.add_embedding_length(s.width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(s.ffn)
    writer.add_head_count(s.heads)
    writer.add_head_count_kv(s.kv_heads)
    writer.add_key_length(s.head_width)
    writer.add_value_length(s.head_width)
    writer.add_rope_dimension_count(s.head_width)
    writer.add_rope_freq_base(s.rope_base)
    writer.add_layer_norm_rms_eps(s.eps)
    writer.add_array("eagle3.target_layers", list(layers))
    writer.add_uint32("eagle3.target_hidden_size", s.width)
    writer.add_bool("eagle3.norm_before_residual", False)
    writer.add_bool("eagle3.norm_before_fc", True)
    copy_tokenizer(writer, target.reader)
    if len(words) < s.vocabulary:
        writer.add_tensor("d2t", words.numpy().astype(np.int64))
    for name, parameter in head.named_parameters():
        _add(writer, TENSORS[name], values_of(parameter), kind)
    finish(writer)
    part.replace(path)


def write_mtp(
    path: Path, target: File, head: Head, words: Tensor, layers: tuple[int, ...], kind: str
) -> None:
    """As above, a file of its own for the target that `mimo2.py` writes; the embedding takes 4 bits."""
    part = path.with_suffix(".gguf.part")
    s = head.shape
    writer = writer_like(part, target.reader, layers=s.layers, heads=1)
    writer.add_name(f"MTP head of {target.fact('general.name', 'a target')}")
    _add(writer, "token_embd", values_of(head.embedding), "q4_0")
    _add(writer, "output", values_of(head.output), kind)
    _add(writer, "output_norm", values_of(head.output_norm), kind)
    q, k = (halves(values_of(getattr(head, f"attn_{name}")), s.head_width) for name in "qk")
    tensors = {"attn_qkv": np.concatenate([q, k, values_of(head.attn_v)])}
    tensors |= {f"nextn.{name}": values_of(getattr(head, name)) for name in ("enorm", "hnorm", "eh_proj")}
    of_layer = ("attn_norm", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
    tensors |= {name: values_of(getattr(head, name)) for name in of_layer}
    for name, values in tensors.items():
        _add(writer, f"blk.{s.layers}.{name}", values, kind)
    finish(writer)
    part.replace(path)


WRITE = {"eagle3": write_eagle3, "mtp": write_mtp}


def values_of(parameter: Tensor) -> np.ndarray:
    """In single precision."""
    return np.ascontiguousarray(parameter.detach().float().numpy())


def _add(writer: GGUFWriter, name: str, values: np.ndarray, kind: str) -> None:
    type_ = TYPES[kind] if values.ndim == 2 else GGMLQuantizationType.F32
    writer.add_tensor(f"{name}.weight", quantize(values, type_), raw_dtype=type_)
