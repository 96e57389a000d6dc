"""A trimmed model says of its tokens what the whole one says, and nothing of others."""

import numpy as np
import pytest

import localspec
from localspec import demo
from localspec.algorithm.pass_order import Part
from localspec.cli import main
from localspec.errors import BadModelFile, BadSetting
from localspec.fit.collect import Answer, answers, needed_tokens
from localspec.fit.cut import trim
from localspec.gguf.facts import table_path
from localspec.gguf.header import header_at
from localspec.gguf.matching import check, vocabulary_of
from localspec.gguf.trimmed import token_table
from localspec.llama.context import Context
from localspec.llama.model import Model

SHAPES = {
    "llama": {},
    "llama, tied, Q8_0": {"tied": True, "weights": "Q8_0"},
    "llama, SentencePiece": {"vocab": "spm"},
    "qwen2": {"architecture": "qwen2"},
    "qwen3": {"architecture": "qwen3", "weights": "F32"},
    "gemma3": {"architecture": "gemma3"},
}
SOME = np.arange(0, 512, 2)[::-1]  # in no particular order


def rows_of(path, tokens, table=None):
    """The row after every token, token by token: {token: logit}."""
    found = []
    with Model(path) as model, Context(model, length=64, threads=1, table=table) as context:
        for token in tokens:
            (row,) = context.decode([token], 1).rows
            ids, logits = (row.ids, row.logits) if table else (np.arange(len(row)), row)
            found.append(dict(zip(ids.tolist(), logits.tolist(), strict=True)))
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_are_those_of_the_whole_model(shape, tiny_gguf, tmp_path):
    whole = tiny_gguf(vocab_size=512, **SHAPES[shape])
    path = trim(whole, tmp_path / "draft.gguf", SOME)
    table = token_table(path, header_at(path))
    text = [5, 300, 17, 511, 42]
    for row, expected in zip(rows_of(path, text, table), rows_of(whole, text), strict=True):
        assert row == pytest.approx({token: expected[token] for token in row}, abs=1e-5)
        likeliest = sorted(SOME.tolist(), key=lambda token: -expected[token])[:128]
        assert set(row) == set(likeliest)


def test_slots_of_a_trimmed_draft_get_the_rows_that_each_gets_alone(tiny_gguf, tmp_path):
    path = trim(tiny_gguf(vocab_size=512), tmp_path / "draft.gguf", SOME)
    table, texts = token_table(path, header_at(path)), [[5, 300, 17], [511, 42, 9]]
    alone = [rows_of(path, text, table)[-1] for text in texts]
    with Model(path) as model, Context(model, length=64, threads=1, table=table, slots=2) as context:
        found = context.shared.decode([Part(i, text, 1) for i, text in enumerate(texts)])
        for each, expected in zip(found, alone, strict=True):
            row = each.rows[0]
            assert dict(zip(row.ids.tolist(), row.logits.tolist(), strict=True)) == pytest.approx(
                expected, abs=0.01
            )


def test_it_fits_the_targets_that_the_whole_draft_fits(tmp_path):
    path = trim(demo.draft_path(), tmp_path / "draft.gguf", np.arange(1000))
    check([header_at(demo.target_path()), header_at(path)])
    trimmed, whole = (vocabulary_of(header_at(file)) for file in (path, demo.draft_path()))
    assert trimmed.count == whole.count


def test_tokens_that_the_target_lacks_are_not_drafted(tmp_path):
    path = trim(demo.draft_path(), tmp_path / "draft.gguf", np.arange(1000, 2400))
    table = token_table(path, header_at(path))
    with Model(path) as model, Context(model, length=64, vocabulary=1500, threads=1, table=table) as context:
        (row,) = context.decode([2300, 7], 1).rows
    assert 1000 <= row.ids.min() <= row.ids.max() < 1500


