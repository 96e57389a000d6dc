"""From tokens to what a user sees: characters complete, reasoning told from answer, stop strings obeyed."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from localspec.chat.calls import CallSplitter
from localspec.chat.detokenizer import Detokenizer
from localspec.chat.stops import StopScanner
from localspec.chat.thinking import Thinking, ThinkingStyle
from localspec.chat.vocabulary import Vocabulary
from localspec.events import Kind
from localspec.structure.tools import CallFormat


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
    ) -> None:
        """`style` as `ChatTemplate.thinking_style` gives it; `continues_text` for raw text that goes on.

        `calls`: how tool calls are written, where there may be some.
        """
        markers = [*(style.markers if style else ()), *(calls.marks if calls else ()), *stops]
        self._detokenizer = Detokenizer(
            vocabulary, visible=marker_tokens(vocabulary, markers), starts_text=not continues_text
        )
        self._calls = CallSplitter(calls.mark) if calls else None
        self._thinking = Thinking(style) if style else None
        self._scanner = StopScanner(stops)
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended the reply; nothing comes out after that."""
        return self._stopped

    def push(self, token: int) -> list[TextPart]:
        """The text that became certain with this token."""
        text = self._detokenizer.push(token)
        return self._shown(text) if text and not self._stopped else []

    def flush(self) -> list[TextPart]:
        """What was held back, when the reply has ended."""
        if self._stopped:
            return []
        parts = self._shown(self._detokenizer.flush())
        if self._thinking and not self._stopped:
            parts += self._scanned(self._thinking.flush())
        if self._calls and not self._stopped:
            parts += self._without_stops(self._calls.flush())
        return parts if self._stopped else parts + self._released()

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
