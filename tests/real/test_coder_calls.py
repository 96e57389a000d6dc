"""A small coder calls tools: through every interface, streamed and whole, and in an agent's loop.

LOCALSPEC_TEST_CODER names a GGUF of Qwen2.5-Coder-1.5B-Instruct, LOCALSPEC_TEST_CODER_DRAFT one of the 0.5B.
"""

import json
import os
import re
import subprocess
import sys

import pytest

import localspec
from tests.serve.conftest import serving

pytestmark = pytest.mark.nightly
TARGET, DRAFT = (os.environ.get(f"LOCALSPEC_TEST_CODER{end}", "") for end in ("", "_DRAFT"))
if not TARGET:
    pytest.skip("LOCALSPEC_TEST_CODER names no file", allow_module_level=True)
PAIR = ("--target", TARGET, "--draft", DRAFT or "lookup")


def function(name, about, **arguments):
    properties = {key: {"type": "string", "description": text} for key, text in arguments.items()}
    parameters = {"type": "object", "properties": properties, "required": [*properties]}
    return {"name": name, "description": about, "parameters": parameters}


FUNCTIONS = [
    function("read_file", "Read a file.", path="the file"),
    function("write_file", "Replace a file.", path="the file", content="the whole new text"),
    function("run_command", "Run a shell command and return what it prints.", command="the command"),
]
NAMES = [each["name"] for each in FUNCTIONS]
TOOLS = [{"type": "function", "function": each} for each in FUNCTIONS]
ASKED = {
    "Read the file notes.txt.": "read_file",
    "Write the word hello to the file a.txt.": "write_file",
    "Run the command ls.": "run_command",
    "What does main.py contain?": "read_file",
    "Which Python version is installed? Run python --version.": "run_command",
}
# A reply that begins with JSON, bare, in a fence or in a tag, and names an offered tool, but came as text.
MISSED = re.compile(rf'\s*(```\w*\s*|<\w+>\s*)?[\[{{][^\w]*"name":\s*"({"|".join(NAMES)})"')


@pytest.fixture(scope="module")
def http(home, tmp_path_factory):
    with serving(tmp_path_factory.mktemp("serving"), *PAIR, "--context", "4096") as endpoint:
        yield endpoint.http


def ask(http, text, choice="auto"):
    choice = {"type": "function", "function": {"name": choice}} if choice in NAMES else choice
    body = {"messages": [{"role": "user", "content": text}], "tools": TOOLS, "tool_choice": choice}
    body |= {"temperature": 0, "max_tokens": 300}
    (found,) = http.post("/v1/chat/completions", json=body).json()["choices"]
    return found["message"].get("content") or "", [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in found["message"].get("tool_calls") or ()
    ]


@pytest.mark.parametrize("text", ASKED)
def test_a_named_or_required_tool_is_called_once(http, text):
    for choice in (ASKED[text], "required"):
        _, calls = ask(http, text, choice)
        assert [name for name, _ in calls] == [ASKED[text]], choice


def chat(body):
    message = body["choices"][0]["message"]
    calls = [each["function"] for each in message.get("tool_calls") or ()]
    return message.get("content") or "", [(each["name"], json.loads(each["arguments"])) for each in calls]


def chat_stream(events):
    deltas = [event["choices"][0]["delta"] for event in events if event.get("choices")]
    calls = {}
    for call in (call for delta in deltas for call in delta.get("tool_calls") or ()):
        begun = calls.setdefault(call["index"], ["", ""])
        begun[0] += call["function"].get("name") or ""
        begun[1] += call["function"].get("arguments") or ""
    text = "".join(delta.get("content") or "" for delta in deltas)
    return text, [(name, json.loads(written)) for name, written in calls.values()]


def responses(body):
    calls = [item for item in body["output"] if item["type"] == "function_call"]
    text = "".join(part["text"] for item in body["output"] for part in item.get("content") or ())
    return text, [(call["name"], json.loads(call["arguments"])) for call in calls]


def responses_stream(events):
    return responses(events[-1]["response"])


def anthropic(body):
    blocks = body["content"]
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    return text, [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]


