"""A small coder calls tools: through every interface, streamed and whole, and in an agent's loop.

LOCALSPEC_TEST_CODER names a GGUF of Qwen2.5-Coder-1.5B-Instruct, LOCALSPEC_TEST_CODER_DRAFT one of the 0.5B.
"""

import os
import subprocess
import sys

import pytest

import localspec
from tests.serve import test_planted as planted
from tests.serve.conftest import serving
from tests.serve.test_writers import READERS, lines_in

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
TOOLS = [{"type": "function", "function": each} for each in FUNCTIONS]
ASKED = {
    "Read the file notes.txt.": "read_file",
    "Write the word hello to the file a.txt.": "write_file",
    "Run the command ls.": "run_command",
    "What does main.py contain?": "read_file",
    "Which Python version is installed? Run python --version.": "run_command",
}


@pytest.fixture(scope="module")
def http(home, tmp_path_factory):
    with serving(tmp_path_factory.mktemp("serving"), *PAIR, "--context", "4096") as endpoint:
        yield endpoint.http


ANTHROPIC = [
    {"name": each["name"], "description": each["description"], "input_schema": each["parameters"]}
    for each in FUNCTIONS
]
INTERFACES = {
    "/v1/chat/completions": ("messages", {"tools": TOOLS}),
    "/v1/responses": ("input", {"tools": [{"type": "function", **each} for each in FUNCTIONS]}),
    "/v1/messages": ("messages", {"tools": ANTHROPIC, "max_tokens": 300}),
    "/api/chat": ("messages", {"tools": TOOLS, "options": {"temperature": 0}}),
}


def asked(path, text, **more):
    key, body = INTERFACES[path]
    return {**body, "temperature": 0, key: [{"role": "user", "content": text}], **more}


@pytest.mark.parametrize("text", ASKED)
def test_a_named_or_required_tool_is_called_once(http, text):
    path, named = "/v1/chat/completions", {"type": "function", "function": {"name": ASKED[text]}}
    for choice in (named, "required"):
        name, *_ = planted.INTERFACES[path][0](
            http.post(path, json=asked(path, text, tool_choice=choice, max_tokens=300)).json()
        )
        assert name == ASKED[text], choice


@pytest.mark.parametrize("text", ASKED)
def test_a_call_of_an_offered_tool_is_a_call_in_every_interface(http, text):
    found = []
    for path, (shown_in, folded) in ((path, READERS[path]) for path in INTERFACES):
        whole = http.post(path, json=asked(path, text, stream=False)).json()
        found.append(planted.INTERFACES[path][0](whole)[:2])
        assert shown_in(whole) == folded(lines_in(http.post(path, json=asked(path, text, stream=True)).text))
    assert found == found[:1] * 4
    assert found[0][0] == ASKED[text]


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
