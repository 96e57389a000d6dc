"""Reads tools, and describes them in a system message where the chat template does not support tools."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localspec.chat.messages import Message
from localspec.errors import BadSetting
from localspec.structure.grammar import LARGEST
from localspec.structure.schema import read_schema
from localspec.structure.tool_call_format import GENERIC, ToolCallFormat

_FORM = 'write a tool as {"type": "function", "function": {"name": "...", "parameters": {a JSON schema}}}'
_GENERIC_CALL = '<tool_call>\n{"name": NAME, "arguments": {...}}\n</tool_call>'
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str
    parameters: Mapping[str, Any]  # the JSON schema of an object
    given: Mapping[str, Any]  # the caller's definition, in OpenAI's form

    @property
    def definition(self) -> dict[str, Any]:
        """The tool with every field that chat templates read."""
        function = {"name": self.name, "description": self.description}
        return {"type": "function", "function": {**function, "parameters": _spelled(self.parameters)}}

    @property
    def schema(self) -> dict[str, Any]:
        """The schema of the arguments. For a tool without parameters, the schema allows no arguments."""
        named = self.parameters.keys() - {"type", "properties"} or self.parameters.get("properties")
        return {**self.parameters, **({} if named else {"additionalProperties": False})}


def _spelled(schema: Any) -> Any:  # noqa: ANN401  JSON
    """Give each property of a schema a description and a single type, because chat templates read both."""
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
    """Read a list of tools in OpenAI's form, or of their `function` parts alone. Raises BadSetting."""
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
        hint = "use at most 64 letters, digits, _, . and -"
        raise BadSetting(f"{name!r} is not a valid name ({which})", hint=hint)
    if not isinstance(description, str):
        raise BadSetting(f"the description of {name} is not text", hint=_FORM)
    wrapped = function is not given
    function = {k: v for k, v in function.items() if v is not None and (wrapped or k != "type")}
    given = {"type": "function", **(given if wrapped else {}), "function": function}
    parameters = read_schema(function.get("parameters") or {"properties": {}}, largest=LARGEST)
    if parameters.get("type", "object") != "object":
        raise BadSetting(f"the parameters of {name} are not an object", hint=_FORM)
    return Tool(name, description, {"type": "object", **parameters}, given)


def spelled_out(
    messages: Sequence[Message], tools: Sequence[Tool], form: ToolCallFormat = GENERIC
) -> tuple[Message, ...]:
    """Describe the tools in the system message; also write calls and results as text if `form` is not native."""
    plain = list(messages) if form.native else _as_texts(messages)
    if tools:
        own = [plain.pop(0).content] if plain and plain[0].role == "system" else []
        listed = "\n".join(json.dumps(tool.definition["function"], ensure_ascii=False) for tool in tools)
        example = form.written([("NAME", {"PARAMETER": "VALUE"})]) if form.native else _GENERIC_CALL
        instructions = (
            f"You can call these functions:\n{listed}\n"
            f"To call one, write its name and arguments as JSON, and nothing after it:\n{example}"
        )
        plain.insert(0, Message("system", "\n\n".join([*own, instructions])))
    return tuple(plain)


def _as_texts(messages: Sequence[Message]) -> list[Message]:
    """Write calls and results as text; consecutive results become one user message, as templates require."""
    texts: list[Message] = []
    for before, message in zip([None, *messages], messages, strict=False):
        if message.role == "tool":
            parts = [texts.pop().content] if before and before.role == "tool" else []
            parts.append(f"<tool_response>\n{message.content}\n</tool_response>")
            message = Message("user", "\n".join(parts))
        elif message.tool_calls:
            parts = [message.content] if message.content else []
            for call in message.tool_calls:
                arguments = call.unreadable or json.dumps(call.arguments, ensure_ascii=False)
                parts.append(f"{GENERIC.open}{call.name}{GENERIC.name_end}{arguments}{GENERIC.close}")
            message = Message(message.role, "\n".join(parts), message.reasoning)
        texts.append(message)
    return texts
