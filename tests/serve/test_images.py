"""Images through the four interfaces, and what clients send in place of images."""

import base64

import anthropic
import ollama
import openai
import pytest

from tests.llama.images import PICTURES, image_url, model_in, turns_of
from tests.serve.conftest import serving

pytestmark = pytest.mark.process

KIND = "qwen2vl"
ROOM = 1024  # tokens of context: fewer than the rows of large.png
GREEDY = {"temperature": 0}
MODEL = {"model": KIND}
FIRST = turns_of(KIND, "square")[0]
RIGHT = f" {FIRST.text}", FIRST.prompt_tokens
WORDS = "What is this?"
GOOD = PICTURES["square.png"]
SOURCE = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(GOOD).decode()}


def text(words):
    return {"type": "text", "text": words}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A server whose model reads images."""
    files = model_in(tmp_path_factory.mktemp("images"), KIND)
    options = ("--target", files.target, "--draft", files.draft, "--threads", "1", "--context", str(ROOM))
    with serving(tmp_path_factory.mktemp("home"), *map(str, options)) as found:
        yield found


def by_chat(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        reply = client.chat.completions.create(**MODEL, messages=FIRST.messages, **FIRST.options)
    return reply.choices[0].message.content, reply.usage.prompt_tokens


def by_responses(url):
    image = {"type": "input_image", "image_url": image_url(GOOD)["image_url"]["url"], "detail": "auto"}
    asked = [{"role": "user", "content": [image, {"type": "input_text", "text": WORDS}]}]
    options = {**MODEL, **GREEDY, "max_output_tokens": FIRST.max_tokens}
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
        client.responses.stream(**options, input=asked) as stream,
    ):
        reply = [*stream][-1].response
    return reply.output_text, reply.usage.input_tokens


def by_messages(url):
    content = [{"type": "image", "source": SOURCE}, text(WORDS)]
    asked = {**MODEL, "messages": [{"role": "user", "content": content}]}
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        counted = client.messages.count_tokens(**asked).input_tokens
        reply = client.messages.create(**asked, max_tokens=FIRST.max_tokens, extra_body=GREEDY)
    assert counted == reply.usage.input_tokens + reply.usage.cache_read_input_tokens
    return reply.content[0].text, counted


def by_ollama(url):
    asked = [{"role": "user", "content": WORDS, "images": [GOOD]}]
    reply = ollama.Client(url).chat(KIND, asked, options=GREEDY | {"num_predict": FIRST.max_tokens})
    return reply.message.content, reply.prompt_eval_count


@pytest.mark.parametrize("ask", [by_chat, by_responses, by_messages, by_ollama])
def test_every_interface_has_llama_servers_text_and_counts_the_rows(images, ask):
    assert ask(images.url) == RIGHT


def test_a_follow_up_counts_the_image_among_the_cached_tokens(images):
    for number, asked in enumerate(turns_of(KIND, "square")):
        body = MODEL | asked.options | {"messages": asked.messages}
        answer = images.http.post("/v1/chat/completions", json=body).json()
        assert answer["choices"][0]["message"]["content"].removeprefix(" ") == asked.text
        assert answer["usage"]["prompt_tokens"] == asked.prompt_tokens
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert not number or cached >= asked.cached_tokens - 8


def test_an_image_in_the_result_of_a_tool_is_read(images):
    """Agents send screenshots so."""
    found, use = {}, {"type": "tool_use", "id": "c1", "name": "screenshot", "input": {}}
    for name in (None, "square.png", "other.ppm"):
        data = {"data": base64.b64encode(PICTURES[name]).decode()} if name else {}
        shot = {"type": "image", "source": SOURCE | data} if name else text("none")
        result = {"type": "tool_result", "tool_use_id": "c1", "content": [shot, text("done")]}
        contents = {"user": "Look", "assistant": [use]}
        messages = [{"role": role, "content": content} for role, content in contents.items()]
        messages.append({"role": "user", "content": [result, text(WORDS)]})
        body = {"messages": messages, "max_tokens": 12}
        reply = images.http.post("/v1/messages", json=MODEL | GREEDY | body).json()
        usage = reply["usage"]
        found[name] = reply["content"][0]["text"], usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert len({reply for reply, _ in found.values()}) == 3
    assert found["square.png"][1] == found["other.ppm"][1] > found[None][1] + 9


def test_a_server_says_whether_its_model_reads_images_and_refuses_them_if_not(images, http):
    for one, name, reads in ((images.http, KIND, True), (http, "demo", False)):
        assert one.get("/props").json()["modalities"] == {"vision": reads, "audio": False}
        assert ("vision" in ollama.Client(str(one.base_url)).show(name).capabilities) == reads
    answer = http.post("/v1/chat/completions", json={"messages": FIRST.messages, "max_tokens": 2})
    assert (answer.status_code, "reads no images" in answer.text) == (400, True)


FILES = {
    "broken": GOOD.replace(b"IDAT", b"IDAT\0\1\2", 1),
    "half": GOOD[: len(GOOD) // 2],
    "only a header": GOOD[:33],
    "half a PPM": PICTURES["other.ppm"][:6000],
    "a sound": b"RIFF\x24\0\0\0WAVEfmt " + bytes(24),
    "more rows than the context": PICTURES["large.png"],
}
SOURCES = {
    "no url": {},
    "nothing": None,
    "a number": 7,
    "a list": [image_url(GOOD)],
    "nested": {"url": {"url": "x"}},
}
AUDIO = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
BAD = {name: [image_url(data)] for name, data in FILES.items()}
BAD |= {name: [{"type": "image_url", "image_url": source}] for name, source in SOURCES.items()}
BAD |= {"audio": [AUDIO], "a good one and a bad one": [image_url(GOOD), image_url(GOOD[:99])]}
CONTENTS = [(name, "/v1/chat/completions", [*parts, text("Hi")], {}) for name, parts in BAD.items()]
BESIDE = (7, ["/etc/hostname"], [7], {"a": 1})
CONTENTS += [(f"beside: {images}", "/api/chat", "Hi", {"images": images}) for images in BESIDE]
BLOCKS = ({}, {"source": [SOURCE]}, {"source": SOURCE | {"data": 7}})
CONTENTS += [(f"block {n}", "/v1/messages", [{"type": "image", **more}], {}) for n, more in enumerate(BLOCKS)]


@pytest.mark.parametrize(
    ("path", "content", "beside"), [each[1:] for each in CONTENTS], ids=[each[0] for each in CONTENTS]
)
def test_a_bad_image_is_refused_in_a_sentence_and_the_next_chat_is_right(images, path, content, beside):
    for stream in (False, True):
        body = MODEL | {"messages": [{"role": "user", "content": content, **beside}], "stream": stream}
        answer = images.http.post(path, json=body | {"max_tokens": 2})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert len((error if isinstance(error, str) else error["message"]).split()) > 3
        assert "report it" not in answer.text
    assert by_chat(images.url) == RIGHT
