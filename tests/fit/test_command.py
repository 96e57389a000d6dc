"""`localspec fit`: from a pair to one whose draft is trimmed."""

import numpy as np
import pytest

import localspec
from localspec import demo
from localspec.cli import main
from localspec.fit.collect import Answer, answers, needed_tokens
from localspec.fit.making import alone_in
from localspec.fit.trim import fitted_path
from localspec.gguf.facts import vocabulary_of
from localspec.gguf.header import header_at
from localspec.llama.context import Context
from localspec.llama.model import Model

pytestmark = pytest.mark.usefixtures("home_of_processes")


def test_the_new_pair_writes_what_the_old_one_writes(capsys):
    assert main(["fit", "demo", "--trim", "1500", "--threads", "1"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("The draft reads all 2,560 tokens and can write 1,500 of them: on unseen prompts")
    assert said.endswith("localspec bench demo-trim-1500\n")
    texts = []
    for pair in ("demo", "demo-trim-1500"):
        with localspec.load(pair, threads=1) as session:
            reply = session.run("Tell me a story about a fox.", temperature=0, max_tokens=40, depth=3)
            texts.append(reply.text)
            assert reply.stats.accepted > 0
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--trim", "9000"], "demo-draft.gguf has 2,560 tokens and cannot be trimmed to 9,000"),
        (["--trim", "10"], "demo-draft.gguf has 2,560 tokens and cannot be trimmed to 10"),
        (["--trim", "1500", "--as", "Über"], "a pair cannot be called Über"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(arguments, what, capsys):
    assert main(["fit", "demo", *arguments, "--threads", "1"]) != 0
    assert what in capsys.readouterr().err


def test_one_command_makes_a_draft_of_a_name_at_a_time(capsys):
    with alone_in(fitted_path("demo-trim-1500").with_suffix("")):
        assert main(["fit", "demo", "--trim", "1500", "--threads", "1"]) == 1
    assert "demo-trim-1500 is being made by another command" in capsys.readouterr().err


def test_a_target_alone_has_nothing_to_trim(capsys):
    assert main(["fit", "--target", str(demo.target_path())]) != 0
    assert "has no draft model to trim" in capsys.readouterr().err


def test_answers_are_those_that_each_prompt_has_alone():
    with Model(demo.target_path()) as model:
        texts = ("Once upon a time", "The answer is", "def f(x):", *map(str, range(9)))
        prompts = [model.vocab.tokenize(text, parse_special=False) for text in texts]
        mass = np.zeros(model.vocab.size)
        found = list(answers(model, (Answer(p, mass) for p in prompts), room=6, length=64, threads=1))
        assert sorted(answer.prompt for answer in found) == sorted(prompts)
        assert mass.min() > 0
        with Context(model, length=64, threads=1) as context:
            alone = 0
            for answer in found:
                context.rollback(0)
                (row,) = context.decode(answer.prompt, 1).rows
                alone += int(row.argmax()) == answer.tokens[0]
        assert alone >= len(found) - 1  # a near-tie may flip


def test_tokens_that_were_written_come_first_and_then_the_likeliest():
    vocabulary = vocabulary_of(header_at(demo.target_path()))
    mass = np.zeros(2560)
    mass[[2001, 2002, 2003]] = [1.0, 3.0, 2.0]
    chosen = set(needed_tokens(vocabulary, [2500, 2501], mass, 516 + 4).tolist())
    assert {2500, 2501, 2002, 2003} <= chosen
    assert len(chosen) == 520
