"""Targets whose weights write a call in their template's form: llama.cpp runs them, grammar and reader follow."""

import pytest

import localspec
from benchmarks.planted_agents import FORMS
from tests.chat.carried import TEMPLATES
from tests.gguf.planted import WORD, script_of, write_planted

ARGUMENTS = {"path": "/a/notes (2).txt", "limit": 20}
TEXT, WHOLE = {"type": "string"}, {"type": "integer"}
TOOL = {
    "name": "read_file",
    "parameters": {"type": "object", "properties": {"path": TEXT, "limit": WHOLE}, "required": ["path"]},
}


@pytest.mark.parametrize("form", ["qwen3-coder", "gpt-oss", "minimax-m2", "lfm2.5", "gemma-4"])
def test_a_call_is_read_and_its_result_answered(form, tmp_path, home):
    template, *ends = FORMS[form]
    script = script_of(TEMPLATES[template], tuple(ends), ("read_file", ARGUMENTS), "It says 4711.")
    target = write_planted(tmp_path / "planted.gguf", script)
    with localspec.load(target=str(target), draft="lookup", threads=1, context_length=4096) as session:
        for speculate in (False, True):
            session.reset()
            reply = session.run("Read it.", tools=[TOOL], speculate=speculate)
            (call,) = reply.tool_calls
            assert (call.name, call.arguments, reply.text) == ("read_file", ARGUMENTS, "")
            result = {"role": "tool", "tool_call_id": call.id, "content": f"It is {WORD}."}
            answer = session.run([*session.messages, result], tools=[TOOL], speculate=speculate)
            assert (answer.text, answer.tool_calls) == ("It says 4711.", ())
