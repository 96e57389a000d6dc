"""From tokens to text: complete characters, reasoning apart from the answer, stop strings."""

import codecs
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from localspec.algorithm.protocols import Vocabulary
from localspec.chat.thinking import CALLING, A, R, ThinkingStyle
from localspec.chat.tools import CallFormat, Tool, calls_in, head_of, new_call_id
from localspec.events import Kind, ToolCall
from localspec.structure.constraint import prefixes_space

LONGEST_HEADER = 256  # characters
# The text before the arguments in the formats of localspec.chat.tools; a grammar enforces it.
_HEAD = re.compile(
    r'\{"name": "([^"]+)", "(?:arguments|parameters)": |\[TOOL_CALLS\]([A-Za-z0-9_.-]{1,64})\[ARGS\]'
)


@dataclass(frozen=True, slots=True)
class Match:
    start: int
    end: int
    pattern: str


class Patterns:
    """Texts to look for; empty ones are ignored."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = tuple(dict.fromkeys(p for p in patterns if p))
        self._first = frozenset(p[0] for p in self._patterns)
        self._longest = max(map(len, self._patterns), default=0)

    def find(self, text: str) -> Match | None:
        """The first complete occurrence; of several with the same end, the longest."""
        best: Match | None = None
        for pattern in self._patterns:
            start = text.find(pattern)
            if start < 0:
                continue
            end = start + len(pattern)
            if best is None or (end, start) < (best.end, best.start):
                best = Match(start, end, pattern)
        return best

    def unfinished(self, text: str) -> int:
        """Length of the longest end of the text that could begin a pattern; 0 without one."""
        length = len(text)
        for start in range(max(0, length - self._longest + 1), length):
            if text[start] in self._first:
                tail = text[start:]
                if any(p.startswith(tail) for p in self._patterns):
                    return length - start
        return 0


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text that is ready to show."""

    text: str
    kind: Kind
    call: ToolCall | None = None  # begins here


