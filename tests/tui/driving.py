"""Drives the chat in tests: an app on a scripted engine, and waiting for conditions instead of for time."""

import asyncio
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from localspec.tui.app import ChatApp
from localspec.tui.lists import ConversationsDialog
from localspec.tui.screen import ChatScreen, Tick
from localspec.tui.state.chat import ChatState, Setup
from localspec.tui.widgets.reply import ReplyPart, ReplyView
from localspec.tui.widgets.transcript import NoticeLine, UserMessage
from scripted_engine import Pace, ScriptedEngine, ScriptedWorkshop
from scripted_pairs import Gate, called
from textual._compositor import Compositor
from textual._context import visible_screen_stack
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from localspec.conversations import conversations
from localspec.conversations.conversations import Conversation, StoredMessage
from localspec.engine.messages import Generate, LoadPair
from localspec.errors import EngineDied

QUIET_TURNS = 20  # of the event loop in which nobody has a message
MOST_TURNS = 2000


class PatientPilot(Pilot[None]):
    """Returns from a key when no message waits any more: on a busy machine Textual's own sees idleness too early."""

    async def press(self, *keys: str) -> None:
        await super().press(*keys)
        quiet, turns = 0, 0
        while self.app.is_running and quiet < QUIET_TURNS and (turns := turns + 1) < MOST_TURNS:
            await asyncio.sleep(0)
            widgets = (w for screen in self.app.screen_stack for w in screen.walk_children(with_self=True))
            quiet = 0 if any(pump.message_queue_size for pump in (self.app, *widgets)) else quiet + 1


