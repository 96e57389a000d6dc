"""Greedy texts about images are those of llama.cpp's server; caches, cuts and cancels change no reply."""

import gc
import json
import subprocess
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from weakref import WeakSet

import numpy as np
import pytest

import localspec
from localspec.algorithm.images import ImageRow, chunks_of
from localspec.caches.store import finish
from localspec.chat.reply import UNSEEN_IMAGE
from localspec.events import FinishReason, Notice, Piece, Prefill
from localspec.gguf.header import header_at
from localspec.llama.images import Projector
from localspec.sampler.passes import common_prefix_length
from tests.drafters.heads import KINDS as HEADS
from tests.llama.images import KINDS, LOAD, PICTURES, RECORDED, image_url, model_in, turns_of
from tests.llama.rows import NEAR, logits_of
from tests.tiny_images import write_projector

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return partial(model_in, tmp_path_factory.mktemp("images"))


@pytest.fixture
def load(files, monkeypatch):
    # The room for checkpoints is a share of the model's size, and these models are smaller than their states.
    monkeypatch.setattr("localspec.loading.load.CHECKPOINT_SHARE", 10.0)

    @contextmanager
    def loaded(kind, draft="lookup", **options):
        model = files(kind)
        draft = model.draft if draft == "model" else draft
        with localspec.load(target=model.target, draft=draft, **LOAD | options) as session:
            yield session

    return loaded


@pytest.fixture
def encoded(monkeypatch):
    """The chunks that projectors encode, in order."""
    found, encode = [], Projector.encode
    monkeypatch.setattr(Projector, "encode", lambda own, chunk: found.append(chunk) or encode(own, chunk))
    return found


def text_of(session, asked, **options):
    """The text of a reply, without a space at the beginning as in the recorded ones."""
    return session.run(asked.messages, **asked.options | options).text.removeprefix(" ")


SHORT = ("square.png", "other.ppm", "tall.png", "dot.png")  # pictures of few rows
WAYS = {
    "plainly": ("lookup", {"speculate": False}),
    "with lookup": ("lookup", {"depth": 4}),
    "with a draft": ("model", {"depth": 4}),
    "as the depth adapts": ("model", {}),
}


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_chat_has_the_servers_texts_and_counts(load, kind, way):
    """After the first turn, as much comes from the cache as in the server, or up to 8 tokens less.

    Two chats begin with the same words about different pictures.
    """
    (draft, options), accepted = WAYS[way], 0
    with load(kind, draft) as session:
        for name in RECORDED[kind]:
            for number, asked in enumerate(turns_of(kind, name)):
                reply = session.run(asked.messages, **asked.options | options)
                assert reply.text.removeprefix(" ") == asked.text, (name, number)
                assert reply.stats.prompt_tokens == asked.prompt_tokens
                assert not number or reply.stats.reused_tokens >= asked.cached_tokens - 8, (name, number)
                accepted += reply.stats.accepted
    assert accepted > 0 or way != "with a draft"


@pytest.mark.process
@pytest.mark.parametrize(("name", "kind"), [("mtp inside", "qwen35"), ("assistant", "gemma4")])
def test_a_head_changes_no_text_about_images(tmp_path, name, kind):
    target, head = HEADS[name].files(tmp_path)
    write_projector(tmp_path / "mmproj.gguf", kind, header_at(target).of_model("embedding_length"))
    found = []
    for depth in (0, 3):
        with localspec.load(target=target, draft=head, **LOAD) as session:
            for images in (["square.png"], [], ["other.ppm", "dot.png"]):
                asked = {"images": [PICTURES[image] for image in images], "temperature": 0}
                found.append(session.run("ab cd ef", depth=depth, max_tokens=14, **asked))
    assert [reply.text for reply in found[:3]] == [reply.text for reply in found[3:]]
    assert sum(reply.stats.from_head for reply in found) > 6


@pytest.mark.process
@pytest.mark.parametrize("kind", KINDS)
def test_two_replies_at_once_have_the_servers_texts(load, kind):
    halves = [
        [asked for name in names for asked in turns_of(kind, name)]
        for names in (("square", "other"), ("late", "two"))
    ]
    with (
        load(kind, "model", parallel=2) as session,
        session.another() as other,
        ThreadPoolExecutor(2) as threads,
    ):
        found = threads.map(
            lambda own, half: [text_of(own, asked, depth=3) for asked in half], (session, other), halves
        )
        assert [*found] == [[asked.text for asked in half] for half in halves]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.process  # the projector is tried in a child process
