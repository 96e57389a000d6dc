"""Conversations of `localspec run`: kept beside those of the chat, so that both can go on with them."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localspec.cli.printing import on_terminal, say
from localspec.cli.usage import WrongUsage
from localspec.errors import LocalspecError

if TYPE_CHECKING:
    from localspec.conversations import Conversation, Journal
    from localspec.engine.session import EngineSession
    from localspec.events import Reply


def add_conversation_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("conversation")
    group.add_argument(
        "-c",
        "--continue",
        dest="resume",
        action="store_const",
        const="",
        help="go on with the conversation last talked in, in the chat or here",
    )
    group.add_argument("--conversation", dest="resume", metavar="ID", help="go on with this one")
    group.add_argument(
        "--store",
        action=argparse.BooleanOptionalAction,
        help="keep the conversation, to go on with (default: on a terminal, and where one goes on)",
    )


class NotStored(LocalspecError):
    """A conversation that --store was to keep."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The conversation that a prompt belongs to."""

    journal: "Journal | None"  # None: it is not to be stored
    asked: bool = False  # whether --store was given
    before: "Conversation | None" = None  # that it goes on from

    @property
    def pair(self) -> str | None:
        """The pair that it was with, if that is a known one."""
        from localspec.pairs.registry import is_known

        return self.before.pair if self.before and is_known(self.before.pair) else None

    def resume(self, session: "EngineSession") -> None:
        """Tell a session what was said before."""
        if self.before and self.before.messages:
            session.resume([{"role": m.role, "content": m.content} for m in self.before.messages])

    def add(self, pair: str, prompt: str, reply: "Reply") -> None:
        """Store a question and its reply. Raises NotStored where that was asked for and fails.

        Where it was not, a note says so, also in silence: the conversation cannot be gone on with.
        """
        from localspec.conversations import Numbers, StoredMessage

        if self.journal is None or not reply.tokens:
            return
        self.journal.pair = pair
        answer = StoredMessage(
            "assistant",
            reply.text,
            reply.reasoning,
            reply.reasoning_tokens,
            reply.finish_reason.value,
            Numbers.of(reply.stats),
        )
        try:
            self.journal.add(StoredMessage("user", prompt))
            self.journal.add(answer)
        except OSError as error:
            what = f"the conversation is not stored: {error.strerror or error}"
            if self.asked:
                raise NotStored(what, hint="make room, or set LOCALSPEC_HOME to another folder") from error
            say(f"note: {what}", to=sys.stderr)


@contextmanager
def kept_conversation(arguments: argparse.Namespace) -> Iterator[Kept]:
    """The conversation of a command, held while it lasts. Raises BrokenConversation, ConversationInUse, WrongUsage."""
    from localspec import conversations
    from localspec.settings import Settings, data_dir

    folder = data_dir() / "conversations"
    journal = before = None
    stored = arguments.store
    if arguments.resume is not None:
        if arguments.raw:
            raise WrongUsage("--raw has no conversation to go on with", hint="leave one of them out")
        journal, before = conversations.resume(conversations.find(folder, arguments.resume).path)
        stored = stored is not False
    elif on_terminal(sys.stdout) if stored is None else stored:
        journal = conversations.Journal.new(folder, "", "")
        stored = not arguments.raw
    if journal:
        system = Settings.load(system=arguments.system).system if not before else arguments.system
        journal.system = journal.system if system is None else system
    try:
        yield Kept(journal if stored else None, arguments.store is True, before)
    finally:
        if journal:
            journal.close()
