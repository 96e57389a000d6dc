"""What commands, and the reports of the engine, may ask of the chat."""

from collections.abc import Awaitable, Callable
from typing import Literal, Protocol

from localspec.engine.messages import Compared

from ..state.chat import ChatState
from ..state.conversation import OpenConversation

Severity = Literal["information", "warning", "error"]


class Chat(Protocol):
    """A chat: its state, and what can be done on its screen."""

    state: ChatState

    def notify(self, message: str, *, severity: Severity = "information") -> None:
        """Say something in the corner, for a moment."""

    async def remark(self, what: str, hint: str = "", kind: Literal["note", "error"] = "note") -> None:
        """Say something in the conversation that is not part of it."""

    def refresh_state(self) -> None:
        """Draw title, prompt and inspector as the state is now."""

    def focus_prompt(self) -> None: ...

    def follow_end(self) -> None:
        """Scroll to the end of the conversation, and stay there."""

    def close_completion(self) -> bool:
        """Close the list of commands above the prompt; whether it was open."""

    def begin_editing(self, index: int) -> None:
        """Put a message into the prompt to change it."""

    def end_editing(self) -> bool:
        """Bring back what was being typed before; whether a message was being changed."""

    async def ask_again(self) -> None:
        """Generate another reply to the last question."""

    async def choose_version(self, index: int, version: int) -> None:
        """Go back to another version of the reply at that index."""

    async def end_reply(self, outcome: str) -> None:
        """End the running reply, if there is one, without waiting for the engine."""

    async def open_conversation(self, conversation: OpenConversation) -> None:
        """Show another conversation, and go on with it."""

    async def run_command(self, name: str, argument: str = "") -> None: ...

    async def choose_pair(self) -> None: ...

    async def choose_conversation(self) -> None: ...

    async def choose_theme(self) -> None: ...

    def set_theme(self, name: str) -> bool:
        """Use a theme, and remember it; whether there is one of that name."""

    async def toggle_thinking(self) -> None:
        """Show or hide the reasoning of every reply, and of those to come."""

    def show_inspector(self, shown: bool) -> None: ...

    async def show_help(self) -> None: ...

    def show_comparison(self, compared: Compared) -> None: ...

    def copy(self, text: str) -> None:
        """Put a text into the clipboard."""

    async def quit(self) -> None: ...


Run = Callable[[Chat, str], Awaitable[None]]  # a command; it is given whatever followed the name
