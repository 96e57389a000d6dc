"""Functions that a model may call: described by the caller, written by the model, read back."""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from localspec.chat.messages import Message
from localspec.errors import BadSetting
from localspec.events import ToolCall
from localspec.structure.grammar import LARGEST, SPACED, Grammar, as_lark, escaped, literal, without_options
from localspec.structure.schema import narrowed, read_schema

_FORM = 'a tool is {"type": "function", "function": {"name": "...", "parameters": {a JSON schema}}}'
MOST_CALLS = 16  # in one reply: a small model may not stop
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str
    parameters: Mapping[str, Any]  # a JSON schema, of an object

    @property
    def definition(self) -> dict[str, Any]:
        """The tool as chat templates know it, in OpenAI's form."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a family of models writes calls: `opening`, calls with `between` between them, `closing`.

    A call is {"name": NAME, ARGUMENTS_KEY: {...}}, or with `named` NAME, that text, and the arguments.
    """

    name: str
    mark: str  # how calls begin; "{" where a reply that begins so is a call
    opening: str
    between: str | None  # None: the model writes one call
    closing: str
    arguments_key: str = "arguments"
    named: str = ""
    native: bool = True  # the model's own template describes the tools

    @property
    def marks(self) -> tuple[str, ...]:
        """The texts that tell calls from each other and from an answer."""
        return (self.opening, self.between or "", self.closing, self.named)


_HERMES = ("<tool_call>", "<tool_call>\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>")
HERMES = CallFormat("hermes", *_HERMES)
GENERIC = CallFormat("generic", *_HERMES, native=False)
LLAMA = CallFormat("llama 3", "{", "", None, "", arguments_key="parameters")
MISTRAL = CallFormat("mistral", "[TOOL_CALLS]", "[TOOL_CALLS][", ", ", "]")
MISTRAL_NAMED = CallFormat("mistral 3", "[TOOL_CALLS]", "[TOOL_CALLS]", "[TOOL_CALLS]", "", named="[ARGS]")
FORMATS = (HERMES, MISTRAL, MISTRAL_NAMED, LLAMA)
PROBE = ToolCall("localspec_asks", {"what": "time"}, "probe0001")


def format_of(prompt: str) -> CallFormat:
    """The format in which a chat template wrote `PROBE` into a prompt; the generic one if it is not known."""
    arguments = json.dumps(
        PROBE.arguments
    )  # what closes a call is left out: Mistral's templates add an id there
    return next((how for how in FORMATS if head_of(PROBE.name, how) + arguments in prompt), GENERIC)


def body_head(name: str, how: CallFormat) -> str:
    return f'{{"name": {json.dumps(name)}, {json.dumps(how.arguments_key)}: '


def head_of(name: str, how: CallFormat) -> str:
    """How a reply's first call begins, up to its arguments."""
    return how.opening + (name + how.named if how.named else body_head(name, how))


def read_tools(given: object) -> tuple[Tool, ...]:
    """Tools in OpenAI's form, or only their functions; BadSetting for anything else."""
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence) or not given:
        raise BadSetting("tools must be a list with at least one tool", hint=_FORM)
    tools = tuple(_read_tool(tool, f"tool {n}") for n, tool in enumerate(given, start=1))
    if len({tool.name for tool in tools}) < len(tools):
        raise BadSetting("two tools have the same name", hint="give each tool a name of its own")
    return tools


def _read_tool(given: object, which: str) -> Tool:
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
    parameters = read_schema(function.get("parameters") or _NOTHING, largest=LARGEST)
    if parameters.get("type", "object") != "object":
        raise BadSetting(f"the parameters of {name} are not an object", hint=_FORM)
    says_nothing = not parameters.keys() - {"type", "properties"} and not parameters.get("properties")
    return Tool(name, description, {"type": "object", **parameters, **(_NOTHING if says_nothing else {})})


