"""A model's chat template: messages to the prompt text that the model was trained on."""

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from localspec.algorithm.protocols import Vocabulary
from localspec.chat.messages import Message
from localspec.chat.sandbox import Sandbox, rendered, unchangeable
from localspec.chat.thinking import THINK, ThinkingStyle, after_prompt, style_of, thinking_variables
from localspec.chat.tools import Tool
from localspec.errors import BadTemplate
from localspec.events import ToolCall
from localspec.structure.call_form import GENERIC, CallForm
from localspec.structure.derive_call_form import form_of

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
PLAIN = (
    "{% for message in messages %}{{ message.role + ': ' + message.content + '\\n\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
_SHORTEST_STOP = 3  # characters: an answer may well hold a shorter text
_MARKUP = re.compile(r"\s*(<[^<>\s]+>|\[[^\[\]\s]+\])")
_THOUGHTS_PROBE = "localspec thinks"
_PROBE = Message("user", "localspec asks")
_TURNS = (_PROBE, Message("assistant", "localspec answers"), Message("user", "localspec continues"))
_CALL_PROBE = ToolCall("localspec_asks", {"what": "time"}, "probe0001")
_SYSTEM_PROBE = Message("system", "localspec tells")


@dataclass(frozen=True, slots=True)
class Dialect:
    """The form in which a template wants calls, their ids and reasoning."""

    text_arguments: bool = False  # arguments are JSON text
    short_ids: bool = False  # ids are nine letters and digits
    one_call: bool = False  # in a message
    thinking_parts: bool = False  # reasoning is a part of the content


class ChatTemplate:
    """A Jinja template in a sandbox, and facts about it; safe to share between threads.

    Raises BadTemplate if it is unusable.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_text: str,
        eos_text: str,
        end_texts: Collection[str] = (),
        style: ThinkingStyle | None = None,
    ) -> None:
        """`end_texts`: texts of the tokens that end a reply.

        `style` is for models whose template does not show how they mark reasoning.
        """
        self.source = source
        self._end_texts = end_texts
        self._changes_lists = "append" in source or "pop" in source
        self._latest_tools: tuple[tuple[Tool, ...], dict[str, Any] | None] | None = None
        self._special = {"bos_token": bos_text, "eos_token": eos_text}
        self._sandbox = Sandbox()
        self._style = style_of(source) or style
        self._template, self._names, self.literals = self._sandbox.read(source)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        think: bool | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text; `think` sets the variables that the template has for it, `arguments` any.

        Without a place for a system message, its text goes in front of the first user message. Messages of one role
        in a row become one where the template refuses them.
        """
        if any(m.role == "system" for m in messages) and not self.takes_system:
            messages = fold_system(messages)
        if any(one.role == other.role for one, other in pairwise(messages)) and self._alternates:
            messages = joined(messages)
        if any(m.tool_calls or m.reasoning for m in messages):
            messages = self._in_dialect(messages)
        variables = {} if think is None else thinking_variables(think, self._names, self.literals)
        variables |= {"add_generation_prompt": add_generation_prompt, **(arguments or {})}
        return self._with([*map(self._form, messages)], {**self._without_tools, **variables})

    @cached_property
    def call_form(self) -> CallForm:
        """How this template writes tool calls, found by letting it write some; the generic form if it is not known."""

        def render(answer: str, calls: Sequence[ToolCall]) -> str:
            told = [_PROBE, Message("assistant", answer, tool_calls=tuple(calls))]
            return self._with([*map(self._form, told)], self._without_tools)

        return form_of(self.source, render, self._style.markers if self._style else ()) or GENERIC

    def tool_variables(self, tools: Sequence[Tool]) -> dict[str, Any] | None:
        """How this template hears of these tools: as they were given if it takes them so; None if it tells none."""
        if self._latest_tools is None or self._latest_tools[0] != tools:
            forms = ([tool.given for tool in tools], [tool.definition for tool in tools])
            found = (self._telling(form) for form in forms)
            self._latest_tools = tuple(tools), next(filter(None, found), None)
        return self._latest_tools[1]

    def shows(self, tools: Sequence[Tool]) -> bool:
        """Whether this template tells of these tools."""
        return self.tool_variables(tools) is not None

    def _telling(self, definitions: list[Any]) -> dict[str, Any] | None:
        functions = [given["function"] for given in definitions]
        variables: dict[str, Any] = {"tools": unchangeable(definitions)}
        if "functions" in self._without_tools:
            variables["functions"] = json.dumps(functions, ensure_ascii=False, indent=4)
        told = self._told([_PROBE], variables)
        return variables if all(function["name"] in told for function in functions) else None

    @cached_property
    def dialect(self) -> Dialect:
        """What this template refuses, or leaves out, in the form in which Hugging Face gives it."""
        found, text, written = (
            Dialect(),
            self._past(Dialect(), _CALL_PROBE),
            json.dumps(_CALL_PROBE.arguments),
        )
        if not text or (str(_CALL_PROBE.arguments) in text and written not in text):
            found, text = Dialect(text_arguments=True), self._past(Dialect(text_arguments=True), _CALL_PROBE)
            if written not in text:
                return Dialect()
        long, other = replace(_CALL_PROBE, id="call_localspec_asks"), replace(_CALL_PROBE, id="probe0002")
        found = replace(
            found, short_ids=not self._past(found, long), one_call=not self._past(found, _CALL_PROBE, other)
        )
        parted = (
            "" if _THOUGHTS_PROBE in text else self._past(replace(found, thinking_parts=True), _CALL_PROBE)
        )
        read = _THOUGHTS_PROBE in parted and not re.search(f"""['"]{_THOUGHTS_PROBE}['"]""", parted)
        return replace(found, thinking_parts=read)

    def _past(self, dialect: Dialect, *calls: ToolCall) -> str:
        """The prompt after these calls, empty where the template fails on them."""
        results = [Message("tool", "noon", tool_call_id=call.id) for call in calls]
        asked = Message("assistant", "", _THOUGHTS_PROBE, calls)
        told = [self._form(message, dialect) for message in (_PROBE, asked, *results)]
        return self._tried(told, self._without_tools) or ""

    def _in_dialect(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages with ids and numbers of calls that the template takes."""
        if self.dialect.one_call:
            messages = one_call_each(messages)
        return [*map(with_short_ids, messages)] if self.dialect.short_ids else messages

    def _told(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
        """The prompt of these messages, "" if the template fails on them."""
        return self._tried([*map(self._form, messages)], {**self._without_tools, **variables}) or ""

    def thinking_style(self, prompt: str) -> ThinkingStyle | None:
        """How a reply to this prompt marks its reasoning; None without reasoning."""
        return after_prompt(self._style, prompt) if self._style else None

    @cached_property
    def stops(self) -> tuple[str, ...]:
        """Stop strings for models whose turn ends in a text and not in an end token."""
        _, answered, rest = self._told(_TURNS, {}).partition(_TURNS[1].content)
        after, goes_on, _ = rest.partition(_TURNS[2].content)
        if not (answered and goes_on) or any(text in after for text in self._end_texts):
            return ()
        if found := _MARKUP.match(after):
            parts = self._style.markers if self._style else ()  # what ends a part need not end the reply
            return () if any(found[1] in marker for marker in parts) else (found[1],)
        begin, end = "\n" if after[:1].isspace() else "", after.strip()
        return (begin + end,) if len(end) >= _SHORTEST_STOP else ()

    @cached_property
    def takes_system(self) -> bool:
        """Whether a system message reaches the prompt: some templates refuse or ignore it."""
        return _SYSTEM_PROBE.content in self._told((_SYSTEM_PROBE, _PROBE), {})

    @cached_property
    def _alternates(self) -> bool:
        """Whether this template refuses two messages of one role in a row."""
        return self._tried([*map(self._form, (_PROBE, _PROBE))], self._without_tools) is None

    @cached_property
    def _takes_text(self) -> bool:
        """Whether a message's content may be a text; some templates know only lists of parts."""
        text, parts = (
            self._tried([_as_dictionary(_PROBE, Dialect(), parts=parts)], self._without_tools) or ""
            for parts in (False, True)
        )
        return _PROBE.content in text or _PROBE.content not in parts

    @cached_property
    def _without_tools(self) -> Mapping[str, Any]:
        """The value of `tools` that tells this template that there are no tools."""
        asked = [_as_dictionary(_PROBE, Dialect(), parts=False)]
        named = {"functions": "[]", "datetime": f"{self._sandbox.now:%B %d %Y}"}
        forms: tuple[Mapping[str, Any], ...] = ({"tools": None, "documents": None}, {}, named)
        return next((form for form in forms if self._tried(asked, form) is not None), forms[0])

    def _tried(self, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> str | None:
        try:
            return self._with(messages, variables)
        except BadTemplate:
            return None

    def _form(self, message: Message, dialect: Dialect | None = None) -> dict[str, Any]:
        if dialect is None:
            dialect = self.dialect if message.tool_calls or message.reasoning else Dialect()
        return _as_dictionary(message, dialect, parts=not self._takes_text)

    def _with(self, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> str:
        told = unchangeable(messages) if self._changes_lists else messages
        return rendered(self._template, {"messages": told, **self._special, **variables})


def template_of(source: str | None, vocabulary: Vocabulary) -> tuple[ChatTemplate, tuple[str, ...]]:
    """A model file's template or a substitute, and a notice for the user."""
    controls = vocabulary.control_texts()
    notices: tuple[str, ...] = ()
    if not source:
        chatml = {"<|im_start|>", "<|im_end|>"} <= controls.keys()
        source = CHATML if chatml else PLAIN
        form = "ChatML, whose tokens it has" if chatml else "plain text: it may not be made for chat"
        notices = (f"the model file has no chat template; messages are written in {form}",)
    template = ChatTemplate(
        source,
        bos_text=_text(vocabulary, vocabulary.bos),
        eos_text=_text(vocabulary, vocabulary.eos),
        end_texts=[text for text, token in controls.items() if text and vocabulary.is_end(token)],
        style=THINK if THINK.name in controls else None,
    )
    return template, notices


def one_call_each(messages: Sequence[Message]) -> list[Message]:
    """The messages with every call in a message of its own, and its result behind it."""
    found: list[Message] = []
    waiting = {message.tool_call_id: message for message in messages if message.role == "tool"}
    for message in messages:
        if message.role != "tool" or message.tool_call_id in waiting:
            waiting.pop(message.tool_call_id, None)
            found.append(replace(message, tool_calls=message.tool_calls[:1]))
        for call in message.tool_calls[1:]:
            first = found[-1].tool_calls
            found += [waiting.pop(call.id) for call in first if call.id in waiting]
            found.append(Message("assistant", "", tool_calls=(call,)))
    return found


def with_short_ids(message: Message) -> Message:
    """The message with ids of nine letters and digits; equal ids stay equal."""
    calls = tuple(replace(call, id=_short(call.id)) for call in message.tool_calls)
    return replace(message, tool_calls=calls, tool_call_id=_short(message.tool_call_id))


def _short(call_id: str) -> str:
    if not call_id or (len(call_id) == 9 and call_id.isalnum()):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]


def joined(messages: Sequence[Message]) -> list[Message]:
    """The messages with those of one role in a row as one; results stay apart, and so does what follows a call."""
    found: list[Message] = []
    for message in messages:
        last = found[-1] if found else None
        if last and last.role == message.role and message.role != "tool" and not last.tool_calls:
            texts, thoughts = (last.content, message.content), (last.reasoning, message.reasoning)
            content, reasoning = ("\n\n".join(filter(None, parts)) for parts in (texts, thoughts))
            found[-1] = replace(message, content=content, reasoning=reasoning)
        else:
            found.append(message)
    return found


def fold_system(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages with the system text in front of the first user message."""
    system = "\n\n".join(m.content for m in messages if m.role == "system")
    rest = [m for m in messages if m.role != "system"]
    first = next((i for i, m in enumerate(rest) if m.role == "user"), None)
    if first is None:
        return (Message("user", system), *rest)
    rest[first] = replace(rest[first], content=f"{system}\n\n{rest[first].content}")
    return tuple(rest)


def _as_dictionary(message: Message, dialect: Dialect, *, parts: bool) -> dict[str, Any]:
    content: Any = [{"type": "text", "text": message.content}] if parts else message.content
    if dialect.thinking_parts and message.reasoning:
        text = [{"type": "text", "text": message.content}] if message.content else []
        content = [{"type": "thinking", "thinking": message.reasoning}, *text]
    # Templates have not agreed on a name for reasoning.
    reasoning = dict.fromkeys(("reasoning_content", "reasoning", "thinking"), message.reasoning)
    calls = [
        {
            "type": "function",
            "id": call.id,
            "function": {"name": call.name, "arguments": _arguments(call, text=dialect.text_arguments)},
        }
        for call in message.tool_calls
    ]
    return {
        "role": message.role,
        "content": content,
        **(reasoning if message.reasoning else {}),
        **({"tool_calls": calls} if calls else {}),
        **({"tool_call_id": message.tool_call_id} if message.tool_call_id else {}),
    }


def _arguments(call: ToolCall, *, text: bool) -> object:
    if text and not call.unreadable:
        return json.dumps(call.arguments, ensure_ascii=False)
    return call.unreadable or call.arguments


def _text(vocabulary: Vocabulary, token: int | None) -> str:
    return "" if token is None else vocabulary.text(token)
