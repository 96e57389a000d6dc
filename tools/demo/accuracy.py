"""How many questions with one right answer the exported target answers rightly, by kind, at temperature 0.

python tools/demo/accuracy.py [--questions 100] [--folder localspec/demo]

The questions are drawn as in training but from a stream of their own; of a sum its result
counts, of other answers the whole text.
"""

import argparse
import re
from pathlib import Path
from random import Random

from corpus.spin import Turn
from corpus.sums import counting, questions, sums, word_problems
from corpus.tables import COUNTRY_ROWS, calendar, elements
from lowlevel import Model

KINDS = {
    "sums": sums,
    "word problems": word_problems,
    "counting and lists of numbers": counting,
    "questions on numbers": questions,
    "days, months, planets": calendar,
    "chemical elements": elements,
}


def ask(model: Model, question: str) -> str:
    """The greedy answer to a question."""
    prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    return model.greedy(prompt, limit=300)


def right(turn: Turn, answer: str) -> bool:
    """Whether the answer says what the corpus says."""
    if "=" not in turn.says:
        return answer == turn.says
    return re.findall(r"\d+", answer)[-1:] == re.findall(r"\d+", turn.says)[-1:]


def main() -> None:
    """Ask everything and print a line for each kind."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=100, help="of each kind")
    parser.add_argument("--folder", type=Path, default=Path("localspec/demo"))
    options = parser.parse_args()
    with Model(options.folder / "demo-target.gguf") as model:
        for kind, make in KINDS.items():
            rng = Random(f"accuracy/{kind}")
            turns = [make(rng)[0] for _ in range(options.questions)]
            count = sum(right(turn, ask(model, turn.asks)) for turn in turns)
            print(f"{kind}: {count} of {len(turns)}", flush=True)
        capitals = {row[0]: row[1] for row in COUNTRY_ROWS}
        known = sum(
            capital in ask(model, f"What is the capital of {name}?") for name, capital in capitals.items()
        )
        print(f"capitals: {known} of {len(capitals)}")


if __name__ == "__main__":
    main()
