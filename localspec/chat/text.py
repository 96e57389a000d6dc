"""From tokens to what a user sees: characters complete, reasoning told from answer, stop strings obeyed."""

import codecs
from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from localspec.chat.patterns import Patterns
from localspec.chat.thinking import Thinking, ThinkingStyle
from localspec.chat.tools import CallFormat, CallSplitter, Tool, head_of
from localspec.chat.vocabulary import Vocabulary
from localspec.events import Kind
from localspec.structure.tokens import prefixes_space


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text that is complete enough to show."""

    text: str
    kind: Kind


class TextStream:
    """A reply's tokens in, its text out, as soon as it is certain.

    Stop strings are looked for in the answer only, as users mean them: one that turns up while the model
    still reasons does not end the reply before the answer began.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        style: ThinkingStyle | None,
        stops: Sequence[str],
        *,
        continues_text: bool = False,
        calls: CallFormat | None = None,
        tools: Iterable[Tool] = (),
    ) -> None:
        """`style` as `ChatTemplate.thinking_style` gives it; `continues_text` for raw text that goes on.

        `calls`: how calls of `tools` are written, where there may be some.
        """
        markers = [*(style.markers if style else ()), *(calls.marks if calls else ()), *stops]
        self._detokenizer = Detokenizer(
            vocabulary, visible=marker_tokens(vocabulary, markers), starts_text=not continues_text
        )
        self._calls: CallSplitter | None = None
        self._mark: int | None = None  # the control token without which no calls begin
        if calls:
            mark = vocabulary.control_texts().get(calls.mark)
            self._mark = mark if mark is not None and not vocabulary.piece(mark) else None
            first = calls.mark == "{"
            heads = [head_of(tool.name, calls) for tool in tools]
            self._calls = CallSplitter(heads, anywhere=self._mark is None and not first, first=first)
        self._thinking = Thinking(style) if style else None
        self._scanner = StopScanner(stops)
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended the reply; nothing comes out after that."""
        return self._stopped

    @property
    def stopped_by(self) -> str:
        """The stop string that ended the reply."""
        return self._scanner.found

    def push(self, token: int) -> list[TextPart]:
        """The text that became certain with this token."""
        parts: list[TextPart] = []
        if self._calls and token == self._mark:
            # The same text in ordinary tokens is text: to the grammar, and so here.
            parts = self._held_back()
            self._calls.expect()
        text = self._detokenizer.push(token)
        return parts + self._shown(text) if text and not self._stopped else parts

    def flush(self) -> list[TextPart]:
        """What was held back, when the reply has ended."""
        parts = self._held_back()
        return parts if self._stopped else parts + self._released()

    def _held_back(self) -> list[TextPart]:
        """What waited for more text, but for what could become a stop string."""
        if self._stopped:
            return []
        parts = self._shown(self._detokenizer.flush())
        if self._thinking and not self._stopped:
            parts += self._scanned(self._thinking.flush())
        if self._calls and not self._stopped:
            parts += self._without_stops(self._calls.flush())
        return parts

    def _shown(self, text: str) -> list[TextPart]:
        return self._scanned(self._thinking.push(text) if self._thinking else [(Kind.ANSWER, text)])

    def _scanned(self, parts: Iterable[tuple[Kind, str]]) -> list[TextPart]:
        if self._calls is None:
            return self._without_stops(parts)
        split: list[tuple[Kind, str]] = []
        for kind, text in parts:
            split += self._calls.push(text) if kind is Kind.ANSWER else [(kind, text)]
        return self._without_stops(split)

    def _without_stops(self, parts: Iterable[tuple[Kind, str]]) -> list[TextPart]:
        shown: list[TextPart] = []
        for kind, text in parts:
            if kind is not Kind.ANSWER:
                shown += [*self._released(), TextPart(text, kind)]
                continue
            released, self._stopped = self._scanner.push(text)
            if released:
                shown.append(TextPart(released, kind))
            if self._stopped:
                break
        return shown

    def _released(self) -> list[TextPart]:
        held = self._scanner.flush()
        return [TextPart(held, Kind.ANSWER)] if held else []


def marker_tokens(vocabulary: Vocabulary, markers: Collection[str]) -> frozenset[int]:
    """The control tokens that markers are made of: they must not vanish from the text."""
    if not markers:
        return frozenset()
    return frozenset(
        token
        for text, token in vocabulary.control_texts().items()
        if text and any(text in marker for marker in markers)
    )


class Detokenizer:
    """Text from tokens as soon as its characters are complete.

    Bytes that can no longer become a character turn into U+FFFD; the start of one is held. Control tokens
    give no text, except those in `visible`, which give their name. With `starts_text` the reply begins a text
    of its own: the space that SentencePiece vocabularies put before the first word is left out.
    """

    def __init__(
        self, vocabulary: Vocabulary, *, visible: AbstractSet[int] = frozenset(), starts_text: bool = True
    ) -> None:
        self._piece = vocabulary.piece
        self._names = {token: vocabulary.text(token).encode() for token in visible}
        self._held = b""
        self._drops_space = starts_text and prefixes_space(vocabulary)

    def push(self, token: int) -> str:
        """The text that is complete with this token."""
        piece = self._names[token] if token in self._names else self._piece(token)
        if self._drops_space and piece:
            self._drops_space = False
            piece = piece.removeprefix(b" ")
        if self._held:
            piece = self._held + piece
        try:
            text = piece.decode()
            self._held = b""
        except UnicodeDecodeError:
            text, used = codecs.utf_8_decode(piece, "replace", False)
            self._held = piece[used:]
        return text

    def flush(self) -> str:
        """What was held back, when no more tokens follow."""
        held, self._held = self._held, b""
        return held.decode(errors="replace")


class StopScanner:
    """Cuts a stream of text at the first complete stop string, however the text is split into pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = Patterns(stops)
        self._held = ""
        self._stopped = False
        self.found = ""  # the stop string that ended the stream

    def push(self, text: str) -> tuple[str, bool]:
        """Text that may be shown now, and whether a stop string ended the stream; what follows is dropped.

        The stop string that is complete first wins; of several that end together, the longest.
        """
        if self._stopped:
            return "", True
        text = self._held + text
        match = self._stops.find(text)
        if match:
            self._held, self._stopped, self.found = "", True, match.pattern
            return text[: match.start], True
        released = len(text) - self._stops.unfinished(text)
        self._held = text[released:]
        return text[:released], False

    def flush(self) -> str:
        """What was held back, when no more text follows."""
        held, self._held = self._held, ""
        return held
