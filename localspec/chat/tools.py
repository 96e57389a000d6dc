"""Functions that a model may call, as their caller describes them, and the words for a model that knows none."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from localspec.chat.messages import Message
from localspec.errors import BadSetting
from localspec.events import ToolCall
from localspec.structure.call_form import GENERIC
from localspec.structure.grammar import LARGEST
from localspec.structure.schema import read_schema

_FORM = 'a tool is {"type": "function", "function": {"name": "...", "parameters": {a JSON schema}}}'
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str
    parameters: Mapping[str, Any]  # a JSON schema, of an object
    given: Mapping[str, Any]  # as its caller describes it, in OpenAI's form

    @property
    def definition(self) -> dict[str, Any]:
        """The tool with all that chat templates may look for."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": _spelled(self.parameters),
        }
        return {"type": "function", "function": function}

    @property
    def schema(self) -> dict[str, Any]:
        """The schema of the arguments; parameters that name none take none."""
        nothing = not self.parameters.keys() - {"type", "properties"} and not self.parameters.get(
            "properties"
        )
        return {**self.parameters, **({"additionalProperties": False} if nothing else {})}


def _spelled(schema: Any) -> Any:  # noqa: ANN401  JSON
    """A schema with a description of each property, and one type where it names several."""
    if isinstance(schema, list):
        return [_spelled(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {key: _spelled(value) for key, value in schema.items()}
    if isinstance(kinds := found.get("type"), list) and kinds:
        found["type"] = next((kind for kind in kinds if kind != "null"), kinds[0])
    if isinstance(named := found.get("properties"), dict):
        parts = {key: {"description": "", **part} for key, part in named.items() if isinstance(part, dict)}
        found["properties"] = {**named, **parts}
    return found


def read_tools(given: object) -> tuple[Tool, ...]:
    """Tools in OpenAI's form, or only their functions; BadSetting for anything else."""
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence) or not given:
        raise BadSetting("tools must be a list with at least one tool", hint=_FORM)
    tools = tuple(_read_tool(tool, f"tool {n}") for n, tool in enumerate(given, start=1))
    if len({tool.name for tool in tools}) < len(tools):
        raise BadSetting("two tools have the same name", hint="give each tool a name of its own")
    return tools


def _read_tool(given: Any, which: str) -> Tool:  # noqa: ANN401  JSON
    function = given.get("function", given) if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping):
        raise BadSetting(f"{which} is not a dictionary", hint=_FORM)
    name, description = function.get("name"), function.get("description") or ""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadSetting(
            f"{which} is called {name!r}", hint="names have up to 64 letters, digits, _, . and -"
        )
    if not isinstance(description, str):
        raise BadSetting(f"the description of {name} is not text", hint=_FORM)
    wrapped = function is not given
    function = {
        key: value for key, value in function.items() if value is not None and (wrapped or key != "type")
    }
    given = {"type": "function", **(given if wrapped else {}), "function": function}
    parameters = read_schema(function.get("parameters") or {"properties": {}}, largest=LARGEST)
    if parameters.get("type", "object") != "object":
        raise BadSetting(f"the parameters of {name} are not an object", hint=_FORM)
    return Tool(name, description, {"type": "object", **parameters}, given)


def instructions(tools: Sequence[Tool]) -> str:
    """The system text for a model that knows no tools."""
    listed = "\n".join(json.dumps(tool.definition["function"], ensure_ascii=False) for tool in tools)
    return (
        "You can call these functions:\n"
        f"{listed}\n"
        "To call one, write its name and arguments as JSON, and nothing after it:\n"
        '<tool_call>\n{"name": NAME, "arguments": {...}}\n</tool_call>'
    )


def written_call(call: ToolCall) -> str:
    """A call as the generic format writes it."""
    arguments = call.unreadable or json.dumps(call.arguments, ensure_ascii=False)
    return f"{GENERIC.open}{call.name}{GENERIC.name_end}{arguments}{GENERIC.close}"


def spelled_out(messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[Message, ...]:
    """The messages for a template that knows no tools: instructions, calls and results as plain text."""
    if not tools and not any(message.tool_calls or message.role == "tool" for message in messages):
        return tuple(messages)
    told = Message("system", instructions(tools)) if tools else None
    plain = _as_texts(messages)
    if told and plain and plain[0].role == "system":
        plain[0] = replace(plain[0], content=f"{plain[0].content}\n\n{told.content}")
    elif told:
        plain.insert(0, told)
    return tuple(plain)


def _as_texts(messages: Sequence[Message]) -> list[Message]:
    """Calls and results as text; results in a row are one message, as user and assistant take turns."""
    texts: list[Message] = []
    before = ""
    for message in messages:
        text = _as_text(message)
        if message.role == before == "tool":
            text = Message("user", f"{texts.pop().content}\n{text.content}")
        texts.append(text)
        before = message.role
    return texts


def _as_text(message: Message) -> Message:
    if message.role == "tool":
        return Message("user", f"<tool_response>\n{message.content}\n</tool_response>")
    if not message.tool_calls:
        return message
    calls = [message.content] if message.content else []
    calls += map(written_call, message.tool_calls)
    return Message(message.role, "\n".join(calls), message.reasoning)
