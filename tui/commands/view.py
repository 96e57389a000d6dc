"""Commands that change what is seen, and remember it."""

from ..state.preferences import TokenStyle
from .protocol import Chat


async def inspector(chat: Chat, _argument: str) -> None:
    shown = not chat.state.preferences.inspector
    chat.state.prefer(inspector=shown)
    chat.show_inspector(shown)


async def tokens(chat: Chat, argument: str) -> None:
    styles = list(TokenStyle)
    following = styles[(styles.index(chat.state.preferences.tokens) + 1) % len(styles)]
    if argument and argument not in styles:
        chat.notify(f"/tokens takes {', '.join(styles)}.", severity="warning")
        return
    chosen = TokenStyle(argument) if argument else following
    chat.state.prefer(tokens=chosen)
    chat.notify(f"Token origins in the live text: {chosen}.")


async def theme(chat: Chat, argument: str) -> None:
    if not argument:
        await chat.choose_theme()
    elif not chat.set_theme(argument):
        chat.notify(f"There is no theme {argument}.", severity="warning")