class TextStream:
    """A reply's tokens in, its text out as soon as it is certain.

    Stop strings count only in the answer: one in the reasoning does not end the reply.
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
        """`style` as `ChatTemplate.thinking_style` gives it; `continues_text` for raw text.

        `calls`: the format of calls of `tools`, if any are allowed.
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
        self._form = calls
        self._reader = CallReader()
        self._called = ""  # the text of all calls
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

    def calls(self) -> tuple[tuple[ToolCall, ...], str]:
        """The complete calls so far, and the text behind them."""
        calls, rest = calls_in(self._called, self._form) if self._form else ((), "")
        return tuple(
            replace(call, id=begun) for call, begun in zip(calls, self._reader.ids, strict=False)
        ), rest

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
        """The text that was held back, after the end of the reply."""
        parts = self._held_back()
        return parts if self._stopped else parts + self._released()

    def _held_back(self) -> list[TextPart]:
        """The text that waited for more, without a possible stop string."""
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
            if kind is Kind.TOOL_CALL:
                self._called += text
                shown += [*self._released(), *self._reader.push(text)]
                continue
            if kind is Kind.REASONING:
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
    """The control tokens of the markers, which must stay in the text."""
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
    give no text, except those in `visible`, which give their name. With `starts_text` the reply begins a new text: the
    space that SentencePiece puts before the first word is left out.
    """

    def __init__(
        self, vocabulary: Vocabulary, *, visible: AbstractSet[int] = frozenset(), starts_text: bool = True
    ) -> None:
        self._piece = vocabulary.piece
        self._names = {token: vocabulary.text(token).encode() for token in visible}
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._drops_space = starts_text and prefixes_space(vocabulary)

    def push(self, token: int) -> str:
        """The text that is complete with this token."""
        piece = self._names[token] if token in self._names else self._piece(token)
        if self._drops_space and piece:
            self._drops_space = False
            piece = piece.removeprefix(b" ")
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """What was held back, when no more tokens follow."""
        return self._decoder.decode(b"", final=True)


class StopScanner:
    """Cuts a stream of text at the first complete stop string, for any cut into pieces."""

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


class Headers:
    """Shortens the headers of a stream of channels, `<|channel|>final <|constrain|>json<|message|>`, to their names."""

    _header = re.compile(
        r"<\|start\|>assistant([^<]*)|<\|channel\|>\s*(\w*)((?:(?!<\|message\|>).)*)<\|message\|>", re.DOTALL
    )
    _beginnings = Patterns(("<|channel|>", "<|start|>"))

    def __init__(self) -> None:
        self._held = ""
        self._recipient = False  # named by the role, in front of the channel

    def push(self, text: str) -> str:
        """The text with every complete header shortened; an incomplete one is held."""
        text = self._held + text
        start = max(text.rfind("<|channel|>"), text.rfind("<|start|>"))
        if start < 0 or "<|message|>" in text[start:] or len(text) - start > LONGEST_HEADER:
            start = len(text) - self._beginnings.unfinished(text)
        self._held = text[start:]
        return self._header.sub(self._short, text[:start])

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held

    def _short(self, header: re.Match[str]) -> str:
        role, channel, rest = header.groups()
        if role is not None:
            self._recipient = "to=" in role
            return "<|start|>assistant"
        called = self._recipient or "to=" in rest
        self._recipient = False
        return f"<|channel|>{CALLING if called else channel}<|message|>"


class Thinking:
    """Splits a stream of text into reasoning and answer, for any cut into pieces.

    Space between a marker and the text after it is dropped. Reasoning that is never closed stays reasoning.
    """

    def __init__(self, style: ThinkingStyle | None) -> None:
        markers = style.markers if style else {}
        self._headers = Headers() if style and style.channels else None
        self._answered = False  # some answer came before this part
        self._begins = False  # nothing of this part was released
        self._kinds = dict(markers)
        # At the beginning of a part space does not count, and so neither does that of a marker.
        self._beginnings = sorted(((m.lstrip(), m) for m in markers), key=lambda pair: -len(pair[0]))
        quotable = style is not None and style.quotable
        self._patterns = {
            R: Patterns(m for m, kind in markers.items() if kind is A or not quotable),
            A: Patterns(() if quotable else markers),
            Kind.TOOL_CALL: Patterns(markers),
        }
        self._kind = R if style and style.opened else A
        self._fresh = style is not None  # nothing but space so far in this part
        self._drops_space = self._kind is R
        self._held = ""

    def push(self, text: str) -> list[tuple[Kind, str]]:
        """Text that can be told apart now, in order."""
        self._held += self._headers.push(text) if self._headers else text
        parts: list[tuple[Kind, str]] = []
        while self._held and self._advance(parts):
            pass
        return parts

    def flush(self) -> list[tuple[Kind, str]]:
        """What was held back, when no more text follows."""
        held, self._held = self._held + (self._headers.flush() if self._headers else ""), ""
        return [(self._kind, held)] if held else []

    def _advance(self, parts: list[tuple[Kind, str]]) -> bool:
        """Skip one marker; False if the rest must wait for more text."""
        if self._fresh:
            body = self._held.lstrip()
            if self._drops_space:
                self._held = body
            for beginning, marker in self._beginnings:
                if body.startswith(beginning):
                    self._enter(marker, body[len(beginning) :])
                    return True
            if not body or any(beginning.startswith(body) for beginning, _ in self._beginnings):
                return False
            self._fresh = False
        text, patterns = self._held, self._patterns[self._kind]
        match = patterns.find(text)
        released = match.start if match else len(text) - patterns.unfinished(text)
        if released:
            parts.append((self._kind, self._parted(text[:released])))
        if match:
            self._enter(match.pattern, text[match.end :])
            return True
        self._held = text[released:]
        return False

    def _parted(self, text: str) -> str:
        """A blank line between answers of different channels."""
        begins, self._begins = self._begins, False
        if self._headers is None or self._kind is not A:
            return text
        apart = "\n\n" if begins and self._answered else ""
        self._answered = True
        return apart + text

    def _enter(self, marker: str, rest: str) -> None:
        self._kind = self._kinds[marker]
        self._fresh = self._drops_space = self._begins = True
        self._held = rest


class CallSplitter:
    """Splits an answer at the first tool call; everything behind it is calls.

    A call begins with its complete head, up to the arguments of an offered tool.
    """

    def __init__(self, heads: Iterable[str], *, anywhere: bool, first: bool) -> None:
        """`anywhere`: heads count wherever they stand; `first`: where the answer begins; `expect` says where else."""
        self._heads = Patterns(heads)
        self._anywhere = anywhere
        self._looks = anywhere or first
        self._held = ""
        self._kind = Kind.ANSWER

    def expect(self) -> None:
        """Calls may begin with the coming text."""
        self._looks = True

    def push(self, text: str) -> list[tuple[Kind, str]]:
        """Text that can be told apart now, in order."""
        if self._kind is Kind.TOOL_CALL or not self._looks or not text:
            return [(self._kind, text)] if text else []
        text = self._held + text
        match = self._heads.find(text)
        if match and (self._anywhere or not match.start):
            self._kind, self._held = Kind.TOOL_CALL, ""
            before = [(Kind.ANSWER, text[: match.start])] if match.start else []
            return [*before, (Kind.TOOL_CALL, text[match.start :])]
        released = len(text) - self._heads.unfinished(text)
        if released and not self._anywhere:
            self._looks, released = False, len(text)
        self._held = text[released:]
        return [(Kind.ANSWER, text[:released])] if released else []

    def flush(self) -> list[tuple[Kind, str]]:
        """What was held back, when no more text follows."""
        held, self._held = self._held, ""
        return [(self._kind, held)] if held else []


class CallReader:
    """Reads the text of the calls in one reply."""

    def __init__(self) -> None:
        self.ids: list[str] = []  # of the calls so far
        self._unread = ""
        self._inside = False  # the arguments of a call
        self._depth = 0
        self._quoted = self._escaped = False

    def push(self, text: str) -> Iterator[TextPart]:
        """The calls that begin in this text, and new text of their arguments."""
        self._unread += text
        while self._unread:
            begun = None
            if not self._inside:
                head = _HEAD.search(self._unread)
                if head is None:
                    return
                self._unread, self._inside = self._unread[head.end() :], True
                begun = ToolCall(head[1] or head[2], {}, new_call_id())
                self.ids.append(begun.id)
            end = self._end_of_arguments()
            written, self._unread = self._unread[:end], self._unread[end:]
            self._inside = not written or self._depth > 0
            yield TextPart(written, Kind.TOOL_CALL, begun)

    def _end_of_arguments(self) -> int:
        """How many unread characters belong to the arguments; `_depth` is 0 where they end there."""
        for at, sign in enumerate(self._unread, start=1):
            if self._escaped:
                self._escaped = False
            elif self._quoted:
                self._escaped = sign == "\\"
                self._quoted = sign != '"'
            elif sign == '"':
                self._quoted = True
            elif sign in "{[":
                self._depth += 1
            elif sign in "}]":
                self._depth -= 1
                if not self._depth:
                    return at
        return len(self._unread)