class Chat:
    def __init__(
        self,
        folder: Path,
        gate: Gate | None = None,
        pace: Pace | None = None,
        resumed: Conversation | None = None,
        **setup: object,
    ) -> None:
        self.engine = ScriptedEngine(ScriptedWorkshop(pace, gate))
        self.pairs = self.engine.handler.pairs
        self.engine.start()
        held = conversations.resume(folder, resumed.name) if resumed else None
        wanted = Setup(
            self.engine, folder, resumed=held, **{"downloads": self.pairs, "load": LoadPair(called())} | setup
        )
        self.engine.send(wanted.load)
        self.app = ChatApp(wanted)
        self.remarks: list[str] = []  # all that the line for them has shown
        notify = self.app.notify
        self.app.notify = lambda text, **how: (self.remarks.append(text), notify(text, **how))
        self.folder = folder
        self.pilot = PatientPilot(self.app)

    @property
    def state(self) -> ChatState:
        return self.app.state

    @property
    def screen(self) -> ChatScreen:
        return next(screen for screen in self.app.screen_stack if isinstance(screen, ChatScreen))

    @property
    def replies(self) -> list[ReplyView]:
        return list(self.screen.query(ReplyView))

    @property
    def notices(self) -> list[str]:
        return [str(notice.content) for notice in self.screen.query(NoticeLine)]

    @property
    def drawn(self) -> str:
        # A dialog keeps what it rendered: without the screens behind it, a picture would lack them later.
        visible_screen_stack.set(self.app._background_screens)
        strips = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text for strip in strips)

    @property
    def saved(self) -> list[Conversation]:
        return all_in(self.folder)

    async def until(self, condition: Callable[[], object], seconds: float = 300.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert not self.app._exception, "the app has failed"
            assert time.monotonic() < deadline, "waited in vain\n" + self.drawn
            await asyncio.sleep(0.01)  # Pilot's own pause puts a message into every widget's queue
        if self.app.is_running:
            await self.pilot.pause(0.0)  # what belongs to it is done, and laid out

    async def settled(self) -> None:
        """Let the app run until all reports of the engines are drawn, and a tick changes nothing more."""
        before = ""
        while self._is_late or before != self.drawn:
            before = self.drawn
            ticked = asyncio.Event()
            self.screen.post_message(Tick())
            self.screen.call_later(ticked.set)
            await asyncio.wait_for(ticked.wait(), 300)
            await self.pilot.pause()

    @property
    def _is_late(self) -> bool:
        reply = self.state.engine.reply
        return bool(
            self.engine._reports or self.state.downloads._ended or (reply and reply.shown < len(reply.pieces))
        )

    async def ready(self) -> None:
        await self.until(lambda: self.app.screen_stack and self.app.screen.query("#prompt"))
        await self.until(lambda: self.state.engine.ready)

    async def type(self, text: str) -> None:
        self.screen.prompt.replace_text(text)
        await self.pilot.press("enter")

    async def begin(self, text: str, cycles: int) -> None:
        """Send a message and wait until its reply has run this number of cycles."""
        await self.type(text)
        engine = self.state.engine
        await self.until(
            lambda: engine.reply and engine.reply.prefill and engine.reply.tally.sums.cycles == cycles
        )

    async def ask(self, text: str) -> None:
        """Send a message and wait until the reply is over."""
        before = len(self.state.conversation.messages)
        await self.type(text)
        await self.until(
            lambda: len(self.state.conversation.messages) > before + 1 and not self.state.engine.busy
        )
        await self.until(lambda: self.replies and self.replies[-1].has_class("-finished"))

    async def ask_instead(self, text: str) -> None:
        """Send what a message is changed into, and wait until its reply is over."""
        before = len(asked(self))
        await self.type(text)
        await self.until(lambda: len(asked(self)) > before and not self.state.engine.busy)
        await self.until(lambda: self.replies and self.replies[-1].has_class("-finished"))


def undrawn(self: Compositor, full: bool = False, **options: object) -> object:
    """Instead of drawing what changed, which nobody sees without a terminal; a picture is drawn."""
    if full:
        return _DRAW(self, full, **options)
    self._dirty_regions.clear()
    return None


_DRAW = Compositor.render_update


@asynccontextmanager
async def running(
    folder: Path,
    size: tuple[int, int] = (100, 30),
    until_ready: bool = True,
    **options: object,
):
    chat = Chat(folder, **options)
    with patch.object(Compositor, "render_update", undrawn):
        async with chat.app.run_test(size=size):
            if until_ready:
                await chat.ready()
            yield chat
            assert not chat.app.is_running or chat.drawn  # no widget fails when it is drawn
            await asyncio.to_thread(chat.state.close_engines)


def source(reply: ReplyView) -> str:
    return "".join(document.source for document in reply.query(ReplyPart))


def footer(reply: ReplyView) -> str:
    return "".join(str(line.content) for line in reply.query(".footer").results(Static))


def messages(chat: Chat) -> list[str]:
    shown = [w for w in chat.screen.transcript.children if isinstance(w, UserMessage | ReplyView)]
    return [source(w) if isinstance(w, ReplyView) else str(w.content) for w in shown]


def asked(chat: Chat) -> list[Generate]:
    return [request for request in chat.engine.handler.asked if isinstance(request, Generate)]


def resumed_with(folder: Path, reply: str) -> Conversation:
    return stored(folder, StoredMessage("user", "hi"), StoredMessage("assistant", reply, outcome="stop"))


def stored(folder: Path, *messages: StoredMessage, pair: str = "demo", **about: object) -> Conversation:
    talk = replace(Conversation.new(pair), messages=messages, **about)
    conversations.save(folder, talk)
    return talk


def all_in(folder: Path) -> list[Conversation]:
    """Every conversation on disk, the latest first."""
    return [conversations.read(folder, row.name) for row in conversations.listing(folder)]


def cannot_start() -> None:
    raise EngineDied("cannot fork", hint="end other programs")


async def open_conversations(chat: Chat, rows: int) -> None:
    """The list of conversations, once it has so many."""
    await chat.pilot.press("ctrl+s")
    await chat.until(lambda: isinstance(chat.app.screen, ConversationsDialog))
    await chat.until(lambda: chat.app.screen.query_one(DataTable).row_count == rows)
    await chat.pilot.pause()


def detail(chat: Chat) -> str:
    return str(chat.app.screen.query_one(".detail", Static).content)
