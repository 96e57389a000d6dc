"""Messages of a conversation, and the forms in which callers may give them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localspec.errors import BadSetting

ROLES = ("system", "user", "assistant")
_REASONING_KEYS = ("reasoning", "reasoning_content")  # ours, and that of OpenAI-style servers
_NO_ANSWER = "(no answer)"  # for a reply that ended while the model still reasoned
_FORM = 'a message is {"role": "user", "content": "..."}'


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: str  # one of ROLES
    content: str
    reasoning: str = ""  # what the model thought before it answered; history normally leaves it out


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


def as_history(text: str) -> Message:
    """What a conversation remembers of a reply: the answer, without the reasoning that led to it."""
    # Some templates refuse an empty message, and most want one between two of the user's.
    return Message("assistant", text if text.strip() else _NO_ANSWER)


def _as_message(given: object, which: str) -> Message:
    if isinstance(given, Message):
        return given
    if not isinstance(given, Mapping):
        raise BadSetting(f"{which} is {_kind(given)}, not a dictionary", hint=_FORM)
    filled = {key: value for key, value in given.items() if value is not None}
    unknown = [str(key) for key in filled if key not in ("role", "content", *_REASONING_KEYS)]
    if unknown:
        raise BadSetting(
            f"{which} has an unknown key: {unknown[0]!r}", hint=f"{_FORM}; tools are not supported"
        )
    reasoning = next((filled[key] for key in _REASONING_KEYS if key in filled), "")
    return Message(filled.get("role", ""), _text_of(filled.get("content", ""), which), reasoning)


def _text_of(content: object, which: str) -> str:
    """The text of a message; parts in OpenAI's form are joined by line ends, as llama.cpp does."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes | bytearray):
        raise BadSetting(f"the content of {which} is {_kind(content)}", hint="content is a text")
    return "\n".join(_text_of_part(part, which) for part in content)


def _text_of_part(part: object, which: str) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
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
    return Message(message.role, _valid(message.content), _valid(message.reasoning))


def _valid(text: str) -> str:
    """Text that can be encoded: surrogates, from a terminal or JSON, are joined or become U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _kind(value: object) -> str:
    return f"of type {type(value).__name__}"
