"""Twelve conversations with tools, and their prompts by plain Jinja, as Hugging Face's tokenizers set it up."""

import json
from collections.abc import Generator
from functools import cache

from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment


def tool(name, description, properties, required=()):
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


CITY = {"type": "string", "description": "The city's name."}
TOOLS = [
    tool(
        "get_weather",
        "The weather of the coming days.",
        {"city": CITY, "days": {"type": "integer"}},
        ["city"],
    ),
    tool(
        "search", "Looks a text up.", {"query": {"type": "string"}, "filters": {"type": "object"}}, ["query"]
    ),
]
PING = [{"type": "function", "function": {"name": "ping", "description": "Answers.", "parameters": {}}}]
PING[0]["function"]["parameters"] = {"type": "object", "properties": {}}


def says(role, content, **more):
    return {"role": role, "content": content, **more}


def called(*calls, content="", **more):
    """Calls, each an id, a name and its arguments."""
    written = [
        {"id": i, "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, name, arguments in calls
    ]
    return says("assistant", content, **more, tool_calls=written)


def result(call_id, content):
    return {"role": "tool", "tool_call_id": call_id, "content": content}


LEFT_OUT = "left out"  # a variable that the template does not get
ASK = says("user", "Do I need an umbrella in Oslo?")
SYSTEM = says("system", "Be terse.")
OSLO = called(("call00001", "get_weather", {"city": "Oslo", "days": 2}))
RAIN = result("call00001", '{"sky": "rain"}')
THOUGHTS = "They ask for weather.\nSo I look it up."
DEEP = {"query": 'a "b" \\ é\nnew <line> & so', "filters": {"tags": ["x", 3, None], "deep": {"on": True}}}
CONVERSATIONS = {
    "turns": ([ASK, says("assistant", "Yes."), says("user", "And in Rome?")], None),
    "system": ([SYSTEM, ASK], None),
    "tools": ([ASK], TOOLS),
    "system and tools": ([SYSTEM, ASK], TOOLS),
    "no arguments": (
        [says("user", "Ping!"), called(("call00003", "ping", {})), result("call00003", "pong")],
        PING,
    ),
    "one call": ([ASK, OSLO, RAIN], TOOLS),
    "text before": ([SYSTEM, ASK, {**OSLO, "content": "Let me look."}, RAIN], TOOLS),
    "two calls": (
        [
            ASK,
            called(
                ("call00001", "get_weather", {"city": "Oslo"}), ("call00002", "get_weather", {"city": "Rome"})
            ),
            RAIN,
            result("call00002", "sun"),
        ],
        TOOLS,
    ),
    "reasoning": ([SYSTEM, ASK, {**OSLO, "reasoning_content": THOUGHTS}, RAIN], TOOLS),
    "nested": ([ASK, called(("call00004", "search", DEEP)), result("call00004", "found é & <b>")], TOOLS),
    "rounds": (
        [
            ASK,
            {**OSLO, "reasoning_content": THOUGHTS},
            RAIN,
            called(("call00005", "search", {"query": "umbrella"})),
            result("call00005", "A shop."),
        ],
        TOOLS,
    ),
    "answered": (
        [SYSTEM, ASK, OSLO, RAIN, says("assistant", "Yes, it rains."), says("user", "And tomorrow?")],
        TOOLS,
    ),
}


class _Generation(Extension):
    tags = frozenset({"generation"})

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    value = list(value) if isinstance(value, Generator) else value  # as llama.cpp; Hugging Face fails
    how = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
    return json.dumps(value, ensure_ascii=ensure_ascii, **how)


def named(message):
    """The message with its reasoning under every name that templates read it by."""
    thoughts = message.get("reasoning_content")
    return {**message, **dict.fromkeys(("reasoning", "thinking"), thoughts)} if thoughts else message


def with_text_arguments(message):
    calls = []
    for call in message.get("tool_calls", ()):
        text = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        calls.append({**call, "function": {**call["function"], "arguments": text}})
    return {**message, **({"tool_calls": calls} if calls else {})}


def with_thinking_part(message):
    thoughts = message.get("reasoning_content")
    parts = [{"type": "thinking", "thinking": thoughts}]
    parts += [{"type": "text", "text": message["content"]}] if message["content"] else []
    return {**message, "content": parts} if thoughts else message


@cache
def compiled(source, now, base):
    def refuse(message):
        raise ValueError(message)

    env = base(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"])
    env.filters["tojson"] = _tojson
    env.globals |= {"raise_exception": refuse, "strftime_now": now.strftime}
    return env.from_string(source)


def reference(source, messages, tools=None, *, now, change=named, base=ImmutableSandboxedEnvironment, **more):
    """The prompt; raises what the template raises. `change` is done to every message, `more` are other variables."""
    variables = {"tools": tools, "documents": None, "add_generation_prompt": True, **more}
    given = {name: value for name, value in variables.items() if value != LEFT_OUT}
    return compiled(source, now, base).render(
        messages=[change(message) for message in messages], bos_token="<s>", eos_token="</s>", **given
    )
