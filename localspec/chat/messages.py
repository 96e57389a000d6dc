"""Messages of a conversation, and the forms in which callers may give them."""

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from localspec.errors import BadSetting
from localspec.events import Reply, ToolCall

ROLES = ("system", "user", "assistant", "tool")
_REASONING_KEYS = ("reasoning", "reasoning_content")  # ours, and that of OpenAI-style servers
_MOST_REMEMBERED = 1000  # replies
_NO_ANSWER = "(no answer)"  # for a reply that ended while the model still reasoned
KEYS = ("role", "content", "tool_calls", "tool_call_id", "name", *_REASONING_KEYS)
_TEXTS = dict.fromkeys(("text", "input_text", "output_text"), "text") | {
    "refusal": "refusal"
}  # by a part's type
_FORM = 'a message is {"role": "user", "content": "..."}'
_CALL_FORM = 'a call is {"id": "...", "function": {"name": "...", "arguments": {...}}}'


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: str  # one of ROLES
    content: str
    reasoning: str = ""  # the reasoning before the answer; history normally leaves it out
    tool_calls: tuple[ToolCall, ...] = ()  # the assistant's tool calls
    tool_call_id: str = ""  # of the call whose result a tool's message brings

    @property
    def texts(self) -> tuple[str, ...]:
        """Every text in the message, names of arguments included."""
        found: list[str] = []
        self.with_texts(lambda text: found.append(text) or text)  # type: ignore[func-returns-value]
        return tuple(found)

    def with_texts(self, change: Callable[[str], str]) -> "Message":
        """The message with every text in it changed."""
        calls = tuple(
            ToolCall(
                change(call.name), _changed(call.arguments, change), change(call.id), change(call.unreadable)
            )
            for call in self.tool_calls
        )
        return Message(
            self.role, change(self.content), change(self.reasoning), calls, change(self.tool_call_id)
        )


def as_messages(prompt_or_messages: str | Sequence[Mapping[str, Any] | Message]) -> tuple[Message, ...]:
    """Messages from a prompt, OpenAI-style dictionaries, or messages; BadSetting for anything else."""
    if isinstance(prompt_or_messages, str):
        return (_checked(Message("user", prompt_or_messages), "the prompt"),)
    if isinstance(prompt_or_messages, Mapping | Message) or not isinstance(prompt_or_messages, Sequence):
        raise BadSetting(
            f"messages must be a text or a list, not {_kind(prompt_or_messages)}", hint=f"{_FORM}, in a list"
        )
    if not prompt_or_messages:
        raise BadSetting("the list of messages is empty", hint="give at least one user message")
    return tuple(
        _checked(_as_message(given, f"message {n}"), f"message {n}")
        for n, given in enumerate(prompt_or_messages, start=1)
    )


def as_history(reply: Reply) -> Message:
    """The message that a conversation keeps of a reply: the answer, with its reasoning only if it called a tool.

    Models continue their reasoning after the results.
    """
    if reply.tool_calls:
        return Message("assistant", reply.text.strip(), reply.reasoning, reply.tool_calls)
    # Some templates refuse an empty message, and most want one between two of the user's.
    return Message("assistant", reply.text if reply.text.strip() else _NO_ANSWER)


def are_continued(messages: Sequence[Message]) -> bool:
    """Whether the reply continues the last message."""
    last = messages[-1]
    return last.role == "assistant" and bool(last.content.strip()) and not last.tool_calls


def with_system(messages: Sequence[Message], system: str) -> tuple[Message, ...]:
    """The conversation with this system message, in place of the one it had."""
    rest = messages[1:] if messages and messages[0].role == "system" else messages
    return (Message("system", system), *rest) if system else tuple(rest)


def with_reply(messages: Sequence[Message], reply: Reply) -> tuple[Message, ...]:
    """The conversation with a reply, which may continue the last message."""
    if not are_continued(messages):
        return (*messages, as_history(reply))
    said = replace(messages[-1], content=messages[-1].content + reply.text, tool_calls=reply.tool_calls)
    return (*messages[:-1], said)