def anthropic_stream(events):
    blocks = [dict(event["content_block"]) for event in events if event["type"] == "content_block_start"]
    for event in events:
        if event["type"] == "content_block_delta":
            block, delta = blocks[event["index"]], event["delta"]
            block["text"] = block.get("text", "") + delta.get("text", "")
            block["json"] = block.get("json", "") + delta.get("partial_json", "")
    return anthropic(
        {"content": [block | {"input": json.loads(block.get("json") or "{}")} for block in blocks]}
    )


def ollama(*bodies):
    messages = [body["message"] for body in bodies]
    calls = [call["function"] for message in messages for call in message.get("tool_calls") or ()]
    return "".join(message["content"] for message in messages), [
        (each["name"], each["arguments"]) for each in calls
    ]


ANTHROPIC = [
    {"name": each["name"], "description": each["description"], "input_schema": each["parameters"]}
    for each in FUNCTIONS
]
INTERFACES = {
    "/v1/chat/completions": ({"tools": TOOLS}, "messages", chat, chat_stream),
    "/v1/responses": (
        {"tools": [{"type": "function", **each} for each in FUNCTIONS]}, "input", responses, responses_stream
    ),
    "/v1/messages": ({"tools": ANTHROPIC, "max_tokens": 300}, "messages", anthropic, anthropic_stream),
    "/api/chat": (
        {"tools": TOOLS, "options": {"temperature": 0}}, "messages", ollama, lambda events: ollama(*events)
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", ASKED)
def test_a_call_of_an_offered_tool_is_a_call_in_every_interface(http, text):
    found = []
    for path, (given, key, whole, streamed) in INTERFACES.items():
        body = {**given, "temperature": 0, key: [{"role": "user", "content": text}]}
        found.append(whole(http.post(path, json={**body, "stream": False}).json()))
        lines = http.post(path, json={**body, "stream": True}).text.splitlines()
        lines = [line.removeprefix("data: ") for line in lines if line.startswith(("data: {", "{"))]
        found.append(streamed([*map(json.loads, lines)]))
    shown, calls = found[0]
    assert all(each == found[0] for each in found)
    assert not MISSED.match(shown), shown
    assert [name for name, _ in calls] == [ASKED[text]]


# What to correct, and what the program then prints. Of 'the word must be "Hello"' this model makes a file that is
# only that word, in llama.cpp's server too.
FAULTS = {
    "def add(a, b):\n    return a - b\n\n\nprint(add(2, 3))\n": ("add must return a + b", "5"),
    'word = "Helo"\nprint(word)\n': ('the first line must be word = "Hello"', "Hello"),
    "price = 3\nprint(price * 2)\n": ("the price must be 4", "8"),
}
STEPS = (
    "The file main.py has a mistake. Read main.py.",
    "Run the command: python main.py",
    "Correct the mistake with write_file: {}.",
    "Run the command: python main.py",
    "Read main.py again.",
    "Say in one sentence what you changed.",
)


def done(folder, call):
    try:
        if call.name == "run_command":
            command = call.arguments["command"].replace("python ", f"{sys.executable} ")
            run = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, timeout=60)
            return run.stdout + run.stderr
        file = folder / os.path.basename(call.arguments["path"])
        if call.name == "read_file":
            return file.read_text()
        file.write_text(call.arguments["content"])
        return "written"
    except OSError as error:
        return str(error)


@pytest.mark.parametrize("program", FAULTS)
def test_an_agent_of_six_turns_changes_the_file(home, tmp_path, program):
    (tmp_path / "main.py").write_text(program)
    what, printed = FAULTS[program]
    with localspec.load(target=TARGET, draft=DRAFT or "lookup", context_length=4096) as session:
        messages = []
        for step in STEPS:
            messages.append({"role": "user", "content": step.format(what)})
            reply = session.run(messages, tools=TOOLS, temperature=0, max_tokens=400)
            print(reply.text, reply.tool_calls)
            messages = [*session.messages]
            for call in reply.tool_calls:
                result = done(tmp_path, call)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    run = subprocess.run([sys.executable, tmp_path / "main.py"], capture_output=True, text=True, timeout=60)
    assert (run.stdout.strip(), run.returncode) == (printed, 0)
