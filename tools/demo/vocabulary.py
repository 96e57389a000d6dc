"""The pair's shared vocabulary: a byte-level BPE that cuts text exactly as llama.cpp's "qwen2" rule does.

python -m tools.demo.vocabulary        # learns it from the corpus and writes vocabulary.json
"""

from itertools import islice
from pathlib import Path

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer

from tools.demo.corpus.mix import documents, plain

FILE = Path(__file__).with_name("vocabulary.json")
SIZE = 2560
PRE = "qwen2"
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
END_OF_TEXT, IM_START, IM_END = CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def untrained() -> Tokenizer:
    """The tokenizer before it has learned any merge."""
    tokenizer = Tokenizer(BPE())
    pieces = Split(Regex(QWEN2), behavior="isolated")
    tokenizer.pre_tokenizer = Sequence([pieces, ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = ByteLevelDecoder()
    return tokenizer


def learn(texts: int, seed: int) -> Tokenizer:
    """Learn the merges from the first documents of a part that training never uses."""
    tokenizer = untrained()
    alphabet = ByteLevel.alphabet()
    trainer = BpeTrainer(
        vocab_size=SIZE, special_tokens=list(CONTROL), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(map(plain, islice(documents(seed, -1), texts)), trainer)
    return tokenizer


def load() -> Tokenizer:
    """The vocabulary that the pair was trained with."""
    return Tokenizer.from_file(str(FILE))


if __name__ == "__main__":
    learn(texts=40_000, seed=1).save(str(FILE))
    print(f"{FILE.name}: {load().get_vocab_size()} tokens")