class Reasoning:
    """The reasoning of replies, which clients leave out when they send a conversation back."""

    def __init__(self) -> None:
        self._of: dict[Hashable, str] = {}  # the latest last

    def keep(self, messages: Sequence[Message], reply: Reply) -> None:
        """Remember the reasoning of the reply to these messages."""
        if reply.reasoning:
            self._of[_key(messages[-1], reply.text, reply.tool_calls)] = reply.reasoning
        if len(self._of) > _MOST_REMEMBERED:
            oldest, *_ = list(self._of)  # a copy: other sessions add theirs meanwhile
            self._of.pop(oldest, None)

    def put_back(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The messages with the reasoning of the replies among them."""
        if not self._of:
            return tuple(messages)
        pairs = zip((Message("", ""), *messages), messages, strict=False)
        return tuple(
            replace(message, reasoning=self._of.get(_key(before, message.content, message.tool_calls), ""))
            if message.role == "assistant" and not message.reasoning
            else message
            for before, message in pairs
        )


def _key(before: Message, answer: str, calls: Sequence[ToolCall]) -> Hashable:
    """A reply as a client sends it back, and what it answered."""
    written = tuple((call.name, json.dumps(call.arguments, sort_keys=True)) for call in calls)
    return before.role, before.content, answer.strip(), written


def _as_message(given: object, which: str) -> Message:
    if isinstance(given, Message):
        return given
    if not isinstance(given, Mapping):
        raise BadSetting(f"{which} is {_kind(given)}, not a dictionary", hint=_FORM)
    filled = {key: value for key, value in given.items() if value is not None}
    unknown = [str(key) for key in filled if key not in KEYS]
    if unknown:
        raise BadSetting(f"{which} has an unknown key: {unknown[0]!r}", hint=_FORM)
    role = filled.get("role", "")
    return Message(
        "system" if role == "developer" else role,
        _text_of(filled.get("content", ""), which),
        next((filled[key] for key in _REASONING_KEYS if key in filled), ""),
        _calls_of(filled.get("tool_calls", ()), which),
        str(filled.get("tool_call_id", "")),
    )


def _calls_of(given: object, which: str) -> tuple[ToolCall, ...]:
    """The calls of an assistant's message: our own, or dictionaries in OpenAI's form."""
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        raise BadSetting(f"tool_calls of {which} is not a list", hint=_CALL_FORM)
    return tuple(_call_of(call, which) for call in given)


def _call_of(given: object, which: str) -> ToolCall:
    if isinstance(given, ToolCall):
        return given
    outer = given if isinstance(given, Mapping) else {}
    function = outer.get("function", outer)
    name, arguments = function.get("name"), function.get("arguments", {})
    unreadable = ""
    if isinstance(arguments, str):
        arguments, unreadable = _read_arguments(arguments)
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        raise BadSetting(f"{which} has a tool call that cannot be read", hint=_CALL_FORM)
    return ToolCall(name, arguments, str(outer.get("id", "")), unreadable)


def _read_arguments(text: str) -> tuple[Mapping[str, Any], str]:
    """The arguments, or the text itself: a reply may end inside a call, and its history is still one."""
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}, text
    return (arguments, "") if isinstance(arguments, dict) else ({}, text)


def _text_of(content: object, which: str) -> str:
    """The text of a message; parts in OpenAI's form are joined by line ends, as llama.cpp does."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes | bytearray):
        raise BadSetting(f"the content of {which} is {_kind(content)}", hint="content is a text")
    return "\n".join(_text_of_part(part, which) for part in content)


def _text_of_part(part: object, which: str) -> str:
    found = part.get(_TEXTS.get(str(part.get("type")), "")) if isinstance(part, Mapping) else None
    if isinstance(found, str):
        return found
    kind = part.get("type") if isinstance(part, Mapping) else _kind(part)
    raise BadSetting(
        f"{which} has a part that is not text: {kind}",
        hint='parts are {"type": "text", "text": "..."}; images and audio are not supported',
    )


def _checked(message: Message, which: str) -> Message:
    if message.role not in ROLES:
        raise BadSetting(f"{which} has the role {message.role!r}", hint=f"roles are {', '.join(ROLES)}")
    if not isinstance(message.content, str) or not isinstance(message.reasoning, str):
        raise BadSetting(f"content and reasoning of {which} must be texts", hint=_FORM)
    if message.role == "user" and not message.content.strip():
        raise BadSetting(f"{which} is empty", hint="give some text")
    if message.tool_calls and message.role != "assistant":
        raise BadSetting(f"{which} has tool calls", hint="only the assistant calls tools")
    return message.with_texts(_valid)


def _valid(text: str) -> str:
    """Text that can be encoded: surrogates from a terminal or JSON are joined or become U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _changed(value: Any, change: Callable[[str], str]) -> Any:  # noqa: ANN401  JSON
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(str(name)): _changed(part, change) for name, part in value.items()}
    return [_changed(part, change) for part in value] if isinstance(value, Sequence) else value


def _kind(value: object) -> str:
    return f"of type {type(value).__name__}"
