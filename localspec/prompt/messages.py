"""Read messages in the forms that callers use, and make the prompt that fills a gap in a text (infill)."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.errors import BadSetting, LocalspecError
from localspec.events import Reply, ToolCall
from localspec.prompt.images import PLACE, UNREAD, UNREAD_FILE, Image, image_in_message, image_of, question_of

if TYPE_CHECKING:
    from localspec.algorithm.protocols import Vocabulary

ROLES = ("system", "user", "assistant", "tool")
_REASONING_KEYS = ("reasoning", "reasoning_content", "thinking")  # different servers use different keys
_RESULT_OF = ("tool_call_id", "tool_name", "name")  # keys of a result with the id or function of its call
_KEYS = ("role", "content", "tool_calls", "function_call", "images", *_RESULT_OF, *_REASONING_KEYS)
_OTHER_ROLES = {"developer": "system", "function": "tool"}
# The key of the text in each type of message part.
_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_IMAGES = ("image_url", "input_image", "image")  # types of parts that are images
_FILES = ("file", "input_file", "document")
_REASONING = ("thinking", "redacted_thinking", "reasoning", "reasoning_text")
_SOUNDS = ("input_audio", "audio", "audio_url", "video", "video_url")  # types that are refused in a question
_MADE_ID = re.compile(r"c\d{8,}")  # an id from `made_id`: nine characters, as some templates require
_FORM = 'write a message as {"role": "user", "content": "..."}'
_CALL_FORM = 'write tool_calls as [{"id": "...", "function": {"name": "...", "arguments": {...}}}]'


@dataclass(frozen=True, slots=True)
class Message:
    role: str  # "user", "assistant" or another of ROLES
    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""  # id or function of the call whose result this message contains
    images: tuple[Image, ...] = ()  # in `content`, the text PLACE marks the position of each image

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts of the message, including the names of arguments of calls."""
        texts: list[str] = []
        self.with_texts(lambda text: texts.append(text) or text)  # type: ignore[func-returns-value]
        return tuple(texts)

    def with_texts(self, change: Callable[[str], str]) -> "Message":
        calls = tuple(
            ToolCall(change(c.name), _changed(c.arguments, change), change(c.id), change(c.unreadable))
            for c in self.tool_calls
        )
        content, reasoning = change(self.content), change(self.reasoning)
        return Message(self.role, content, reasoning, calls, change(self.tool_call_id), self.images)


Messages = tuple[Message, ...]
PromptOrMessages = str | Sequence[Mapping[str, Any] | Message]


def as_messages(
    prompt_or_messages: PromptOrMessages, images: Iterable[object] = (), left_out: list[str] | None = None
) -> Messages:
    """Return messages from a text, or from a list of Messages and OpenAI-style dictionaries. Raises BadSetting.

    `images`: the images before a text, as `image_of` reads them. `left_out`: gets a notice about each part that cannot
    be read; without this list, such parts are refused. An unreadable image or sound in a question is always refused.
    """
    before = tuple(map(image_of, [images] if isinstance(images, str | bytes | Path) else images))
    if isinstance(prompt_or_messages, str):
        return _not_empty((_checked(with_images(prompt_or_messages, before), "the prompt"),), "the prompt")
    if before:
        raise BadSetting("images were given beside a list of messages", hint="put them into the messages")
    if isinstance(prompt_or_messages, Mapping | Message) or not isinstance(prompt_or_messages, Sequence):
        what = f"the messages are {_kind(prompt_or_messages)}, not a text or a list"
        raise BadSetting(what, hint=f"{_FORM}, in a list")
    if not prompt_or_messages:
        raise BadSetting("the list of messages is empty", hint="give at least one user message")
    roles = [
        m.get("role") if isinstance(m, Mapping) else getattr(m, "role", None) for m in prompt_or_messages
    ]
    found, asked = list[Message](), question_of(roles)
    for n, given in enumerate(prompt_or_messages):
        which = f"message {n + 1}"
        found.append(_checked(_as_message(given, which, left_out, strict=n == asked), which))
    return _not_empty(tuple(found), "every message")


def _not_empty(messages: Messages, which: str) -> Messages:
    if not any(message.content.strip() or message.images or message.tool_calls for message in messages):
        raise BadSetting(f"{which} is empty", hint="give some text")
    return messages


