"""Makes a conversation fit into the context: the oldest turns go first, and the prompt then stays stable."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from localspec.chat.messages import Message
from localspec.chat.prompt import Prompt
from localspec.errors import ContextFull

REPLY_RESERVE = 256  # tokens left free for a reply of unknown length, a quarter of the context at most

Messages = tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Fitted:
    """A prompt that fits."""

    prompt: Prompt
    messages: Messages  # what it holds of the conversation
    dropped_turns: int
    dropped_messages: int


@dataclass(frozen=True, slots=True)
class Fitter:
    """Renders conversations for one context."""

    encode: Callable[[Messages], Prompt]
    capacity: int  # tokens
    max_tokens: int | None  # of the reply

    @property
    def room(self) -> int:
        """Tokens that a prompt may have."""
        return self.capacity - min(self.max_tokens or REPLY_RESERVE, self.capacity // 4)

    def fit(self, messages: Messages, *, trim: bool, dropped_before: int) -> Fitted:
        """The prompt of these messages, of all of them where they fit, or where they are one turn.

        dropped_before: turns that an earlier prompt of this conversation left out; kept to where that is
        enough, so that the prompts have a long common beginning. Raises ContextFull where nothing may be trimmed.
        """
        whole, shorter = self.encode(messages), shorter_conversations(messages)
        if len(whole.tokens) <= self.room or len(shorter) == 1:
            return Fitted(whole, messages, 0, 0)
        if not trim:
            raise ContextFull(
                f"the conversation has {len(whole.tokens)} tokens, the context {self.capacity}",
                hint="start a new conversation, load the pair with a larger --context, or allow trimming",
            )
        if 0 < dropped_before < len(shorter):
            prompt = self.encode(shorter[dropped_before])
            if len(prompt.tokens) <= self.room:
                return self._fitted(prompt, messages, shorter, dropped_before)
        return self._trim(messages, shorter)

    def _trim(self, messages: Messages, shorter: Sequence[Messages]) -> Fitted:
        """Drop turns until a quarter of the context is free beyond the reply's room."""
        goal = self.room - self.capacity // 4
        dropped = bisect_left(
            shorter, True, hi=len(shorter) - 1, key=lambda kept: len(self.encode(kept).tokens) <= goal
        )
        return self._fitted(self.encode(shorter[dropped]), messages, shorter, dropped)

    def _fitted(
        self, prompt: Prompt, messages: Messages, shorter: Sequence[Messages], dropped: int
    ) -> Fitted:
        return Fitted(prompt, shorter[dropped], dropped, len(messages) - len(shorter[dropped]))


def shorter_conversations(messages: Messages) -> list[Messages]:
    """The conversation without its oldest 0, 1, 2, ... turns; the system message and the newest turn stay."""
    head = messages[:1] if messages[0].role == "system" else ()
    starts = [i for i, message in enumerate(messages) if message.role == "user"]
    return [(*head, *messages[start:]) for start in [len(head), *(s for s in starts if s > len(head))]]
