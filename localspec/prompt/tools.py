"""Read tools, and describe them in a system message if the chat template does not support tools."""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from localspec.errors import BadSetting
from localspec.prompt.messages import Message, Messages, arguments_of
from localspec.structure.expressible import expressible
from localspec.structure.schema import read_object, resolved
from localspec.structure.tool_call_format import GENERIC, ToolCallFormat

_FORM = 'write a tool as {"type": "function", "function": {"name": "...", "parameters": {a JSON schema}}}'
_GENERIC_CALL = '<tool_call>\n{"name": NAME, "arguments": {...}}\n</tool_call>'
_LONGEST_NAME = 128  # characters, as in Anthropic's interface
_UNUSUAL = re.compile(r"[^A-Za-z0-9_.-]")
_ANY: Mapping[str, Any] = {"type": "object", "properties": {}}
_ANYTHING: Mapping[str, Any] = {"type": "object", "additionalProperties": True}


@dataclass(frozen=True, slots=True)
class Tool:
    name: str  # the name that the model reads and writes
    description: str
    parameters: Mapping[str, Any]  # the JSON schema of the arguments, as far as a grammar can express it
    given: Mapping[str, Any]  # the caller's definition, in OpenAI's form
    called: str  # the name that the caller gave to the tool
    notice: str = ""  # a notice about keywords that the grammar leaves out
    strict: bool = False  # whether the grammar must express the whole schema

    @property
    def definition(self) -> dict[str, Any]:
        """The tool as chat templates read it: with every field, and with a schema in place of each `$ref`."""
        function = {"name": self.name, "description": self.description}
        given = {**_ANY, **(self.given["function"].get("parameters") or {})}
        return {"type": "function", "function": {**function, "parameters": _spelled(given, given)}}

    @property
    def schema(self) -> dict[str, Any]:
        """The schema of the arguments. For a tool without parameters, the schema allows no arguments."""
        named = self.parameters.keys() - {"type", "properties"} or self.parameters.get("properties")
        return {**self.parameters, **({} if named else {"additionalProperties": False})}


def _spelled(schema: Any, root: Mapping[str, Any], seen: Collection[str] = ()) -> Any:  # noqa: ANN401  JSON
    """Return a schema for chat templates: properties have a description and a single type, references are replaced.

    `seen`: the references that led to this schema; a reference to one of them stays.
    """
    if isinstance(schema, list):
        return [_spelled(part, root, seen) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    if schema.keys() & {"$ref", "allOf"} and (key := json.dumps(schema)) not in seen:
        schema, seen = resolved(schema, root) or schema, (*seen, key)
    named = schema.get("properties")
    described = {k: _spelled(v, root, seen) for k, v in schema.items() if k not in ("$defs", "definitions")}
    if isinstance(kinds := described.get("type"), list) and kinds:
        described["type"] = next((kind for kind in kinds if kind != "null"), kinds[0])
    if isinstance(named, Mapping):
        spelled = {key: _spelled(part, root, seen) for key, part in named.items()}
        parts = {key: {"description": "", **part} for key, part in spelled.items() if isinstance(part, dict)}
        described["properties"] = {**spelled, **parts}
    return described


def read_tools(given: object) -> tuple[Tool, ...]:
    """Read a list of tools in OpenAI's form, or of their `function` parts alone. Raises BadSetting."""
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence) or not given:
        raise BadSetting("tools must be a list with at least one tool", hint=_FORM)
    tools = dict[str, Tool]()
    for number, each in enumerate(given, start=1):
        tool = _read_tool(each, f"tool {number}")
        if first := tools.get(tool.called):
            notice = f"several tools are called {tool.called}: the model has the first one"
            tool = replace(first, notice="; ".join(filter(None, dict.fromkeys((first.notice, notice)))))
        tools[tool.called] = tool
    return tuple(_with_usual_names([*tools.values()]))


def _with_usual_names(tools: Sequence[Tool]) -> Iterator[Tool]:
    """Replace unusual characters in names, because a format of calls may use them as delimiters; shorten long names."""
    taken = {tool.called for tool in tools}
    for tool in tools:
        name = _UNUSUAL.sub("_", tool.called)[:_LONGEST_NAME]
        if name != tool.called:
            choices = (f"{name[: _LONGEST_NAME - 4]}_{n}" if n else name for n in range(len(tools) + 1))
            name = next(choice for choice in choices if choice not in taken)
            taken.add(name)
        given = {**tool.given, "function": {**tool.given["function"], "name": name}}
        yield replace(tool, name=name, given=given)