def with_images(text: str, images: Sequence[Image]) -> Message:
    """Return a user's message with images at their places in the text, or before a text without such places."""
    if images and text.count(PLACE) != len(images):
        text = PLACE * len(images) + text.replace(PLACE, "\ufffd")
    return Message("user", text, images=tuple(images))


def are_continued(messages: Sequence[Message]) -> bool:
    """Return whether the reply continues the last message: the assistant's, with text and without calls."""
    last = messages[-1]
    return last.role == "assistant" and bool(last.content.strip()) and not last.tool_calls


def with_reply(messages: Sequence[Message], reply: Reply) -> Messages:
    last = messages[-1]
    if are_continued(messages):
        return (*messages[:-1], replace(last, content=last.content + reply.text, tool_calls=reply.tool_calls))
    if reply.tool_calls:  # keep the reasoning, because models continue it after the results
        return (*messages, Message("assistant", reply.text.strip(), reply.reasoning, reply.tool_calls))
    # Some templates refuse an empty message, and most require an assistant's message between two of the user.
    return (*messages, Message("assistant", reply.text if reply.text.strip() else "(no answer)"))


MOST_REPLIES = 1_000  # limit of replies whose reasoning is kept
MOST_REASONING = 1 << 24  # limit of characters of the reasoning that is kept


