"""The queue in front of the engine, with a process that says what the test wants."""

import asyncio
import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from starlette.requests import Request

from localspec.engine.messages import (
    Cancel,
    Died,
    Embed,
    Embedded,
    Failure,
    Generate,
    LoadPair,
    LoadStage,
    Question,
    Ready,
    Rendered,
)
from localspec.errors import LocalspecError
from localspec.events import Finished, FinishReason, Kind, Origin, Piece, Prefill, Reply, Source, Stats
from localspec.models.local_models import ModelFile
from localspec.models.registry import named
from localspec.serve import http
from localspec.serve import jobs as jobs_module
from localspec.serve import server as server_module
from localspec.serve.anthropic import MessageWriter
from localspec.serve.jobs import MOST_WAITING, Jobs
from localspec.serve.llama_server import CompletionWriter
from localspec.serve.ollama import LineWriter
from localspec.serve.openai import ChatWriter
from localspec.serve.options import Fields, Problem, openai_options
from localspec.serve.replies import Chosen, Replies, ReplyRequest
from localspec.serve.responses import ResponseWriter

pytestmark = pytest.mark.process

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
DEMO, OTHER = LoadPair(named("demo")), LoadPair(named("qwen3-8b+0.6b"))
READY = [Ready("demo", "target", "draft", 100, 0.1)]
WANTED = ReplyRequest(Chosen("demo", DEMO), (Generate(0, continued="a"),), stream=True)
OF_REPLIES = (Finished, Piece, Prefill)
ASKED = Question(0, tokens=(1, 2))
TEXTS, EMBEDDED = Embed(0, ModelFile("", "a.gguf"), ("a", "b")), Embedded(b"", 1, (3, 3))
FINISHED = Finished(Reply("", "", (), 0, FinishReason.STOP, Stats()))


async def turns():
    """Let the event loop do all that is ready, and what follows from it."""
    for _ in range(20):
        await asyncio.sleep(0)


class Process:
    """Notes what it is sent; `say` makes it report."""

    pid = 1

    def __init__(self):
        self.sent, self.starts, self.unloads, self._reports = [], 0, 0, []
        self.on_report = lambda: None

    def start(self):
        self.starts += 1

    def send(self, request):
        self.sent.append(request)

    def drain_numbered(self):
        reports, self._reports = self._reports, []
        return reports

    def unload(self):
        self.unloads += 1

    def close(self):
        pass

    def report(self, *reports):
        """Each is of the request sent last, unless its serial comes with it."""
        last = max(self.answers(), default=0)
        self._reports += [
            r if isinstance(r, tuple) else (last if isinstance(r, OF_REPLIES) else 0, r) for r in reports
        ]
        self.on_report()

    async def say(self, *reports):
        self.report(*reports)
        await turns()

    def answers(self):
        return [request.serial for request in self.sent if isinstance(request, Generate)]


@pytest.fixture
async def process():
    return Process()


@pytest.fixture
async def passed(monkeypatch):
    """A clock of the event loop that stands still: `await passed(0.3)` moves it."""
    loop, now = asyncio.get_running_loop(), [0.0]
    monkeypatch.setattr(loop, "time", lambda: now[0])

    async def later(seconds):
        now[0] += seconds
        await turns()

    return later


@pytest.fixture
async def jobs(process):
    found = Jobs(process, DEMO)
    await process.say(*READY)
    return found


async def test_fifty_requests_wait_for_the_pair_and_are_answered_in_the_order_in_which_they_came(process):
    jobs = Jobs(process, DEMO)
    waiting = [jobs.submit(DEMO, Generate(0)) for _ in range(50)]
    assert process.sent == []
    await process.say(*READY)
    for number, job in enumerate(waiting, start=1):
        assert process.answers() == list(range(1, number + 1))
        await process.say(FINISHED)
        assert await job.next(1) == FINISHED


async def test_another_pair_is_loaded_in_a_fresh_process(jobs, process):
    jobs.submit(OTHER, Generate(0))
    assert process.starts == 1
    assert process.sent[-1] == OTHER
    await process.say(*READY)
    assert process.answers() == [1]


