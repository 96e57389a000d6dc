"""What the target answers is kept whole, on which prompts, and when a new draft is worth keeping."""

import sys
from itertools import islice

import numpy as np
import pytest

import localspec
from localspec import demo
from localspec.cli import main
from localspec.cli.commands import fit
from localspec.display import DrawnLine
from localspec.errors import BadSetting, LocalspecError
from localspec.fit.collect import KEPT, Text, add_texts, is_held_out, made_prompts, texts_in
from localspec.fit.making import alone_in, collect, judge, unseen_prompts
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.measure.bench import AUTO, PLAIN, BenchOutcome, Category, Measurement
from localspec.measure.verify import encoded_prompt

pytestmark = pytest.mark.usefixtures("home_of_processes")

CATEGORIES = (Category.CHAT, Category.CODE)


def some_text(seed, tokens=5):
    random = np.random.default_rng(seed)
    likely = random.integers(0, 500, (tokens, KEPT), dtype=np.int32)
    prompt, shares = random.integers(0, 500, 7, dtype=np.int32), random.normal(-3, 1, (tokens, KEPT))
    return Text(prompt, likely[:, 0].copy(), likely, shares.astype(np.float16))


def test_texts_come_back_as_they_were_and_a_damaged_file_is_named(tmp_path):
    texts = [some_text(seed, tokens=3 + seed) for seed in range(5)]
    add_texts(tmp_path, texts[:2])
    add_texts(tmp_path, texts[2:])
    for text, expected in zip(texts_in(tmp_path), texts, strict=True):
        for name in ("prompt", "tokens", "likely", "log_shares"):
            assert np.array_equal(getattr(text, name), getattr(expected, name))
    path = add_texts(tmp_path, [some_text(1)])
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(BadSetting, match=r"\.npz cannot be read"):
        list(texts_in(tmp_path))


def test_one_command_makes_a_draft_at_a_time_and_clears_what_was_left_half_written(tmp_path):
    folder = tmp_path / "draft"
    written = add_texts(folder, [some_text(1)])
    (folder / ".checkpoint.pt.x1y2").write_bytes(b"half")
    (folder / f".{written.name}.x1y2").write_bytes(b"half")
    (folder / ".gitignore").write_text("of the user, who has linked the folder")
    with alone_in(folder):
        assert {path.name for path in folder.iterdir()} == {written.name, "lock", ".gitignore"}
        with pytest.raises(LocalspecError, match="another command is making draft"), alone_in(folder):
            pass
    with alone_in(folder):
        pass


def test_answers_are_collected_with_their_likeliest_tokens_and_no_prompt_twice(tmp_path):
    reported = []
    with localspec.load("demo", threads=1, speculate=False) as session:
        assert collect(session.pair, tmp_path, 60, reported.append) >= 60
        before = len(list(texts_in(tmp_path)))
        there = collect(session.pair, tmp_path, 200, reported.append)
    texts = list(texts_in(tmp_path))
    assert reported == sorted(reported)
    assert there == sum(len(text.tokens) for text in texts) >= 200
    assert len(texts) > before
    assert len({text.prompt.tobytes() for text in texts}) == len(texts)
    with Model(demo.target_path()) as model, Context(model, length=512, threads=1) as context:
        text = texts[-1]
        (row,) = context.decode(text.prompt.tolist(), 1).rows
        shares = row - row.max() - np.log(np.exp(row - row.max()).sum())
    order = np.argsort(-shares)[:5]
    assert set(order.tolist()) <= set(text.likely[0].tolist())
    assert text.log_shares[0][:5] == pytest.approx(shares[order], abs=0.2)


def test_one_prompt_in_sixteen_only_judges_and_it_is_always_the_same(monkeypatch):
    monkeypatch.setattr("localspec.fit.making.EACH", 4)
    with localspec.load("demo", threads=1, speculate=False) as session:
        unseen = unseen_prompts(session.pair)
        assert all(is_held_out(encoded_prompt(session.pair, prompt.text)) for prompt in unseen)
        assert unseen == unseen_prompts(session.pair)
    assert {prompt.category for prompt in unseen} == {"chat", "code", "json", "edit"}
    assert len({prompt.text for prompt in unseen}) == len(unseen) == 16
    prompts = [prompt.text for prompt in islice(made_prompts(), 400)]
    assert not any("{" in text for text in prompts)
    assert len(set(prompts)) > 300


def measured(speed, *, cycles=25, each=15, seed=0) -> list[Measurement]:
    """A bench in which drafting is `speed` times as fast as plain decoding, give or take 2 %."""
    random = np.random.default_rng(seed)
    return [
        Measurement(
            prompt=f"{category} {number}", category=category, temperature=0.0, round=0, arm=arm.name,
            prompt_tokens=9, reused_tokens=0, prefill_seconds=0.1,
            decode_seconds=float(np.exp(random.normal(0, 0.02))) / (speed if arm is AUTO else 1.0),
            emitted=50, cycles=cycles if arm is AUTO else 50, drafted=40, accepted=25,
            draft_seconds=0.1, verify_seconds=0.3, finish_reason="length",
        )
        for category in CATEGORIES for number in range(each) for arm in (PLAIN, AUTO)
    ]  # fmt: skip


@pytest.mark.parametrize(("speed", "kept"), [(0.8, False), (1.0, False), (1.2, False), (1.5, True)])
def test_a_draft_is_kept_where_it_is_faster_than_what_was_there(speed, kept):
    judged = judge(measured(1.2, seed=1), measured(speed, seed=2))
    assert judged.kept == kept
    assert judged.speedup.middle == pytest.approx(speed / 1.2, rel=0.03)
    assert "2.00 tokens per pass" in judged.sentence()


def test_neither_few_prompts_nor_a_draft_that_hardly_drafts_are_enough():
    assert not judge(measured(1.0, each=1), measured(1.5, each=1)).kept
    for seed in range(3):
        assert not judge(measured(1.0, seed=seed), measured(1.1, cycles=49, seed=seed + 20)).kept


def test_a_judgement_that_was_stopped_at_once_keeps_nothing(monkeypatch):
    monkeypatch.setattr("localspec.measure.bench.bench", lambda *_, **__: BenchOutcome((), (), True))
    with pytest.raises(LocalspecError, match="nothing was measured"):
        fit.judge_it({"target": demo.target_path()}, "lookup", demo.draft_path(), DrawnLine(sys.stderr))


def test_without_torch_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr("localspec.fit.making.find_spec", lambda name: None)
    assert main(["fit", "demo", "--make"]) == 1
    assert "PyTorch" in (written_share := capsys.readouterr().err)
    assert 'pip install "torch>=2.9"' in written_share


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--layers", "99"], "a draft of 99 layers cannot be made from"),
        (["--layers", "0"], "--layers: '0' is not a whole number of at least 1"),
        (["--trim", "9000"], "demo-target.gguf has 2,560 tokens and cannot be trimmed to 9,000"),
    ],
)
def test_what_cannot_be_made_is_refused_in_a_sentence(arguments, what, monkeypatch, capsys):
    monkeypatch.setattr("localspec.fit.making.find_spec", lambda name: True)
    assert main(["fit", "demo", "--make", "--trim", "1024", *arguments]) == 2
    assert what in capsys.readouterr().err