class Reasoning:
    """A store of the reasoning of replies for later prompts, because clients do not send reasoning back."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, str] = {}  # reasoning by the `_key` of its reply, oldest first

    def keep(self, messages: Sequence[Message], reply: Reply, beside: str) -> None:
        """Keep the reasoning of the reply to these messages; `beside`: client and tools as one text."""
        if reply.reasoning:
            *_, before = digests(messages, beside)
            # Some clients drop the ids of calls, so reasoning is also stored by calls without ids.
            unnamed = tuple(replace(call, id="") for call in reply.tool_calls)
            for calls in (reply.tool_calls, unnamed):
                self._by_key[_key(before, reply.text, calls)] = reply.reasoning
        # Copy the items to a list first, because other sessions may change the dictionary meanwhile.
        known = list(self._by_key.items())
        used = accumulate(len(text) for _, text in reversed(known[-MOST_REPLIES:]))
        stays = sum(characters <= MOST_REASONING for characters in used)  # number of newest texts that fit
        for oldest, _ in known[: len(known) - stays]:
            self._by_key.pop(oldest, None)

    def put_back(self, messages: Sequence[Message], beside: str) -> Messages:
        whole = list(messages)
        for n, before in enumerate(digests(messages[:-1], beside) if self._by_key else ()):
            if (message := whole[n]).role == "assistant" and not message.reasoning:
                key = _key(before, message.content, message.tool_calls)
                whole[n] = replace(message, reasoning=self._by_key.get(key, ""))
        return tuple(whole)


def digests(messages: Iterable[Message], beside: str) -> Iterator[bytes]:
    """Yield digests of `beside` and the first 0, 1, 2, ... messages, without their reasoning."""
    chain = blake2b(json.dumps(beside).encode(), digest_size=16)
    yield chain.digest()
    for message in messages:
        content = message.content.strip() if message.role == "assistant" else message.content
        calls = [
            ("" if _MADE_ID.fullmatch(call.id) else call.id, call.name, call.arguments, call.unreadable)
            for call in message.tool_calls
        ]
        whole = (message.role, content, calls, message.tool_call_id, *(i.digest for i in message.images))
        chain.update(json.dumps(whole, sort_keys=True, default=str).encode())
        yield chain.digest()


def _key(before: bytes, answer: str, calls: Sequence[ToolCall]) -> bytes:
    *_, key = digests([Message("assistant", answer, tool_calls=tuple(calls))], before.hex())
    return key


def made_id(message: int, call: int) -> str:
    """Make an id for a call that has none, from the index of its message and the index of the call in it."""
    return f"c{message:05}{call:03}"


def _as_message(given: object, which: str, left_out: list[str] | None, *, strict: bool) -> Message:
    """Return a message from a dictionary. `strict`: whether to refuse an image that cannot be read."""
    if isinstance(given, Message):
        return given
    if not isinstance(given, Mapping):
        raise BadSetting(f"{which} is {_kind(given)}, not a dictionary", hint=_FORM)
    filled = {key: value for key, value in given.items() if value is not None}
    if not isinstance(filled.get("thinking"), str):  # other interfaces have a setting with this name
        filled.pop("thinking", None)
    unknown = [str(key) for key in filled if key not in _KEYS]
    if unknown and left_out is None:
        raise BadSetting(f"{which} has an unknown key: {unknown[0]!r}", hint=_FORM)
    role = filled.get("role", "")
    role = _OTHER_ROLES.get(role, role) if isinstance(role, str) else role
    result_of = [filled[key] for key in _RESULT_OF if filled.get(key)] if role == "tool" else []
    calls = filled.get("tool_calls") or [filled[name] for name in ("function_call",) if name in filled]
    if isinstance(calls, str | Mapping) or not isinstance(calls, Sequence):
        raise BadSetting(f"tool_calls of {which} is not a list", hint=_CALL_FORM)
    image_notices = None if strict else left_out
    content, images, thoughts = _content_of(filled.get("content", ""), which, left_out, image_notices)
    if isinstance(beside := filled.get("images", ()), str | Mapping) or not isinstance(beside, Sequence):
        raise BadSetting(f"the images of {which} are {_kind(beside)}", hint="give a list of images")
    if images and beside:
        raise BadSetting(f'{which} has images in "content" and in "images"', hint='put all into "content"')
    if beside:
        images = [image for source in beside if (image := _image_of(source, image_notices))]
        content = with_images(content, images).content
    return Message(
        role,
        content,
        next((filled[key] for key in _REASONING_KEYS if key in filled), "") or thoughts,
        tuple(_call_of(call, which) for call in calls),
        str(next(iter(result_of), "")),
        tuple(images),
    )


def _call_of(given: object, which: str) -> ToolCall:
    if isinstance(given, ToolCall):
        return given
    outer = given if isinstance(given, Mapping) else {}
    function = outer.get("function", outer)
    name, arguments, unreadable = function.get("name"), function.get("arguments"), ""
    if isinstance(text := arguments, str):
        with suppress(ValueError, RecursionError):
            arguments = json.loads(text or "{}")
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, Mapping):  # arguments that were cut off, or that are no object
        arguments, unreadable = {}, text if isinstance(text, str) else json.dumps(text, default=str)
    if not isinstance(name, str):
        raise BadSetting(f"{which} has an invalid tool call", hint=_CALL_FORM)
    return ToolCall(name, arguments, str(outer.get("id", "")), unreadable)


def arguments_of(call: ToolCall) -> Mapping[str, Any]:
    """Return the arguments of a call as an object. Arguments that are no object become the text of one argument."""
    return {"arguments": call.unreadable} if call.unreadable else call.arguments


def _image_of(source: object, left_out: list[str] | None) -> Image | None:
    try:
        return image_in_message(source)
    except BadSetting as error:
        if left_out is None:
            raise
        left_out.append(f"an image was left out: {error}")
        return None


def _content_of(
    content: object, which: str, left_out: list[str] | None, image_notices: list[str] | None
) -> tuple[str, list[Image], str]:
    """Return a message's content, images and reasoning. Texts are joined by line ends, as in llama.cpp's server.

    Content parts are in the form of OpenAI's interfaces, Anthropic's, or MCP's.
    """
    if isinstance(content, str):
        return content, [], ""
    if not isinstance(content, Sequence) or isinstance(content, bytes | bytearray):
        raise BadSetting(f"the content of {which} is {_kind(content)}", hint="give the content as text")
    texts, images, thoughts = [""], list[Image](), list[str]()
    for part in _parts_in(content):
        read = part if isinstance(part, Mapping) else {}
        kind = read.get("type", _kind(part))
        text = read.get(_PARTS.get(str(kind), ""))
        notices = image_notices if kind in _SOUNDS else left_out
        if kind in _IMAGES:
            source = next((read[key] for key in (kind, "image_url", "source", "data") if key in read), None)
            source = source.get("url", source.get("data")) if isinstance(source, Mapping) else source
            image = _image_of(source, image_notices)
            images += [image] if image else []
            texts += [PLACE, ""] if image else []
            texts[-1] += "" if image else UNREAD
        elif kind in _REASONING:
            thoughts.append(str(read.get("thinking", read.get("text", ""))))
        elif isinstance(text, str):
            texts[-1] += ("\n" if texts[-1] else "") + text
        elif notices is not None and kind not in _PARTS and "type" in read:
            notices.append(f"parts of the type {json.dumps(kind)[:80]} were left out")
            texts[-1] += ("\n" * bool(texts[-1]) + UNREAD_FILE) * (kind in _FILES)
        else:
            hint = 'send texts, as {"type": "text", "text": "..."}, and images'
            raise BadSetting(f"{which} has a part that is neither text nor an image: {kind}", hint=hint)
    if images:  # remove the mark of an image's place from texts
        texts[::2] = [text.replace(PLACE, "\ufffd") for text in texts[::2]]
    return "".join(texts), images, "\n\n".join(filter(None, thoughts))


def _parts_in(content: Iterable[object]) -> Iterator[object]:
    """Yield the parts of a message's content. Replace each document or search result by its own parts."""
    for part in content:
        match part:
            case {"type": "document" | "search_result", **rest}:
                heads = (rest.get(name) for name in ("title", "context", "source"))
                yield from ({"type": "text", "text": text} for text in heads if isinstance(text, str))
                match part:
                    case {"source": {"type": "text", "data": str(text)}} | {
                        "source": {"type": "content", "content": str(text)}
                    }:
                        yield {"type": "text", "text": text}
                    case {"source": {"type": "content", "content": list(inner)}} | {"content": list(inner)}:
                        yield from _parts_in(inner)
                    case _:
                        yield part
            case _:
                yield part