async def test_a_pair_that_cannot_be_loaded_fails_its_request_and_the_next_one_tries_again(jobs, process):
    job = jobs.submit(OTHER, Generate(0))
    await process.say(Failure("BadModelFile", "it is damaged", "fetch it again"))
    with pytest.raises(Problem, match="it is damaged"):
        await job.next(1)
    jobs.submit(DEMO, Generate(0))
    assert (process.starts, process.sent[-1]) == (2, DEMO)


async def test_whoever_leaves_the_queue_or_a_load_is_never_answered(jobs, process):
    running, waiting = jobs.submit(DEMO, Generate(0)), jobs.submit(DEMO, Generate(0))
    waiting.give_up()
    running.give_up()
    assert process.sent[-1] == Cancel(1)
    await process.say(FINISHED)
    loading = jobs.submit(OTHER, Generate(0))
    loading.give_up()
    await process.say(*READY)
    assert process.answers() == [1]
    assert jobs.running == 0


async def test_an_engine_that_dies_of_its_pair_is_not_started_over_and_over(jobs, process):
    jobs.submit(OTHER, Generate(0))
    await process.say(Died("it ended", ""))
    await process.say(Died("it ended", ""))
    assert process.starts == 1


async def test_the_server_ends_where_its_pair_cannot_be_loaded_also_while_a_client_waits_for_it(process):
    jobs, server, words = Jobs(process, DEMO), SimpleNamespace(should_exit=False), []
    view = SimpleNamespace(words=words.append)
    loading = asyncio.create_task(server_module.loaded(jobs, DEMO, server, view, "http://here", "any"))
    await asyncio.sleep(0)
    jobs.submit(DEMO, Generate(0))
    await process.say(LoadStage("loading it"), Failure("BadModelFile", "it is damaged", "take another"))
    with pytest.raises(LocalspecError, match="it is damaged"):
        await loading
    assert server.should_exit


async def test_only_so_many_may_wait(jobs):
    for _ in range(MOST_WAITING + 1):
        jobs.submit(DEMO, Generate(0))
    with pytest.raises(Problem, match="256 requests wait already"):
        jobs.submit(DEMO, Generate(0))


async def test_whoever_leaves_before_the_first_word_is_noticed_at_once(jobs, process, monkeypatch):
    monkeypatch.setattr(http, "FIRST_SECONDS", 60)

    async def gone():
        return {"type": "http.disconnect"}

    with pytest.raises(Problem, match="the client left"):
        await http.Interface(jobs, None).respond(Request({"type": "http"}, gone), WANTED, None)
    assert process.sent[-1] == Cancel(1)


@pytest.mark.parametrize(
    ("readings", "reported"),
    [
        (
            (1.0, 3.5, 5.0, 9.0),
            [
                "350 (35%) are read after 4 s",
                "900 (90%) are read after 9 s",
                "900 (90%) were read when the client left",
            ],
        ),
        ((2.9,), []),
    ],
)
async def test_a_long_prefill_is_in_the_log_while_it_runs_and_when_its_client_leaves(
    jobs, process, readings, reported
):
    log = []
    jobs.on_event = log.append
    replies = Replies(jobs, WANTED)
    for seconds in readings:
        await process.say(Prefill(int(seconds * 100), 1000, seconds))
        await replies.next(1)
    replies.give_up()
    await turns()
    assert [
        line.replace("of 1,000 tokens of a prompt ", "").removeprefix("demo: ") for line in log
    ] == reported


async def test_a_watcher_that_fails_stalls_no_queue(jobs, process, caplog):
    def fail(_=None):
        raise OSError("the log cannot be written")

    jobs.on_event = jobs.on_change = fail
    first, second = jobs.submit(DEMO, Generate(0)), jobs.submit(DEMO, Generate(0))
    await process.say(FINISHED, (9, Rendered("of another one")))
    await process.say(FINISHED)
    assert (await first.next(1), await second.next(1)) == (FINISHED, FINISHED)
    assert jobs.running == 0
    assert "the log cannot be written" in caplog.text


async def test_questions_are_answered_beside_a_reply_each_its_own(jobs, process):
    reply = jobs.submit(DEMO, Generate(0))
    one, two = jobs.ask(DEMO, ASKED), jobs.ask(DEMO, ASKED)
    assert process.sent[-2:] == [replace(ASKED, serial=2), replace(ASKED, serial=3)]
    await process.say(
        (3, Rendered("two")), (2, Failure("BadSetting", "a token is missing", "", 2)), (1, FINISHED)
    )
    assert await two.last() == Rendered("two")
    with pytest.raises(Problem, match="a token is missing"):
        await one.last()
    assert await reply.next(1) == FINISHED


