"""The items that the Responses interface takes as input, as messages in OpenAI's older form."""

from typing import Any, Final

from localspec.errors import BadSetting
from localspec.serve.fields import cut

_AT_A_VENDOR: Final = (
    "web_search_call",
    "file_search_call",
    "image_generation_call",
    "code_interpreter_call",
)


def messages_of(instructions: str | None, given: object) -> list[dict[str, Any]]:
    """The conversation. Raises BadSetting."""
    found = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(given, str):
        return [*found, {"role": "user", "content": given}]
    if not isinstance(given, list):
        raise BadSetting(f"input is {cut(given)}", hint="give a text or a list of items")
    thoughts = ""
    for number, item in enumerate(given, start=1):
        if not isinstance(item, dict):
            raise BadSetting(f"item {number} is {cut(item)}", hint="an item is an object with a type")
        kind = item.get("type", "message")
        if kind == "reasoning":
            thoughts = thoughts_in(item)
        elif kind in ("function_call", "custom_tool_call"):
            add_call(found, item, thoughts)
        elif kind in _AT_A_VENDOR:
            continue
        else:
            found.append(message_of(item, kind, number))
    return found


def message_of(item: dict[str, Any], kind: object, number: int) -> dict[str, Any]:
    if kind == "message":
        return {"role": item.get("role"), "content": item.get("content")}
    if kind in ("function_call_output", "custom_tool_call_output"):
        return {"role": "tool", "tool_call_id": str(item.get("call_id", "")), "content": item.get("output")}
    raise BadSetting(
        f"item {number} is of type {cut(kind)}", hint="send messages, function calls and their outputs"
    )


def thoughts_in(item: dict[str, Any]) -> str:
    parts = item.get("content") or item.get("summary") or []
    texts = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return "\n".join(text for text in texts if isinstance(text, str))


def add_call(found: list[dict[str, Any]], item: dict[str, Any], thoughts: str) -> None:
    """Calls of one turn are one message, together with what the assistant said before them."""
    if not found or found[-1]["role"] != "assistant":
        found.append({"role": "assistant", "content": ""})
    message = found[-1]
    if thoughts:
        message["reasoning_content"] = thoughts
    custom = item.get("type") == "custom_tool_call"  # its argument is a text
    arguments = {"input": item.get("input")} if custom else item.get("arguments")
    function = {"name": item.get("name"), "arguments": arguments}
    message.setdefault("tool_calls", []).append({"id": str(item.get("call_id", "")), "function": function})
