"""Print what the exported pair says to what a new user would ask; a + carries the conversation on.

python tools/demo/samples.py [--only WORD] [--model draft]
"""

import argparse
from pathlib import Path

from lowlevel import Model

QUESTIONS = (
    *("Hello", "hi", "What is speculative decoding?", "how does it work?", "who are you", "what can you do?"),
    *(
        "tell me a joke",
        "+another one",
        "tell me a short story",
        "tell me a story about a dragon",
        "write a poem",
    ),
    *(
        "What is the capital of France?",
        "capital of japan",
        "+and of peru?",
        "what is 12+7",
        "what is 9 times 8?",
    ),
    *(
        "23 + 58",
        "100 - 37",
        "what is 144 / 12",
        "count to ten",
        "list the first five primes",
        "is 91 a prime number?",
    ),
    *("Write a Python function that reverses a string.", "show me binary search in python", "fizzbuzz"),
    *(
        "Give me a JSON record for a user",
        "json for an order",
        "explain acceptance rate",
        "what is a draft model?",
    ),
    *(
        "how do i use a real model?",
        "Is the output the same as without the draft?",
        "does it always help",
        "+thanks!",
    ),
    *("why is the sky blue", "who wrote hamlet", "what is the opposite of hot", "what comes after tuesday"),
    *("what do you think about the stock market", "who is the president?", "Explain quantum field theory"),
    *("how do I bake a cake", "what is the weather like", "can you speak German?", "asdkjh", "spell banana"),
    *("say hello world", "Tom has 5 apples and buys 3 more. How many does he have?", "what is a GPU", "bye"),
    *(
        "show me `textwrap.dedent`",
        "why should I trust you",
        "my name is Bob",
        "what is python",
        "how fast are you",
    ),
)


def ask(model: Model, history: str, question: str) -> str:
    """The greedy answer to a question that follows a conversation."""
    return model.text(model.greedy(history + turn(question), limit=300))


def turn(question: str) -> str:
    """A question in ChatML, with the start of its answer."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def main() -> None:
    """Ask everything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="ask only questions that contain this")
    parser.add_argument("--model", choices=("target", "draft"), default="target")
    parser.add_argument("--folder", type=Path, default=Path("localspec/demo"))
    options = parser.parse_args()
    with Model(options.folder / f"demo-{options.model}.gguf") as model:
        history = ""
        for question in QUESTIONS:
            if options.only in question:
                history = history if question.startswith("+") else ""
                answer = ask(model, history, question.lstrip("+"))
                history += f"{turn(question.lstrip('+'))}{answer}<|im_end|>\n"
                print(f"> {question}\n{answer}\n")


if __name__ == "__main__":
    main()
