"""What commands, and the reports of the engine, may ask of the chat."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, Protocol

from localspec.engine.messages import Compared
from localspec.events import Reply

from ..state.chat import ChatState
from ..state.conversation import OpenConversation

Severity = Literal["information", "warning", "error"]


class Refusal(Exception):
    """Why a command does nothing."""


class Chat(Protocol):
    """A chat: its state, and the actions on its screen."""

    state: ChatState

    # Say something: in the corner for a moment, or in the conversation without being part of it.
    def notify(self, message: str, *, severity: Severity = "information") -> None: ...
    async def notice(self, what: str, hint: str = "", kind: Literal["note", "error"] = "note") -> None: ...

    def refresh_state(self) -> None: ...  # title, prompt and inspector, as the state is now
    def show_inspector(self, shown: bool) -> None: ...
    async def toggle_thinking(self) -> None: ...  # the reasoning of every reply, and of those to come
    async def escape(self) -> None: ...  # leaves what is nearest: the completion list, an edit, the view

    editing: int | None  # index of the message that is being changed

    def begin_editing(self, index: int) -> None: ...  # that message goes into the prompt
    def end_editing(self) -> bool: ...  # whether one was being changed; what was typed before comes back

    async def ask_again(self, beginning: str = "") -> None: ...  # for another reply, after a beginning
    async def choose_version(self, index: int, version: int) -> None: ...  # of the reply at that index
    # Without waiting for the engine; with a Reply unless it failed.
    async def end_reply(self, outcome: str, final: Reply | None = None) -> None: ...
    async def open_conversation(self, conversation: OpenConversation) -> None: ...

    # Dialogs; an answer runs the command that asked, with it as the argument.
    async def choose_pair(self) -> None: ...
    async def choose_conversation(self) -> None: ...
    async def choose_block(self, blocks: Sequence[str]) -> None: ...  # to be copied
    async def show_help(self) -> None: ...
    def show_comparison(self, compared: Compared) -> None: ...

    async def run_command(self, name: str, argument: str = "") -> None: ...
    async def theme(self, name: str) -> None: ...  # without a name, let the user choose one
    async def copy(self, text: str) -> None: ...  # into the clipboard, and tells of it
    async def quit(self) -> None: ...


Run = Callable[[Chat, str], Awaitable[None]]  # a command; it is given whatever followed the name
