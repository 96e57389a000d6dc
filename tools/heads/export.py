"""Write a head as GGUF: the `eagle3` of llama.cpp, with the target's tokenizer."""

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter
from gguf.quants import quantize
from head import Head
from target import File
from torch import Tensor

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


def write(path: Path, target: File, head: Head, words: Tensor, layers: tuple[int, ...], kind: str) -> None:
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
    _copy_tokenizer(writer, target)
    if len(words) < s.vocabulary:
        writer.add_tensor("d2t", words.numpy().astype(np.int64))
    for name, parameter in head.named_parameters():
        values = np.ascontiguousarray(parameter.detach().float().numpy())
        type_ = TYPES[kind] if values.ndim == 2 else GGMLQuantizationType.F32
        writer.add_tensor(f"{TENSORS[name]}.weight", quantize(values, type_), raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.replace(path)


def _copy_tokenizer(writer: GGUFWriter, target: File) -> None:
    for name, field in target.reader.fields.items():
        if name.startswith("tokenizer.ggml."):
            kind, *of = field.types
            writer.add_key_value(name, field.contents(), kind, of[0] if kind == GGUFValueType.ARRAY else None)