def test_a_stream_says_when_an_image_is_encoded_and_a_follow_up_encodes_nothing(load, encoded, kind):
    with load(kind, "model") as session:
        for number, asked in enumerate(turns_of(kind, "square")):  # the third has the second picture
            encoded.clear()
            *events, last = session.stream(asked.messages, depth=3, **asked.options)
            assert (
                "".join(event.text for event in events if isinstance(event, Piece)).removeprefix(" ")
                == asked.text
            )
            passes = [event for event in events if isinstance(event, Prefill)]
            announced = [event.image_tokens for event in passes if event.image_tokens]
            assert announced == [chunk.count for chunk in encoded]
            assert len({chunk.data for chunk in encoded}) == (number != 1)
            rest = asked.prompt_tokens - 1 - last.reply.stats.reused_tokens
            assert (passes[-1].done, passes[-1].total) == (rest, rest)
            notices = [event.text for event in events if isinstance(event, Notice)]
            assert (UNSEEN_IMAGE in notices) == (number == 0)


WRITER = """
import json, sys
import localspec
from localspec.caches.store import finish
from localspec.caches import prompt_cache
from localspec.loading import load as loading
loading.CHECKPOINT_SHARE = 10.0
target, options, messages = json.load(sys.stdin)
with localspec.load(target=target, draft="lookup", cache="all", **options) as session:
    session.run(messages, temperature=0, max_tokens=8)
finish()
"""


@pytest.mark.process
@pytest.mark.usefixtures("quick_disk", "home_of_processes")
@pytest.mark.parametrize("kind", ["gemma3", "qwen2vl", "qwen35"])
def test_a_cache_of_another_process_answers_about_its_picture_and_no_other(load, files, encoded, kind):
    words = {"type": "text", "text": "What is to be seen here, and where? " * 40}

    def reply(session, name):
        encoded.clear()
        return session.run(messages(name), max_tokens=8, temperature=0)

    def messages(name):
        return [{"role": "user", "content": [words, image_url(name), {"type": "text", "text": "Look"}]}]

    with load(kind) as session:
        fresh = {name: reply(session, name).text for name in ("other.ppm", "square.png")}
    assert fresh["square.png"] != fresh["other.ppm"]
    given = json.dumps([str(files(kind).target), LOAD, messages("square.png")])
    subprocess.run([sys.executable, "-c", WRITER], input=given, text=True, check=True)
    for name in fresh:
        with load(kind, cache="all") as session:
            found = reply(session, name)
        assert found.text == fresh[name]
        assert bool(encoded) == (name == "other.ppm")
    assert found.stats.restored_tokens > 512
    finish()


@pytest.mark.process
@pytest.mark.parametrize("kind", ["gemma3", "qwen2vl"])
def test_saved_states_keep_no_image_and_still_answer_about_it(load, monkeypatch, kind):
    """The projector keeps the latest image, and the slot its own. The first conversation comes back from memory."""
    alive, encode = WeakSet(), Projector.encode
    monkeypatch.setattr("localspec.llama.images._RECENT", 1)
    monkeypatch.setattr(Projector, "encode", lambda own, chunk: alive.add(chunk) or encode(own, chunk))
    words = {"type": "text", "text": "What is to be seen here, and where? " * 40}

    def reply(session, shade):
        picture = image_url(b"P6 64 64 255\n" + bytes([shade]) * 3 * 64 * 64)
        prompt = [{"role": "user", "content": [picture, words]}]
        return session.run(prompt, max_tokens=8, temperature=0)

    with load(kind) as session:
        fresh = reply(session, 1).text
    with load(kind) as session:
        saved = session.pair.target.prompt_cache
        saved.budget = 10**9
        for shade in (1, 90, 180, 250):
            reply(session, shade)
        gc.collect()
        assert (len(saved._saved), len(alive)) == (3, 1)
        found = reply(session, 1)
        assert found.text == fresh
        assert found.stats.reused_tokens > 256


