"""Anthropic's content blocks as messages in OpenAI's form."""

from collections.abc import Iterator
from typing import Any, Final

from localspec.errors import BadSetting
from localspec.serve.fields import cut

# Claude Code writes a number of each request into the first line of the system text: no prefix would be reused.
BILLING: Final = "x-anthropic-billing-header"


def messages_of(system: object, messages: list[Any]) -> list[dict[str, Any]]:
    """The conversation; neighbours of one role are one message. Raises BadSetting."""
    found: list[dict[str, Any]] = []
    if system is not None:
        texts = [without_billing(text) for text in texts_in(system, "system")]
        found.append({"role": "system", "content": "\n\n".join(filter(None, texts))})
    for number, message in enumerate(messages, start=1):
        for converted in converted_from(message, f"message {number}"):
            if found and mergeable(found[-1], converted):
                found[-1]["content"] += "\n\n" + converted["content"]
            else:
                found.append(converted)
    return [message for message in found if message["role"] != "system" or message["content"]]


def mergeable(before: dict[str, Any], message: dict[str, Any]) -> bool:
    same = before["role"] == message["role"] in ("user", "assistant", "system")
    return same and not any("tool_calls" in m or "reasoning_content" in m for m in (before, message))


def without_billing(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(BILLING) else text


def converted_from(message: object, which: str) -> Iterator[dict[str, Any]]:
    """One message; results of tools come first, as messages of their own."""
    if not isinstance(message, dict) or message.get("role") not in ("user", "assistant", "system"):
        raise BadSetting(
            f"{which} is {cut(message)}", hint="a message has a role, user or assistant, and content"
        )
    role, blocks = message["role"], blocks_in(message.get("content"), which)
    texts = [text_in(b, which) for b in blocks if b["type"] not in ("tool_use", "tool_result", *_THOUGHTS)]
    yield from (result(block, which) for block in blocks if block["type"] == "tool_result")
    calls = [call(block, which) for block in blocks if block["type"] == "tool_use"]
    thoughts = [str(block.get("thinking", "")) for block in blocks if block["type"] == "thinking"]
    if texts or calls or role == "assistant":
        found: dict[str, Any] = {"role": role, "content": ("\n\n" if role == "user" else "").join(texts)}
        found |= {"tool_calls": calls} if calls else {}
        yield found | ({"reasoning_content": "\n\n".join(thoughts)} if calls and thoughts else {})


_THOUGHTS: Final = ("thinking", "redacted_thinking")


def blocks_in(content: object, which: str) -> list[dict[str, Any]]:
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list):
        raise BadSetting(f"the content of {which} is {cut(content)}", hint="give a text or a list of blocks")
    for block in blocks:
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise BadSetting(f"{which} has a block {cut(block)}", hint="a block is an object with a type")
    return blocks


def texts_in(content: object, which: str) -> list[str]:
    return [text_in(block, which) for block in blocks_in(content, which)]


def text_in(block: dict[str, Any], which: str) -> str:
    """The text of a block, or of a document that is text."""
    source = block.get("source")
    if block["type"] == "document" and isinstance(source, dict) and source.get("type") == "text":
        block = {"type": "text", "text": source.get("data")}
    if block["type"] != "text" or not isinstance(block.get("text"), str):
        raise BadSetting(
            f"{which} has a block that is no text: {cut(block['type'])}", hint="models read text"
        )
    return str(block["text"])


def result(block: dict[str, Any], which: str) -> dict[str, Any]:
    text = "\n".join(texts_in(block.get("content") or "", which))
    return {"role": "tool", "tool_call_id": str(block.get("tool_use_id", "")), "content": text}


def call(block: dict[str, Any], which: str) -> dict[str, Any]:
    name, arguments = block.get("name"), block.get("input", {})
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise BadSetting(f"{which} has a tool_use without name or input", hint="repeat what the model wrote")
    return {"id": str(block.get("id", "")), "function": {"name": name, "arguments": arguments}}
