"""Vocabularies of any size in the two tokenizer families that matter: byte-level BPE and SentencePiece."""

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import gguf

from localspec.llama.library import lib
from localspec.llama.model import Vocab

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_FREQUENT = " etaoinshrdlucmwfgypbvk.,'\nETAOINSHRDLUCMWFGYPBVKJjxqzXQZ0123456789()[]{}:;-_=+*/\"<>"


def add_facts(writer: gguf.GGUFWriter, **facts: object) -> None:
    """Call `writer.add_NAME` with each value."""
    for name, value in facts.items():
        getattr(writer, f"add_{name}")(value)


def byte_letters() -> dict[int, str]:
    """GPT-2's printable stand-in for every byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in printable)
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def add_bpe(writer: gguf.GGUFWriter, size: int, add_bos: bool, special: Sequence[str] = ()) -> None:
    """Bytes, then merges of pairs and triples, frequent letters first; the control tokens last."""
    control = (*special, *CONTROL)
    letters = byte_letters()
    order = [letters[ord(c)] for c in _FREQUENT]
    order += [letter for letter in letters.values() if letter not in order]
    merges = list(itertools.islice(_merges(order), size - 256 - len(control)))
    tokens = [*letters.values(), *(left + right for left, right in merges), *control]
    kinds = [gguf.TokenType.NORMAL] * (size - len(control)) + [gguf.TokenType.CONTROL] * len(control)
    add_facts(writer, tokenizer_model="gpt2", tokenizer_pre="gpt-2", token_list=tokens, token_types=kinds)
    writer.add_token_merges([f"{left} {right}" for left, right in merges] or ["a b"])
    add_facts(writer, bos_token_id=size - 3, eos_token_id=size - 1, add_bos_token=add_bos)


def _merges(order: list[str]):
    yield from itertools.product(order, order)
    yield from ((left + middle, right) for left, middle, right in itertools.product(order, order, order))


def add_spm(writer: gguf.GGUFWriter, size: int, add_bos: bool, special: Sequence[str] = ()) -> None:
    """<unk>, <s>, </s>, 256 bytes, ChatML's control tokens, then characters and pairs with falling scores."""
    head = [("<unk>", gguf.TokenType.UNKNOWN)]
    head += [(text, gguf.TokenType.CONTROL) for text in ("<s>", "</s>")]
    head += [(f"<0x{byte:02X}>", gguf.TokenType.BYTE) for byte in range(256)]
    head += [(text, gguf.TokenType.CONTROL) for text in (*CONTROL, *special)]
    order = [c.replace(" ", "▁") for c in _FREQUENT if c != "\n"]
    pieces = itertools.chain(order, (a + b for a, b in itertools.product(order, order) if b != "▁"))
    tail = [(piece, gguf.TokenType.NORMAL) for piece in itertools.islice(pieces, size - len(head))]
    assert len(head) + len(tail) == size, "an spm vocabulary has some hundred tokens more or less"
    texts, kinds = zip(*head, *tail, strict=True)
    add_facts(writer, tokenizer_model="llama", token_list=texts, token_types=kinds)
    writer.add_token_scores([-float(i) for i in range(size)])
    add_facts(writer, bos_token_id=1, eos_token_id=2, unk_token_id=0, add_bos_token=add_bos)


def add_wpm(writer: gguf.GGUFWriter, size: int, _add_bos: bool, special: Sequence[str] = ()) -> None:
    """BERT's special tokens, then letters and marks at the start of a word and inside one, then pairs of them."""
    head = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *special)
    letters = [c for c in _FREQUENT if c not in " \n" and c == c.lower()]
    words = itertools.chain(
        *(("▁" + c, c) for c in letters), ("▁" + a + b for a, b in itertools.product(letters, letters))
    )
    tokens = [*head, *itertools.islice(words, size - len(head))]
    kinds = [gguf.TokenType.CONTROL] * len(head) + [gguf.TokenType.NORMAL] * (size - len(head))
    add_facts(
        writer, tokenizer_model="bert", tokenizer_pre="jina-v2-en", token_list=tokens, token_types=kinds
    )
    add_facts(writer, pad_token_id=0, unk_token_id=1, bos_token_id=2, eos_token_id=3, sep_token_id=3)


@contextmanager
def vocabulary_of(path: Path) -> Iterator[Vocab]:
    params = lib.llama_model_default_params()
    params.vocab_only = True
    model = lib.llama_model_load_from_file(os.fsencode(path), params)
    assert model, f"llama.cpp cannot open {path}"
    try:
        yield Vocab(lib.llama_model_get_vocab(model))
    finally:
        lib.llama_model_free(model)
