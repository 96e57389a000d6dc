"""Compare the exported files with torch and with the tokenizer that they were trained with.

python -m tools.demo.check --weights build/demo
"""

import argparse
import tempfile
from itertools import islice
from pathlib import Path

import torch

from tools.demo import vocabulary
from tools.demo.corpus.mix import documents, plain
from tools.demo.export import SHIPPED, export, read
from tools.demo.lowlevel import Model
from tools.demo.model import SHAPES

ODD = (
    *(
        "",
        " ",
        "\n",
        "\n\n\n",
        "  \n  x",
        "\t\tif x:\r\n\t\t\tpass\r\n",
        "don't DON'T we'Ll I'D",
        "a  b   c    d",
    ),
    *(
        "3.14159 + 1,000",
        "naïve café Ünïcödé",
        "日本語のテキスト",
        "🙂🙂 ok 👩‍💻",
        "def f(x):\n    return x**2  # done\n",
    ),
    *("!!!???...", "a\u00a0b\u2003c", "<|im_start|", "x<|im_end|>y", " leading", "trailing ", "\x00\x01\x7f"),
    *(
        "ÀÉÎ123abc",
        "1234567890",
        "https://example.com/?q=1&r=2",
        "'s 'S x'll y'LL",
        "ſ'ſ x'ſ",
        "\u0130stanbul's",
    ),
)


def tokens_differ(model: Model, count: int) -> int:
    """How many texts llama.cpp cuts differently from the trainer's tokenizer."""
    tokenizer = vocabulary.load()
    texts = [*ODD, *(plain(d) for d in islice(documents(7, 0), count))]
    return sum(model.tokens(text) != tokenizer.encode(text).ids for text in texts)


def logit_gap(path: Path, weights: Path, role: str) -> float:
    """The largest difference between llama.cpp's logits and torch's."""
    tokens = (
        vocabulary.load()
        .encode("<|im_start|>user\nWhat is 12 + 7?<|im_end|>\n<|im_start|>assistant\n12 + 7 = 19.")
        .ids
    )
    with Model(path, exact=True) as model, torch.no_grad():
        return float(abs(model.logits(tokens) - read(weights, role)(torch.tensor([tokens]))[0].numpy()).max())


def main() -> None:
    """Print every comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", type=Path, default=Path("build/demo"))
    weights = parser.parse_args().weights
    with tempfile.TemporaryDirectory() as folder:
        for role in SHAPES:
            for kind in ("f32", SHIPPED[role]):
                path = Path(folder) / f"{role}-{kind}.gguf"
                export(read(weights, role), role, kind, path)
                print(
                    f"{role} {kind}: largest logit difference to torch {logit_gap(path, weights, role):.5f}"
                )
        with Model(path) as model:
            print(f"texts cut differently: {tokens_differ(model, 3000)} of {3000 + len(ODD)}")


if __name__ == "__main__":
    main()