async def test_vectors_are_made_beside_a_reply_by_whatever_pair_is_loaded(jobs, process):
    reply, vectors = jobs.submit(DEMO, Generate(0)), jobs.embed(TEXTS)
    assert process.sent[-1] == replace(TEXTS, serial=2)
    assert jobs.running == 1
    await process.say((1, FINISHED))
    jobs.submit(OTHER, Generate(0))
    await process.say(*READY)
    assert [request.serial for request in process.sent if isinstance(request, Embed)] == [2, 4]
    assert jobs.load == OTHER
    await process.say((4, EMBEDDED))
    assert await vectors.last() == EMBEDDED
    assert await reply.last() == FINISHED


async def test_vectors_that_nobody_awaits_are_cancelled_and_finished_ones_are_not(jobs, process):
    jobs.embed(TEXTS).give_up()
    assert process.sent[-1] == Cancel(1)
    done = jobs.embed(TEXTS)
    await process.say((2, EMBEDDED))
    assert await done.last() == EMBEDDED
    assert process.sent[-1] == replace(TEXTS, serial=2)


async def test_a_small_model_is_freed_after_its_time_unless_a_request_holds_it_or_the_pair_took_it_along(
    jobs, process
):
    key = TEXTS.file, TEXTS.pooling
    jobs.keep_small(key, 0)
    assert not jobs.small, "it was never loaded"
    jobs.embed(TEXTS)
    await process.say((1, EMBEDDED))
    jobs.keep_small(key, 0)
    jobs.embed(TEXTS)
    await turns()
    assert jobs.small == {key: math.inf}
    jobs.keep_small(key, 0)
    await turns()
    assert (process.sent[-1], jobs.small) == (replace(TEXTS, serial=3, texts=()), {})
    await process.say((2, EMBEDDED))
    jobs.keep_small(key, 0)
    jobs.submit(OTHER, Generate(0))
    await turns()
    assert not jobs.small
    assert process.sent[-1] == OTHER


async def test_a_question_to_another_pair_waits_for_it_and_one_that_a_swap_overtakes_is_asked_again(
    jobs, process
):
    lost = jobs.ask(DEMO, ASKED)
    waiting = jobs.ask(OTHER, ASKED)
    assert (process.starts, jobs._in_order()) == (1, [lost])
    await process.say(*READY)
    await process.say((2, Rendered("of the other")))
    assert await waiting.last() == Rendered("of the other")
    assert process.sent[-1] == DEMO
    await process.say(*READY)
    await process.say((3, Rendered("of the first")))
    assert await lost.last() == Rendered("of the first")


async def test_what_waits_for_the_loaded_pair_goes_before_a_swap_for_a_while(jobs, process, monkeypatch):
    jobs.submit(DEMO, Generate(0))
    other, ours = jobs.submit(OTHER, Generate(0)), jobs.submit(DEMO, Generate(0))
    assert jobs._in_order() == [ours, other]
    monkeypatch.setattr(jobs_module, "SWAP_SECONDS", 0.0)
    assert jobs._in_order() == [other, ours]


async def test_whoever_waits_learns_that_the_server_ends(jobs):
    waiting = [jobs.submit(DEMO, Generate(0)), jobs.submit(DEMO, Generate(0)), jobs.ask(DEMO, ASKED)]
    jobs.stop()
    for job in waiting:
        with pytest.raises(Problem, match="the server is shutting down"):
            await job.next(1)


async def test_a_writer_that_fails_ends_its_stream_with_an_error(jobs, process):
    class Wrong(http.Writer):
        whole = grow = None

        def finished(self, done):
            raise KeyError("wrong")

    replies = Replies(jobs, WANTED)
    await process.say(FINISHED)
    (words,) = [chunk async for chunk in http.ReplyStream(replies, None, Wrong("demo")).chunks()]
    assert b"localspec failed: KeyError" in words