def test_threads_that_encode_at_once_get_their_own_rows(load):
    with load("qwen2vl") as session, ThreadPoolExecutor(4) as threads:
        chunks = [
            chunk for data in PICTURES.values() for _, chunk in chunks_of(session.pair.read_image(data))
        ]
        for chunk in chunks:
            chunk.encode()
        for _ in range(3):
            alone = [chunk.values for chunk in chunks]
            for chunk in chunks:
                chunk.values = None
            deque(threads.map(lambda chunk: chunk.encode(), chunks), 0)
            assert all(np.array_equal(rows, chunk.values) for rows, chunk in zip(alone, chunks, strict=True))


@pytest.mark.parametrize("kind", ["gemma3", "qwen2vl"])
def test_two_replies_that_are_cancelled_during_one_encoding_leave_the_projector_usable(load, encoded, kind):
    asked, other = (turns_of(kind, name)[0] for name in ("square", "other"))
    with load(kind, parallel=2) as session, session.another() as second, ThreadPoolExecutor(2) as threads:

        def ended(own):
            *_, last = own.stream(asked.messages, cancelled=partial(bool, encoded), **asked.options)
            return last.reply.finish_reason, last.reply.text

        assert [*threads.map(ended, (session, second))] == [(FinishReason.CANCELLED, "")] * 2
        assert [*threads.map(text_of, (session, second), (asked, other))] == [asked.text, other.text]


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_a_reply_that_ends_at_any_event_leaves_the_next_one_right(load, kind):
    asked, other = turns_of(kind, "two")[0], turns_of(kind, "late")[1]
    with load(kind, "model", parallel=2) as session:
        vocabulary = session.pair.vocabulary
        endless = {token: -100.0 for token in range(vocabulary.size) if vocabulary.is_end(token)}
        for end in range(1, 9):
            with session.another() as own:
                stop = list[int]()
                events = own.stream(
                    asked.messages, cancelled=partial(bool, stop), depth=3, logit_bias=endless
                )
                for _ in range(end):
                    next(events)
                stop.append(end)
                if end % 2:
                    events.close()
                else:
                    assert [*events][-1].reply.finish_reason is FinishReason.CANCELLED
            for each in (other, asked):
                assert text_of(session, each, depth=3) == each.text, end


@pytest.mark.parametrize("kind", KINDS)
def test_steps_back_across_images_leave_the_state_of_a_fresh_read(load, kind):
    """Each prompt begins as the one before, up to a random part, and continues with other texts and pictures."""
    chance, parts, reused = np.random.default_rng(KINDS.index(kind)), [], 0
    with load(kind) as first, load(kind) as second:
        target, fresh = first.pair.target, second.pair.target
        for number in range(15):
            parts = parts[: chance.integers(0, min(len(parts), 9) + 1)]
            for _ in range(chance.integers(1, 4)):
                words = chance.integers(40, 250, chance.integers(1, 70)).tolist()
                parts.append(str(chance.choice(SHORT)) if chance.random() < 0.3 else words)
            parts.append(chance.integers(40, 250, 3).tolist())
            prompt, again = (tokens_of(parts, session.pair.read_image) for session in (first, second))
            target.recall(prompt)
            kept = target.rewind(common_prefix_length(target.tokens, 0, prompt[:-1]))
            reused += kept
            middle = min(kept + int(chance.integers(1, 100)), len(prompt) - 1)
            middle -= prompt[middle].index if isinstance(prompt[middle], ImageRow) else 0
            for end in (middle, len(prompt) - 1):
                deque(target.prefill(prompt[target.length : end]), 0)
                if target.needs_checkpoints:
                    target.checkpoint(lasting=True)
            fresh.rollback(0)
            deque(fresh.prefill(again[:-1]), 0)
            drafted = chance.integers(40, 250, 5).tolist()
            for kept_tokens, rejected in ((prompt[-1:], []), (drafted[:2], drafted[2:])):
                row = target.decode([*kept_tokens, *rejected], 1 + len(rejected)).rows[0]
                difference = logits_of(row) - logits_of(fresh.decode(kept_tokens, 1).rows[0])
                assert np.abs(difference).max() < NEAR, (number, kept, parts)
                target.rollback(fresh.length)
    assert reused > 150


def tokens_of(parts, read):
    return [token for part in parts for token in (read(PICTURES[part]) if isinstance(part, str) else part)]