@pytest.mark.parametrize("count", [100, 2560])
def test_too_few_tokens_or_all_of_them_are_refused(count, tmp_path):
    with pytest.raises(BadSetting, match=f"has 2,560 tokens and cannot be trimmed to {count:,}"):
        trim(demo.draft_path(), tmp_path / "draft.gguf", np.arange(count))
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_trimmed_is_refused(tiny_gguf, tmp_path):
    with pytest.raises(BadModelFile, match="is of the architecture mamba, which localspec cannot trim"):
        trim(tiny_gguf(architecture="mamba"), tmp_path / "draft.gguf", SOME)
    with pytest.raises(BadModelFile, match="is split into several files"):
        trim(tiny_gguf(layers=3, tensors_in_part=9), tmp_path / "draft.gguf", SOME)
    once = trim(demo.draft_path(), tmp_path / "draft.gguf", SOME)
    with pytest.raises(BadModelFile, match="is trimmed already"):
        trim(once, tmp_path / "again.gguf", SOME)


def test_a_table_of_another_draft_is_refused(tmp_path):
    path = trim(demo.draft_path(), tmp_path / "draft.gguf", SOME)
    other = trim(demo.draft_path(), tmp_path / "other.gguf", SOME + 1)
    table_path(other).replace(table_path(path))
    with pytest.raises(BadModelFile, match="does not belong to draft"):
        token_table(path, header_at(path))
    table_path(path).unlink()
    with pytest.raises(BadModelFile, match=r"needs a second file, draft\.tokens\.gguf, which is missing"):
        token_table(path, header_at(path))


def test_a_full_disk_leaves_no_half_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gguf.GGUFWriter.write_kv_data_to_file", full)
    with pytest.raises(OSError, match="No space left"):
        trim(demo.draft_path(), tmp_path / "draft.gguf", SOME)
    assert not list(tmp_path.iterdir())


@pytest.mark.process
@pytest.mark.usefixtures("home_of_processes")
def test_the_new_pair_writes_what_the_old_one_writes(capsys):
    assert main(["fit", "demo", "--trim", "1500", "--threads", "1"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("The draft can write 1,500 of 2,560 tokens.")
    assert printed.endswith("localspec bench demo-trim-1500\n")
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
        (["--target", str(demo.target_path())], "has no draft model to trim"),
        (["demo", "--trim", "10"], "demo-draft.gguf has 2,560 tokens and cannot be trimmed to 10"),
        (["demo", "--trim", "1500", "--as", "Über"], "Über is not a valid name of a pair"),
    ],
)
@pytest.mark.usefixtures("home_of_processes")
def test_what_cannot_be_is_refused_in_a_sentence(arguments, what, capsys):
    assert main(["fit", *arguments, "--threads", "1"]) != 0
    assert what in capsys.readouterr().err


@pytest.mark.usefixtures("home_of_processes")
def test_answers_are_those_that_each_prompt_has_alone():
    with Model(demo.target_path()) as model:
        texts = ("Once upon a time", "The answer is", "def f(x):", *map(str, range(9)))
        prompts = [model.vocab.tokenize(text, parse_special=False) for text in texts]
        with Context(model, length=64, threads=1) as target:
            mass = np.zeros(model.vocab.size)
            found = list(answers(target, (Answer(p, mass) for p in prompts), room=6, length=64))
        assert sorted(answer.prompt for answer in found) == sorted(prompts)
        assert mass.min() > 0
        with Context(model, length=64, threads=1) as context:
            alone = 0
            for answer in found:
                context.rollback(0)
                (row,) = context.decode(answer.prompt, 1).rows
                alone += int(row.argmax()) == answer.tokens[0]
        assert alone >= len(found) - 1  # a near-tie may flip


@pytest.mark.usefixtures("home_of_processes")
def test_tokens_that_were_written_come_first_and_then_the_likeliest():
    mass = np.zeros(2560)
    mass[[2001, 2002, 2003]] = [1.0, 3.0, 2.0]
    chosen = set(needed_tokens(demo.target_path(), [2500, 2501], mass, 516 + 4).tolist())
    assert {2500, 2501, 2002, 2003} <= chosen
    assert len(chosen) == 520
