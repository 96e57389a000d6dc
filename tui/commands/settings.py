"""Commands for drafting, sampling and the display."""

import asyncio
from contextlib import suppress
from typing import Any

from localspec.options import REPLY

from ..state.remembered import TokenStyle
from .chat import Chat, Refusal
from .conversations import system


async def draft(chat: Chat, argument: str) -> None:
    now = chat.state.engine.settings.get("speculate", True)
    wanted = {"on": True, "off": False, "": not now}.get(argument)
    if wanted is None:
        raise Refusal("/draft takes on or off.")
    _set(chat, speculate=wanted)
    await chat.notice(f"Drafting is {'on' if wanted else 'off'} from the next reply on.")


async def preset(chat: Chat, argument: str) -> None:
    """Use a system prompt by its name, give one a name, or say which there are."""
    presets, (name, _, text) = chat.state.presets, argument.partition(" ")
    if text := text.strip():
        told = await asyncio.to_thread(presets.save, name, "" if text == "off" else text)
        await chat.notice(
            f"/preset {name} " + ("is forgotten." if text == "off" else "uses it from now on."), told
        )
        return
    known = presets.load()
    if name in known:
        await system(chat, known[name])
    else:
        names = ", ".join(known) or "none yet"
        await chat.notice(f"Presets: {names}.", "/preset NAME uses one, /preset NAME TEXT keeps one")


async def set_value(chat: Chat, argument: str, *, field: str, unset: str = "default") -> None:
    """Set an option of replies, unset it with the word for that, or without an argument show its value."""
    label = field.replace("_", "-")
    if argument:
        _set(chat, **{field: None if argument in (unset, "default") else _read(field, label, argument)})
    value = chat.state.engine.settings.get(field)
    shown = unset if value is None else f"{value:g}" if isinstance(value, float) else value
    await chat.notice(f"{label} is {shown}.")


def _read(field: str, label: str, text: str) -> Any:  # noqa: ANN401 - of the field
    with suppress(ValueError):
        if REPLY[field].admits(value := REPLY[field].read(text)):
            return value
    raise Refusal(f"{label} takes {REPLY[field].expected}.")


def _set(chat: Chat, **changes: Any) -> None:  # noqa: ANN401 - options of replies; None: the default
    settings = {**chat.state.engine.settings, **changes}
    chat.state.engine.settings = {name: value for name, value in settings.items() if value is not None}
    chat.refresh_state()


async def inspector(chat: Chat, _argument: str) -> None:
    shown = not chat.state.preferences.inspector
    chat.state.prefer(inspector=shown)
    chat.show_inspector(shown)


async def tokens(chat: Chat, argument: str) -> None:
    styles = list(TokenStyle)
    following = styles[(styles.index(chat.state.preferences.tokens) + 1) % len(styles)]
    if argument and argument not in styles:
        raise Refusal(f"/tokens takes {', '.join(styles)}.")
    chosen = TokenStyle(argument) if argument else following
    chat.state.prefer(tokens=chosen)
    chat.notify(f"Token origins in the live text: {chosen}.")