@pytest.mark.parametrize(
    ("writer", "words"),
    [
        (ChatWriter, b": working\n\n"),
        (lambda asked: MessageWriter("demo", ()), b'event: ping\ndata: {"type":"ping"}\n\n'),
        (lambda asked: ResponseWriter("demo"), b"event: response.in_progress\n"),
        (lambda asked: LineWriter("demo", "message"), b'{"role":"assistant","content":""},"done":false}\n'),
        (
            lambda asked: CompletionWriter(SimpleNamespace(loaded=None), asked, (), "a", False),
            b": working\n\n",
        ),
    ],
)
async def test_a_stream_that_waits_gives_signs_of_life(jobs, process, monkeypatch, writer, words):
    """They come while a prompt is read as well: reports of that are no text."""
    monkeypatch.setattr(http, "PING_SECONDS", 0.01)
    chunks, found = http.ReplyStream(Replies(jobs, WANTED), None, writer(WANTED)).chunks(), []
    while sum(words in chunk for chunk in found) < 2:
        found.append(await anext(chunks))
        process.report(Prefill(1, 10, 0.1))
    await process.say(FINISHED)
    assert [chunk async for chunk in chunks]


@pytest.fixture
async def slots(process):
    """The queue before a pair that answers two requests at once."""
    found = Jobs(process, DEMO)
    await process.say(Ready("demo", "target", "draft", 100, 0.1, parallel=2))
    return found


def words(text):
    return Piece(text, Kind.ANSWER, Origin.PLAIN, Source.PLAIN)


async def test_as_many_are_answered_at_once_as_there_are_slots_and_only_the_others_wait(slots, process):
    first, second, third = (slots.submit(DEMO, Generate(0)) for _ in range(3))
    assert process.answers() == [1, 2]
    assert slots._in_order() == [third]
    await process.say((2, words("two")), (1, words("one")), (2, FINISHED))
    assert process.answers() == [1, 2, 3]
    assert (await first.next(1)).text == "one"
    assert ((await second.next(1)).text, await second.next(1)) == ("two", FINISHED)
    assert (slots.running, slots.waiting) == (2, 0)


async def test_a_pair_is_replaced_once_all_its_replies_have_ended(slots, process, monkeypatch):
    monkeypatch.setattr(jobs_module, "SWAP_SECONDS", 0.0)
    running = [slots.submit(DEMO, Generate(0)), slots.submit(DEMO, Generate(0))]
    other, ours = slots.submit(OTHER, Generate(0)), slots.submit(DEMO, Generate(0))
    await process.say((1, FINISHED))
    assert (process.starts, slots.running, slots._in_order()) == (0, 1, [other, ours])
    await process.say((2, FINISHED))
    assert (process.starts, slots.running) == (1, 1)
    assert all([await job.next(1) == FINISHED for job in running])


async def test_an_engine_that_dies_ends_what_runs_with_a_sentence_and_what_waits_is_answered(slots, process):
    *running, _ = (slots.submit(DEMO, Generate(0)) for _ in range(3))
    question = slots.ask(DEMO, ASKED)
    await process.say(
        (1, words("one")), (0, LoadStage("running on the CPU")), (0, Died("it ended", "no idea"))
    )
    assert slots.stage == "", "it is the dead one's"
    assert (await running[0].next(1)).text == "one"
    for failed in (*(job.next(1) for job in running), question.last()):
        with pytest.raises(Problem, match="it ended") as caught:
            await failed
        assert caught.value.status == 503
    assert process.starts == 1
    await process.say(*READY)
    assert process.answers() == [1, 2, 4]
    assert (slots.running, slots.waiting, slots.restarts) == (1, 0, 1)


async def test_a_slot_that_heeds_no_cancel_ends_the_engine_also_beside_others(slots, process, passed):
    stuck, beside = slots.submit(DEMO, Generate(0)), slots.submit(DEMO, Generate(0))
    stuck.give_up()
    await passed(jobs_module.STUCK_SECONDS - 0.1)
    assert process.starts == 0
    await passed(0.2)
    assert process.starts == 1
    with pytest.raises(Problem, match="the engine stopped responding"):
        await beside.next(1)


async def test_a_reply_knows_how_long_it_waited_in_the_queue(jobs, process):
    jobs.submit(DEMO, Generate(0))
    replies = Replies(jobs, WANTED)
    jobs._waiting[0].came -= 100.0
    await process.say((1, FINISHED), (2, FINISHED))
    (done,) = await replies.all()
    assert 100 <= done.waited_seconds < 200


