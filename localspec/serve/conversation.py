"""Messages as OpenAI's clients send them, as localspec's sessions take them."""

from typing import Any

from localspec.chat.messages import as_messages
from localspec.errors import BadSetting
from localspec.serve.fields import cut
from localspec.serve.replies import Prompt

_KEPT = ("role", "content", "tool_calls", "tool_call_id", "reasoning_content", "reasoning")
_ROLES = {"developer": "system"}


def prompt_of(messages: list[Any]) -> Prompt:
    """The prompt; what clients note on messages for themselves is left out. Raises BadSetting."""
    kept = [known(message, n) for n, message in enumerate(messages, start=1)]
    kept = one_system(kept)
    as_messages(kept)
    return Prompt(messages=tuple(kept))


def known(message: object, number: int) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise BadSetting(f"message {number} is {cut(message)}", hint="a message has a role and content")
    found = {name: message[name] for name in _KEPT if message.get(name) is not None}
    role = found.get("role")
    if isinstance(role, str):
        found["role"] = _ROLES.get(role, role)
    if isinstance(found.get("content"), list):
        found["content"] = [plain(part) for part in found["content"]]
    found["content"] = found.get("content", "")
    return found


def plain(part: object) -> object:
    """A part of a message; other interfaces have names of their own for texts."""
    if isinstance(part, dict):
        for kind, name in (("input_text", "text"), ("output_text", "text"), ("refusal", "refusal")):
            if part.get("type") == kind:
                return {"type": "text", "text": part.get(name)}
    return part


def one_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Texts of system messages at the beginning are joined: most templates take one."""
    count = next((n for n, m in enumerate(messages) if m.get("role") != "system"), len(messages))
    leading = messages[:count]
    if count < 2 or not all(isinstance(m["content"], str) for m in leading):
        return messages
    text = "\n\n".join(m["content"] for m in leading)
    return [{"role": "system", "content": text}, *messages[count:]]