def with_names(messages: Sequence[Message], tools: Sequence[Tool]) -> Messages:
    """Return messages whose calls have the names that the model reads."""
    names = {tool.called: tool.name for tool in tools if tool.called != tool.name}
    if not names:
        return tuple(messages)
    calls = (
        tuple(replace(call, name=names.get(call.name, call.name)) for call in m.tool_calls) for m in messages
    )
    return tuple(replace(m, tool_calls=each) for m, each in zip(messages, calls, strict=True))


def _read_tool(given: Any, which: str) -> Tool:  # noqa: ANN401  JSON
    function = given.get("function", given) if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping):
        raise BadSetting(f"{which} is not a dictionary", hint=_FORM)
    name, description = function.get("name"), function.get("description") or ""
    if not isinstance(name, str) or not name.strip():
        raise BadSetting(f"the name of {which} cannot be {name!r}", hint="give a name of at least one letter")
    if not isinstance(description, str):
        raise BadSetting(f"the description of {name} is not text", hint=_FORM)
    if "input_schema" in function:  # Anthropic's form
        own = {key: function[key] for key in ("name", "description", "strict") if key in function}
        function = {**own, "parameters": function["input_schema"]}
    wrapped = "function" in given
    strict = True in (given.get("strict"), function.get("strict"))
    function = {k: v for k, v in function.items() if v is not None and (wrapped or k != "type")}
    if "parameters" in function:
        function["parameters"], parameters, notice = _read_parameters(function["parameters"], name)
    else:
        parameters, notice = _ANY, ""
    if strict and notice:
        raise BadSetting(notice, hint="correct the schema, or leave out strict")
    given = {"type": "function", **(given if wrapped else {}), "function": function}
    return Tool(name, description, parameters, given, name, notice, strict)


def _read_parameters(given: Any, name: str) -> tuple[Mapping[str, Any], Mapping[str, Any], str]:  # noqa: ANN401  JSON
    """Return the schema of parameters as the model reads it, the part that a grammar can express, and a notice."""
    try:
        schema = read_object(given or _ANY)
        if schema.get("type", "object") != "object":
            raise BadSetting("its parameters are not an object", hint=_FORM)
    except BadSetting as error:
        return _ANY, _ANYTHING, f"the tool {name} takes any object: {error}"
    shown: Mapping[str, Any] = given if isinstance(given, Mapping) else schema
    if schema.keys() & {"$ref", "allOf"} and (whole := resolved(schema, schema)):
        shown = schema = dict(whole)
    part, left_out = expressible(json.dumps({"type": "object", **schema}))
    keywords = ", ".join(dict.fromkeys(left_out))
    notice = f"the grammar of the tool {name} leaves out what it cannot express: {keywords}" * bool(left_out)
    anything = _ANYTHING if left_out and not part.get("properties") else {}
    return shown, {**anything, **part, "type": "object"}, notice


def spelled_out(
    messages: Sequence[Message], tools: Sequence[Tool], form: ToolCallFormat = GENERIC
) -> Messages:
    """Describe the tools in the system message; also write calls and results as text if `form` is not native."""
    plain = list(messages) if form.native else as_texts(messages)
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


def as_texts(messages: Sequence[Message]) -> list[Message]:
    """Write calls and results as text; consecutive results become one user message, as templates require."""
    texts: list[Message] = []
    for before, message in zip([None, *messages], calls_as_texts(messages), strict=False):
        if message.role == "tool":
            parts = [texts.pop().content] if before and before.role == "tool" else []
            parts.append(f"<tool_response>\n{message.content}\n</tool_response>")
            message = Message("user", "\n".join(parts))
        texts.append(message)
    return texts


def calls_as_texts(messages: Sequence[Message], form: ToolCallFormat = GENERIC) -> list[Message]:
    """Write each call into the content of its message."""
    texts: list[Message] = []
    for message in messages:
        if message.tool_calls:
            written = [form.written([(call.name, arguments_of(call))]) for call in message.tool_calls]
            parts = [message.content] if message.content else []
            message = Message(message.role, "\n".join([*parts, *written]), message.reasoning)
        texts.append(message)
    return texts