def _checked(message: Message, which: str) -> Message:
    if message.role not in ROLES:
        what = f"the role of {which} cannot be {message.role!r}"
        raise BadSetting(what, hint=f"use one of {', '.join(ROLES)}")
    if not isinstance(message.content, str) or not isinstance(message.reasoning, str):
        raise BadSetting(f"content and reasoning of {which} must be texts", hint=_FORM)
    if message.images and message.content.count(PLACE) != len(message.images):
        message = replace(message, content=with_images(message.content, message.images).content)
    if message.tool_calls and message.role != "assistant":
        what = f"{which} has tool calls, but its role is {message.role!r}"
        raise BadSetting(what, hint="put tool calls into a message of the assistant")
    # Text from a terminal or JSON may have surrogates. A pair of them becomes one character, a lone one U+FFFD.
    return message.with_texts(lambda text: text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def _changed(value: Any, change: Callable[[str], str]) -> Any:  # noqa: ANN401  JSON
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(str(name)): _changed(part, change) for name, part in value.items()}
    return [_changed(part, change) for part in value] if isinstance(value, Sequence) else value


def _kind(value: object) -> str:
    return f"of type {type(value).__name__}"


class NoInfill(LocalspecError):
    """The error for a model without infill tokens, which was not trained to fill a gap in a text."""


@dataclass(frozen=True, slots=True)
class Infill:
    """A gap in a text, which `Session.complete` fills with a model that has infill tokens."""

    before: str
    after: str
    begun: str = ""  # the beginning of the missing text, which the reply continues
    files: tuple[tuple[str, str], ...] = ()  # names and texts of other files, the most important one last

    def prompt(self, vocabulary: "Vocabulary", target: str, room: int) -> list[int]:
        """Return a prompt of at most `room` tokens; leave out text far from the gap. Raises NoInfill."""
        prefix, suffix, middle, file_mark = vocabulary.infill_tokens
        if prefix is None or suffix is None or middle is None:
            raise NoInfill(f"{target} cannot fill in text", hint="use a code model with fill-in-the-middle")
        texts = self.before, self.after, self.begun
        before, after, begun = (vocabulary.tokenize(text, parse_special=False) for text in texts)
        files: list[int] = []
        for name, text in self.files:
            files += [] if file_mark is None else [file_mark]
            files += vocabulary.tokenize(f"{name}\n{text}\n", parse_special=False)
        bos = [vocabulary.bos] if vocabulary.add_bos and vocabulary.bos is not None else []
        room = max(room - len(bos) - 3 - len(begun), 0)
        # The text after the gap gets a quarter of the room, or more if the text before the gap is short.
        few_after = min(len(after), max(room // 4, room - len(before)))
        few_before = min(len(before), room - few_after)
        few_files = min(len(files), room - few_before - few_after)
        files, before = files[len(files) - few_files :], before[len(before) - few_before :]
        return [*bos, *files, prefix, *before, suffix, *after[:few_after], middle, *begun]
