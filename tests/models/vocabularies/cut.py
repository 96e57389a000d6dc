"""Cuts the vocabularies of this folder out of those in llama-cpp-python's source distribution.

    python tests/models/vocabularies/cut.py SDIST/vendor/llama.cpp/models

Kept are the first 250 tokens and the last 50, the tokens that begin and end a text, and as many merges.
"""

import sys
from pathlib import Path

import gguf

NAMES = ("llama-bpe", "qwen2", "gemma-4", "llama-spm", "phi-3", "gpt-2")
HEAD, TAIL = 250, 50
_KEY = "tokenizer.ggml."


def cut(source: Path, destination: Path) -> None:
    values = {key: field.contents() for key, field in gguf.GGUFReader(source).fields.items()}
    tokens = values[_KEY + "tokens"]
    ids = {role: values[f"{_KEY}{role}_token_id"] for role in ("bos", "eos")}
    kept = sorted({*range(HEAD), *range(len(tokens) - TAIL, len(tokens)), *ids.values()})
    writer = gguf.GGUFWriter(destination, values["general.architecture"])
    writer.add_tokenizer_model(values[_KEY + "model"])
    if _KEY + "pre" in values:
        writer.add_tokenizer_pre(values[_KEY + "pre"])
    writer.add_token_list([tokens[token] for token in kept])
    writer.add_token_types([values[_KEY + "token_type"][token] for token in kept])
    if _KEY + "scores" in values:
        writer.add_token_scores([values[_KEY + "scores"][token] for token in kept])
    if _KEY + "merges" in values:
        writer.add_token_merges(values[_KEY + "merges"][:HEAD])
    writer.add_bos_token_id(kept.index(ids["bos"]))
    writer.add_eos_token_id(kept.index(ids["eos"]))
    for flag in ("add_bos_token", "add_eos_token"):
        if _KEY + flag in values:
            writer.add_bool(_KEY + flag, bool(values[_KEY + flag]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


if __name__ == "__main__":
    for name in NAMES:
        cut(Path(sys.argv[1]) / f"ggml-vocab-{name}.gguf", Path(__file__).parent / f"{name}.gguf")
