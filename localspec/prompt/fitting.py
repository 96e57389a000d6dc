"""Leave out the oldest messages of a conversation that is too long, if possible the same ones each time."""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

from localspec.errors import ContextFull
from localspec.prompt.messages import Messages, digests
from localspec.prompt.tokens import Prompt


@dataclass(frozen=True, slots=True)
class Omission:
    index: int  # index of the first message, besides the system message, that stays in the prompt
    digest: bytes  # digest of the client, the tools, and the messages before `index`
    tokens: int  # leaving these messages out saves at least this many prompt tokens


@dataclass(frozen=True, slots=True)
class Fitted:
    prompt: Prompt
    messages: Messages  # the messages that the prompt contains
    dropped_messages: int = 0
    omission: Omission | None = None


@dataclass(frozen=True, slots=True)
class Fitter:
    encode: Callable[[Messages], Prompt]
    capacity: int  # number of tokens in the context
    max_tokens: int | None  # largest number of tokens in the reply; None: no limit
    thinks: bool = False  # whether the model may reason before it answers
    beside: str = ""  # client and tools as one text; an omission is used again only if this text is the same

    def fit(self, messages: Messages, *, trim: bool, earlier: Iterable[Omission] = ()) -> Fitted:
        """Return a prompt of the newest messages that fit; without `trim`, of all messages. Raises ContextFull.

        If an omission of an `earlier` prompt saves enough, use it again, because both prompts then begin alike.
        """
        quarter = self.capacity // 4  # number of tokens kept free for a reply with reasoning
        expected = quarter if trim and self.thinks else 256
        free_tokens = self.capacity - min(self.max_tokens or expected, quarter)
        encoded, starts = cache(lambda index: self.encode(kept(messages, index))), starts_of(messages)

        def fitted(omission: Omission) -> Fitted:
            rest = kept(messages, omission.index)
            return Fitted(encoded(omission.index), rest, len(messages) - len(rest), omission)

        for each in earlier if trim else ():
            if each.index in starts and each.digest == self._digest(messages[: each.index]):
                count = len(encoded(each.index).tokens)
                if count <= free_tokens < count + each.tokens:
                    return fitted(each)
        start = self._newest(messages, starts, encoded, free_tokens)
        count = len(encoded(start).tokens)
        if start == starts[0] and (count <= free_tokens or len(starts) == 1):
            return Fitted(encoded(start), messages)
        if not trim:
            hint = 'start a new conversation, load with a larger --context, or set overflow to "trim"'
            more = start != starts[0]
            raise ContextFull.of("conversation", count, self.capacity, more=more, hint=hint)
        # Free another quarter of the context, so that the next prompts need no further omission.
        shorter, goal = [each for each in starts if each > start] or [start], free_tokens - quarter
        last = len(shorter) - 1
        fits = bisect_left(shorter, True, hi=last, key=lambda index: len(encoded(index).tokens) <= goal)
        index = shorter[fits]
        dropped = count - len(encoded(index).tokens)
        return fitted(Omission(index, self._digest(messages[:index]), dropped))

    def _digest(self, messages: Messages) -> bytes:
        *_, digest = digests(messages, self.beside)
        return digest

    @staticmethod
    def _newest(
        messages: Messages, starts: list[int], encoded: Callable[[int], Prompt], free_tokens: int
    ) -> int:
        """Return the first of `starts` if all messages fit, else one with which the prompt is a little too long."""
        before = [0, *accumulate(sum(map(len, message.texts)) for message in messages)]
        characters = free_tokens * 6  # a high estimate: most tokens have fewer characters
        while True:
            start = next((i for i in starts if before[-1] - before[i] <= characters), starts[-1])
            if start == starts[0] or len(encoded(start).tokens) > free_tokens:
                return start
            characters *= 2


def starts_of(messages: Messages) -> list[int]:
    """Return the indices of messages with which a prompt may begin: the first, questions, and tool calls."""
    begin = _begin(messages)
    later = range(begin + 1, len(messages))
    rounds = (i for i in later if messages[i].tool_calls and messages[i - 1].role != "user")
    return [begin, *sorted([*rounds, *(i for i in later if messages[i].role == "user")])]


def kept(messages: Messages, index: int) -> Messages:
    """Return the messages from `index` on, with the system message and the question to which they belong."""
    begin = _begin(messages)
    before = () if messages[index].role == "user" else range(begin, index)
    question = next((messages[i : i + 1] for i in reversed(before) if messages[i].role == "user"), ())
    return (*messages[:begin], *question, *messages[index:])


def _begin(messages: Messages) -> int:
    return int(len(messages) > 1 and messages[0].role == "system")
