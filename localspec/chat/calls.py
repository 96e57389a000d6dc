"""Tool calls in a conversation: told apart from the answer, and written for models that know no tools."""

from collections.abc import Sequence
from dataclasses import replace

from localspec.chat.matching import Patterns
from localspec.chat.messages import Message
from localspec.events import Kind
from localspec.structure.tools import Tool, instructions, written_call


class CallSplitter:
    """Splits an answer's text at the mark that begins tool calls; everything from there on is calls."""

    def __init__(self, mark: str) -> None:
        """`mark`: as `CallFormat` has it; a brace counts only where the answer begins."""
        self._patterns = Patterns([mark])
        self._only_first = mark == "{"
        self._held = ""
        self._kind = Kind.ANSWER

    def push(self, text: str) -> list[tuple[Kind, str]]:
        """Text that can be told apart now, in order."""
        if self._kind is Kind.TOOL_CALL or not text:
            return [(self._kind, text)] if text else []
        text = self._held + text
        match = self._patterns.find(text)
        if match and not (self._only_first and text[: match.start].strip()):
            self._kind, self._held = Kind.TOOL_CALL, ""
            before = [(Kind.ANSWER, text[: match.start])] if match.start else []
            return [*before, (Kind.TOOL_CALL, text[match.start :])]
        if self._only_first and text.strip():
            self._patterns = Patterns([])
        released = len(text) - self._patterns.unfinished(text)
        self._held = text[released:]
        return [(Kind.ANSWER, text[:released])] if released else []

    def flush(self) -> list[tuple[Kind, str]]:
        """What was held back, when no more text follows."""
        held, self._held = self._held, ""
        return [(self._kind, held)] if held else []


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
