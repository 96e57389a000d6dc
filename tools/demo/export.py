"""Write the trained pair as GGUF files.

python -m tools.demo.export --weights build/demo --out localspec/demo
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType
from gguf.quants import quantize

from tools.demo import vocabulary
from tools.demo.model import SHAPES, Llama, Shape

TYPES = {"f32": GGMLQuantizationType.F32, "f16": GGMLQuantizationType.F16, "q8_0": GGMLQuantizationType.Q8_0}
FILE_TYPES = {
    "f32": LlamaFileType.ALL_F32,
    "f16": LlamaFileType.MOSTLY_F16,
    "q8_0": LlamaFileType.MOSTLY_Q8_0,
}
SHIPPED = {"target": "q8_0", "draft": "q8_0"}
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def write_facts(writer: GGUFWriter, role: str, shape: Shape, kind: str) -> None:
    """What the model is and which shape it has."""
    writer.add_name(f"localspec demo {role}")
    writer.add_description("A tiny demonstration model of localspec, trained by tools/demo.")
    writer.add_license("mit")
    writer.add_file_type(FILE_TYPES[kind])
    writer.add_vocab_size(shape.vocabulary)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_width)
    writer.add_value_length(shape.head_width)
    writer.add_rope_dimension_count(shape.head_width)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.eps)


def write_vocabulary(writer: GGUFWriter) -> None:
    """Tokens, merges, control tokens and the chat template."""
    learned = json.loads(vocabulary.FILE.read_text(encoding="utf-8"))["model"]
    tokens = sorted(learned["vocab"], key=learned["vocab"].__getitem__)
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in learned["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(vocabulary.PRE)
    writer.add_token_list(tokens)
    writer.add_token_types(
        [TokenType.CONTROL if t in vocabulary.CONTROL else TokenType.NORMAL for t in tokens]
    )
    writer.add_token_merges(merges)
    writer.add_bos_token_id(tokens.index(vocabulary.END_OF_TEXT))
    writer.add_eos_token_id(tokens.index(vocabulary.IM_END))
    writer.add_eot_token_id(tokens.index(vocabulary.IM_END))
    writer.add_pad_token_id(tokens.index(vocabulary.END_OF_TEXT))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def write_tensors(writer: GGUFWriter, model: Llama, kind: str) -> None:
    """Matrices in the wanted type, norms in single precision."""
    for name, tensor in model.state_dict().items():
        values = tensor.detach().float().cpu().numpy()
        type_ = TYPES[kind] if values.ndim == 2 else GGMLQuantizationType.F32
        writer.add_tensor(name, quantize(np.ascontiguousarray(values), type_), raw_dtype=type_)


def export(model: Llama, role: str, kind: str, path: Path) -> None:
    """Write one model."""
    writer = GGUFWriter(path, "llama")
    write_facts(writer, role, model.shape, kind)
    write_vocabulary(writer)
    write_tensors(writer, model, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read(weights: Path, role: str) -> Llama:
    """The trained model, or a model with random weights where there is none yet."""
    torch.manual_seed(0)
    model = Llama(SHAPES[role])
    if (path := weights / f"{role}.pt").exists():
        model.load_state_dict(torch.load(path, map_location="cpu")["model"])
    else:
        print(f"{path} does not exist: writing random weights")
    return model


def main() -> None:
    """Export both models."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", type=Path, default=Path("build/demo"))
    parser.add_argument("--out", type=Path, default=Path("localspec/demo"))
    parser.add_argument("--type", choices=TYPES, help="one type for both instead of the shipped ones")
    options = parser.parse_args()
    for role in SHAPES:
        path = options.out / f"demo-{role}.gguf"
        export(read(options.weights, role), role, options.type or SHIPPED[role], path)
        print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
