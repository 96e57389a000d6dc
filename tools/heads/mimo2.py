"""Write a llama target in an architecture that has prediction layers, `mimo2`, its weights bit by bit.

    python -m tools.heads.mimo2 --target target.gguf --out build/heads/target-mimo2.gguf

That is the target of an MTP head: the attention of both is the same but for the order of the rotated columns.
"""

import argparse
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter

FACTS = {
    "context_length": GGUFWriter.add_context_length,
    "embedding_length": GGUFWriter.add_embedding_length,
    "feed_forward_length": GGUFWriter.add_feed_forward_length,
    "attention.head_count": GGUFWriter.add_head_count,
    "attention.head_count_kv": GGUFWriter.add_head_count_kv,
    "attention.key_length": GGUFWriter.add_key_length,
    "attention.value_length": GGUFWriter.add_value_length,
    "rope.dimension_count": GGUFWriter.add_rope_dimension_count,
    "rope.freq_base": GGUFWriter.add_rope_freq_base,
    "attention.layer_norm_rms_epsilon": GGUFWriter.add_layer_norm_rms_eps,
}


def writer_like(path: Path, target: GGUFReader, *, layers: int, heads: int) -> GGUFWriter:
    """A file with the facts and the tokenizer of a llama target."""
    writer = GGUFWriter(path, "mimo2")
    for name, add in FACTS.items():
        add(writer, target.fields[f"llama.{name}"].contents())
    writer.add_block_count(layers + heads)
    writer.add_vocab_size(len(target.fields["tokenizer.ggml.tokens"].contents()))
    writer.add_expert_feed_forward_length(target.fields["llama.feed_forward_length"].contents())
    # llama.cpp wants windows in this architecture: as long as the context they change nothing.
    writer.add_sliding_window(target.fields["llama.context_length"].contents())
    writer.add_sliding_window_pattern([True] * (layers + heads))
    writer.add_rope_freq_base_swa(target.fields["llama.rope.freq_base"].contents())
    if heads:
        writer.add_nextn_predict_layers(heads)
    copy_tokenizer(writer, target)
    return writer


def copy_tokenizer(writer: GGUFWriter, target: GGUFReader) -> None:
    """The tokens, how text is cut into them, and the chat template."""
    for name, field in target.fields.items():
        if name.startswith("tokenizer."):
            kind, *of = field.types
            writer.add_key_value(name, field.contents(), kind, of[0] if kind == GGUFValueType.ARRAY else None)


def halves(rows: np.ndarray, head_width: int) -> np.ndarray:
    """Rows of a query or key matrix whose neighbours rotate together, so that those half a head apart do."""
    pairs = rows.reshape(-1, head_width // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def finish(writer: GGUFWriter) -> None:
    """Write what was added."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_target(path: Path, source: Path) -> Path:
    """The target without a head."""
    target = GGUFReader(source)
    head_width = target.fields["llama.attention.key_length"].contents()
    writer = writer_like(path, target, layers=target.fields["llama.block_count"].contents(), heads=0)
    writer.add_name(target.fields["general.name"].contents())
    for tensor in target.tensors:
        turned = tensor.name.endswith(("attn_q.weight", "attn_k.weight"))
        data = halves(tensor.data, head_width) if turned else tensor.data
        writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
        if tensor.name == "token_embd.weight" and all(t.name != "output.weight" for t in target.tensors):
            writer.add_tensor("output.weight", data, raw_dtype=tensor.tensor_type)
    finish(writer)
    return path


def main() -> None:
    """Write it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    write_target(options.out, options.target)


if __name__ == "__main__":
    main()