def tools_grammar(
    tools: Sequence[Tool], how: CallFormat, *, required: bool, names: Mapping[str, int]
) -> Grammar:
    """Text or calls, or only calls; arguments match their schemas, as far as these can be followed.

    Programs come with schemas that say more than can be followed, and check the arguments themselves.
    `names`: the texts of control tokens, which are no text to a grammar.
    """
    rules = [f"body: {' | '.join(f'body_{n}' for n in range(len(tools)))}"]
    for n, tool in enumerate(tools):
        schema = {
            "x-guidance": {**SPACED, "lenient": True},
            **without_options(narrowed(dict(tool.parameters))),
        }
        rules += [f"body_{n}: {body_rule(tool, how, n, names)}", f"arguments_{n}: %json {json.dumps(schema)}"]
    rules += [f"start: {calls(how, how.opening, names)}"] if required else either_rules(how, names)
    return Grammar("the tools' parameters", {"lark_grammar": "\n".join(rules)})


def body_rule(tool: Tool, how: CallFormat, number: int, names: Mapping[str, int]) -> str:
    if how.named:
        return f"{literal(tool.name + how.named, names)} arguments_{number}"
    return f'{as_lark(body_head(tool.name, how))} arguments_{number} "}}"'


def calls(how: CallFormat, opening: str, names: Mapping[str, int]) -> str:
    """One or more calls, as the right side of a rule."""
    more = "" if how.between is None else f"({literal(how.between, names)} body){{0,{MOST_CALLS - 1}}}"
    return f"{literal(opening, names)} body {more} {literal(how.closing, names)}"


def either_rules(how: CallFormat, names: Mapping[str, int]) -> list[str]:
    """Text without calls, or some text and then calls; only calls after a brace that begins the reply."""
    if how.mark == "{":
        return [f"start: TEXT | {calls(how, how.opening, names)}", "TEXT: /[^{](.|\\n)*/"]
    if how.mark in names:
        return [f"start: TEXT ({calls(how, how.opening, names)})?", "TEXT: /(.|\\n)*/"]
    mark = escaped(how.mark)
    return [
        f"start: TEXT | head {calls(how, how.opening.removeprefix(how.mark), names)}",
        f"head[lazy]: /(.|\\n)*{mark}/",
        f"TEXT: /(.|\\n)*/ & ~/(?s:.*){mark}(?s:.*)/",
    ]


def calls_in(text: str, how: CallFormat) -> tuple[tuple[ToolCall, ...], str]:
    """The complete calls in what a model wrote, and the rest: a call that was cut, or text that is none."""
    found, end = list[ToolCall](), 0
    while read := _call_after(text, end, how):
        call, end = read
        found.append(call)
    rest, between = text[end:], how.between or ""
    if found and (how.closing.startswith(rest) or between.startswith(rest)):
        return tuple(found), ""
    begun = found and between and rest.startswith(between)
    return tuple(found), how.opening + rest.removeprefix(between) if begun else rest


def _call_after(text: str, at: int, how: CallFormat) -> tuple[ToolCall, int] | None:
    """The next complete call, and where it ends."""
    start = text.find(how.mark if how.named else "{", at)
    try:
        if how.named:
            begin, end = start + len(how.mark), text.index(how.named, start)
            arguments, after = json.JSONDecoder().raw_decode(text, end + len(how.named))
            call = {"name": text[begin:end], how.arguments_key: arguments}
        else:
            call, after = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):  # cut, or nested too deeply to be read
        return None
    match call:
        case {"name": str(name), how.arguments_key: dict(arguments)} if start >= 0:
            return ToolCall(name, arguments, new_call_id()), after
    return None


def new_call_id() -> str:
    """Nine letters and digits, which is what Mistral's templates insist on; programs take equal ids for one call."""
    return secrets.token_hex(5)[:9]


def instructions(tools: Sequence[Tool]) -> str:
    """What a model is told that knows no tools of its own."""
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
    return f"{head_of(call.name, GENERIC)}{arguments}}}{GENERIC.closing}"


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
