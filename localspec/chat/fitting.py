"""Fits a conversation into the context: its oldest part goes first, so that the prompt stays stable."""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

from localspec.chat.messages import Message
from localspec.chat.prompt import Prompt
from localspec.errors import ContextFull

REPLY_RESERVE = 256  # tokens left free for a reply of unknown length, a quarter of the context at most
_TOKEN_CHARACTERS = 6  # of a message's text: mostly a token has fewer

Messages = tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """The part that a prompt left out; the next prompts of the conversation leave it out too."""

    index: int  # of the first message kept
    fingerprint: int  # of the messages before it
    tokens: int  # that those added to a prompt, at least

    def is_of(self, messages: Messages) -> bool:
        """Whether a conversation begins with the part that was left out."""
        return self.index < len(messages) and self.fingerprint == _fingerprint(messages[: self.index])


@dataclass(frozen=True, slots=True)
class Fitted:
    """A prompt that fits."""

    prompt: Prompt
    messages: Messages  # the part of the conversation in it
    dropped_messages: int = 0
    cut: Cut | None = None


@dataclass(frozen=True, slots=True)
class Fitter:
    """Renders conversations for one context."""

    encode: Callable[[Messages], Prompt]
    capacity: int  # tokens
    max_tokens: int | None  # of the reply
    thinks: bool = False  # whether the model may reason before it answers

    def room(self, *, trim: bool) -> int:
        """The largest number of tokens in a prompt; a reasoning model keeps a quarter of the context for its reply."""
        quarter = self.capacity // 4
        expected = quarter if trim and self.thinks else REPLY_RESERVE
        return self.capacity - min(self.max_tokens or expected, quarter)

    def fit(self, messages: Messages, *, trim: bool, earlier: Iterable[Cut] = ()) -> Fitted:
        """The prompt of these messages, of all of them where they fit, or where nothing can be left out.

        `earlier`: cuts of other prompts. An earlier cut of this conversation is used again if it leaves out enough, so
        that prompts keep a long common prefix. Raises ContextFull if nothing may be trimmed.
        """
        encoded = cache(lambda index: self.encode(kept(messages, index)))
        room, cuts = self.room(trim=trim), cuts_of(messages)
        for cut in earlier if trim else ():
            if cut.index in cuts and cut.is_of(messages):
                count = len(encoded(cut.index).tokens)
                if count <= room < count + cut.tokens:
                    return _fitted(encoded, messages, cut)
        start = self._newest(messages, cuts, encoded, room)
        count = len(encoded(start).tokens)
        if start == cuts[0] and (count <= room or len(cuts) == 1):
            return Fitted(encoded(start), messages)
        if not trim:
            raise ContextFull(
                f"the conversation has {'' if start == cuts[0] else 'more than '}{count:,} tokens, "
                f"but the context holds only {self.capacity:,}",
                hint="start a new conversation, start again with a larger --context, or allow trimming",
            )
        # A quarter of the context stays free beyond the reply's room.
        shorter, goal = [cut for cut in cuts if cut > start] or [start], room - self.capacity // 4
        index = shorter[
            bisect_left(
                shorter, True, hi=len(shorter) - 1, key=lambda index: len(encoded(index).tokens) <= goal
            )
        ]
        dropped = count - len(encoded(index).tokens)
        return _fitted(encoded, messages, Cut(index, _fingerprint(messages[:index]), dropped))

    @staticmethod
    def _newest(messages: Messages, cuts: list[int], encoded: Callable[[int], Prompt], room: int) -> int:
        """A cut that keeps more than fits; the first one where all fits.

        The search begins at the newest end: its time is that of a full context, however long the conversation is.
        """
        before = [0, *accumulate(sum(map(len, message.texts)) for message in messages)]
        characters = room * _TOKEN_CHARACTERS
        while True:
            start = next((cut for cut in cuts if before[-1] - before[cut] <= characters), cuts[-1])
            if start == cuts[0] or len(encoded(start).tokens) > room:
                return start
            characters *= 2


def _fitted(encoded: Callable[[int], Prompt], messages: Messages, cut: Cut) -> Fitted:
    held = kept(messages, cut.index)
    return Fitted(encoded(cut.index), held, len(messages) - len(held), cut)


def _fingerprint(messages: Messages) -> int:
    """Another system message changes the whole prompt, so it counts too."""
    return hash(tuple((message.role, message.content, message.tool_call_id) for message in messages))


def cuts_of(messages: Messages) -> list[int]:
    """The indices from which a conversation may be kept: all of it, from a question, or from a round of tool calls."""
    begin = _begin(messages)
    later = range(begin + 1, len(messages))
    rounds = (i for i in later if messages[i].tool_calls and messages[i - 1].role != "user")
    return [begin, *sorted([*rounds, *(i for i in later if messages[i].role == "user")])]


def kept(messages: Messages, index: int) -> Messages:
    """The conversation from one of its cuts; the system message stays, and the question that a round answers."""
    begin = _begin(messages)
    asked = () if messages[index].role == "user" else range(begin, index)
    question = next((messages[i : i + 1] for i in reversed(asked) if messages[i].role == "user"), ())
    return (*messages[:begin], *question, *messages[index:])


def _begin(messages: Messages) -> int:
    return int(len(messages) > 1 and messages[0].role == "system")