async def test_several_replies_to_one_request_are_written_at_once_each_with_its_number(slots, process):
    wanted = replace(
        WANTED, prompts=(replace(WANTED.prompts[0], options={"seed": 2**64 - 1}),), replies=3, with_usage=True
    )
    stream = http.ReplyStream(Replies(slots, wanted), None, ChatWriter(wanted)).chunks()
    await process.say((1, Prefill(1, 10, 0.1)))
    chunks = [await anext(stream) for _ in range(3)]
    assert process.answers() == [1], "the first reads the prompt for all"
    await process.say((1, words("a")))
    chunks.append(await anext(stream))
    assert process.answers() == [1, 2]
    await process.say((2, words("b")), (2, FINISHED))
    chunks += [await anext(stream) for _ in "b."]
    chunks = [json.loads(chunk.removeprefix(b"data: ")) for chunk in chunks]
    reported = [(c["choices"][0]["index"], c["choices"][0]["delta"].get("content")) for c in chunks]
    assert reported == [*((n, None) for n in range(3)), (0, "a"), (1, "b"), (1, None)]
    seeds = [request.options["seed"] for request in process.sent if isinstance(request, Generate)]
    assert seeds == [2**64 - 1, 0, 1]
    await process.say((1, FINISHED), (3, words("c")), (3, FINISHED))
    rest = [chunk async for chunk in stream]
    *others, last = [json.loads(chunk.removeprefix(b"data: ")) for chunk in rest[:-1]]
    ends = [(c["choices"][0]["index"], c["choices"][0]["finish_reason"]) for c in others]
    assert ends == [(0, "stop"), (2, None), (2, "stop")]
    assert last["usage"]["completion_tokens"] == 0
    assert rest[-1] == b"data: [DONE]\n\n"


def test_options_that_are_nested_too_deeply_never_reach_the_queue():
    deep = {}
    for _ in range(100_000):
        deep = {"not": deep}
    with pytest.raises(RecursionError):
        openai_options(Fields({"json_schema": deep}))


async def test_an_idle_pair_is_unloaded_and_the_next_request_loads_it_again(process, passed):
    jobs = Jobs(process, DEMO, keep_alive_seconds=0.3)
    reply = jobs.submit(DEMO, Generate(0))
    await process.say(*READY)
    question = jobs.ask(DEMO, ASKED)
    await process.say((1, FINISHED))
    await passed(0.4)
    assert (await reply.next(1), process.unloads, jobs.seconds_left) == (FINISHED, 0, None)
    await process.say((2, Rendered("of the question")))
    assert await question.last() == Rendered("of the question")
    await passed(0.2)
    assert 0 < jobs.seconds_left < 0.2
    assert process.unloads == 0
    await passed(0.2)
    assert (process.unloads, process.starts, jobs.asleep) == (1, 0, True)
    for number, make in enumerate((jobs.submit, jobs.ask), 1):
        make(DEMO, Generate(0))
        assert (process.starts, process.sent[-1], jobs.asleep) == (number, DEMO, False)
        await process.say(*READY)
        await process.say(FINISHED)
        await passed(0.4)
        assert (process.unloads, jobs.asleep) == (number + 1, True)


async def test_a_request_changes_how_long_the_pair_is_kept_until_it_is_unloaded(jobs, process, passed):
    await passed(1e6)
    assert (process.unloads, jobs.seconds_left) == (0, None)
    jobs.keep_alive(60)
    assert jobs.seconds_left > 50
    jobs.keep_alive(0)
    await passed(0)
    assert (process.unloads, jobs.keep_alive_seconds) == (1, None)


@pytest.mark.parametrize("turns_later", range(4))
async def test_a_client_that_leaves_as_a_report_comes_ends_the_wait_for_it(turns_later):
    awake = asyncio.Event()
    waiting = asyncio.create_task(jobs_module.came(awake, 10))
    await turns()
    awake.set()
    for _ in range(turns_later):
        await asyncio.sleep(0)
    if waiting.cancel():
        with pytest.raises(asyncio.CancelledError):
            await waiting
    else:
        assert await waiting
