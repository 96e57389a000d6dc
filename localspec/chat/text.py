"""From tokens to text: complete characters, reasoning apart from the answer, stop strings."""

import codecs
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from localspec.algorithm.protocols import Vocabulary
from localspec.chat.thinking import CALLING, A, R, ThinkingStyle
from localspec.events import Kind, ToolCall
from localspec.structure.call_form import CallForm
from localspec.structure.constraint import prefixes_space
from localspec.structure.read_calls import CallReader, Functions, TextPart

LONGEST_HEADER = 256  # characters
_RECIPIENT = " to="
_FIRST_CODE, _CODES = 0xD800, 2048  # lone surrogates: UTF-8 has none


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
        """The occurrence that ends first; of several, the longest."""
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
        calls: CallForm | None = None,
        functions: Functions | None = None,
    ) -> None:
        """`style` as `ChatTemplate.thinking_style` gives it; `continues_text` for raw text.

        `calls`: the format of calls of `functions`, if any are allowed.
        """
        markers = [*(style.markers if style else ()), *(calls.marks if calls else ()), *stops]
        self._codes = Codes(vocabulary, marker_tokens(vocabulary, markers))
        self._detokenizer = Detokenizer(
            vocabulary, visible=self._codes.by_token, starts_text=not continues_text
        )
        form = calls.with_texts(self._codes.coded) if calls else None
        self._reader = CallReader(form, functions or {}, self._codes.plain) if form else None
        self._thinking = Thinking(style, form, functions or (), self._codes.coded) if style else None
        self._called: list[ToolCall] = []  # complete ones
        self._scanner = StopScanner(stops)

    @property
    def stopped_by(self) -> str:
        """The stop string that ended the reply: nothing comes out after that; "" while none did."""
        return self._scanner.found

    def calls(self) -> tuple[tuple[ToolCall, ...], str]:
        """The complete calls so far, and the text behind them."""
        return tuple(self._called), self._reader.rest if self._reader else ""

    def push(self, token: int) -> list[TextPart]:
        """The text that became certain with this token."""
        text = self._detokenizer.push(token)
        return self._shown(text) if text and not self.stopped_by else []

    def flush(self) -> list[TextPart]:
        """The text that was held back, after the end of the reply."""
        if self.stopped_by:
            return []
        parts = self._shown(self._detokenizer.flush())
        if self._thinking and not self.stopped_by:
            parts += self._scanned(self._thinking.flush())
        if self._reader and not self.stopped_by:
            parts += self._without_stops(self._reader.flush())
        return parts if self.stopped_by else parts + self._released()

    def _shown(self, text: str) -> list[TextPart]:
        return self._scanned(self._thinking.push(text) if self._thinking else [(Kind.ANSWER, text)])

    def _scanned(self, parts: Iterable[tuple[Kind, str]]) -> list[TextPart]:
        split: list[TextPart] = []
        for kind, text in parts:
            if self._reader and kind is not Kind.REASONING:
                split += self._reader.push(text)
            else:
                split.append(TextPart(self._codes.plain(text), kind))
        return self._without_stops(split)

    def _without_stops(self, parts: Iterable[TextPart]) -> list[TextPart]:
        shown: list[TextPart] = []
        for part in parts:
            if part.kind is not Kind.ANSWER:
                self._called += [part.ended] if part.ended else []
                shown += [*self._released(), *([part] if part.text or part.call else [])]
                continue
            if released := self._scanner.push(part.text):
                shown.append(TextPart(released, part.kind))
            if self.stopped_by:
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


def _is_code(character: str) -> bool:
    return "\ud800" <= character <= "\udfff"


class Codes:
    """Control tokens as characters that no text has: what spells their names is text, to the grammar and so here."""

    def __init__(self, vocabulary: Vocabulary, tokens: Collection[int]) -> None:
        self.by_token = {token: vocabulary.text(token) for token in sorted(tokens)}
        controls = [token for token in self.by_token if not vocabulary.piece(token)]
        pairs = {chr(_FIRST_CODE + n): self.by_token[token] for n, token in enumerate(controls[:_CODES])}
        self.by_token |= dict(zip(controls, pairs, strict=False))
        self._names = str.maketrans(pairs)
        self._codes = {name: code for code, name in pairs.items()}
        longest_first = sorted(self._codes, key=len, reverse=True)
        self._find = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def coded(self, text: str) -> str:
        """A marker as the stream has it."""
        return self._find.sub(lambda name: self._codes[name[0]], text)

    def plain(self, text: str) -> str:
        """A text of the stream as it is shown."""
        return text.translate(self._names)


class Detokenizer:
    """Text from tokens as soon as its characters are complete.

    Bytes that can no longer become a character turn into U+FFFD; the start of one is held. Control tokens
    give no text, except those in `visible`, which give that. With `starts_text` the reply begins a new text: the
    space that SentencePiece puts before the first word is left out.
    """

    def __init__(
        self, vocabulary: Vocabulary, *, visible: Mapping[int, str] | None = None, starts_text: bool = True
    ) -> None:
        self._piece = vocabulary.piece
        self._visible = visible or {}
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._drops_space = starts_text and prefixes_space(vocabulary)

    def push(self, token: int) -> str:
        """The text that is complete with this token."""
        if token in self._visible:
            self._drops_space = False
            return self.flush() + self._visible[token]
        piece = self._piece(token)
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
        self.found = ""  # the stop string that ended the stream

    def push(self, text: str) -> str:
        """Text that may be shown now; what follows a stop string is dropped.

        The stop string that is complete first wins; of several that end together, the longest.
        """
        if self.found:
            return ""
        text = self._held + text
        if match := self._stops.find(text):
            self._held, self.found = "", match.pattern
            return text[: match.start]
        released = len(text) - self._stops.unfinished(text)
        self._held = text[released:]
        return text[:released]

    def flush(self) -> str:
        """What was held back, when no more text follows."""
        held, self._held = self._held, ""
        return held


class Headers:
    """Shortens the headers of a stream of channels, `<|channel|>final <|constrain|>json<|message|>`, to their names.

    One that names a function is written in the form's first way, behind the name for all of them.
    """

    def __init__(self, coded: Callable[[str], str], form: CallForm | None) -> None:
        self._channel, self._start, self._message = map(coded, ("<|channel|>", "<|start|>", "<|message|>"))
        start, channel, message = map(re.escape, (self._start, self._channel, self._message))
        self._header = re.compile(
            rf"{start}assistant((?:(?!{channel}|{message})[^<])*)|{channel}\s*(\w*)((?:(?!{message}).)*){message}",
            re.DOTALL,
        )
        self._beginnings = Patterns((self._channel, self._start))
        self._form = form
        self._held = ""
        self._begun = False
        self._recipient = ""  # named by the role, in front of the channel

    def push(self, text: str) -> str:
        """The text with every complete header shortened; an incomplete one is held."""
        text = self._held + text
        if not self._begun:
            if _RECIPIENT.startswith(text):
                self._held = text
                return ""
            self._begun = True
            if text.startswith(_RECIPIENT):  # the prompt ended in the role
                text = f"{self._start}assistant{text}"
        start = max(text.rfind(self._channel), text.rfind(self._start))
        if start < 0 or self._message in text[start:] or len(text) - start > LONGEST_HEADER:
            start = len(text) - self._beginnings.unfinished(text)
        self._held = text[start:]
        return self._header.sub(self._short, text[:start])

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held

    def _short(self, header: re.Match[str]) -> str:
        role, channel, rest = header.groups()
        if role is not None:
            self._recipient = role.partition("to=")[2]
            return f"{self._start}assistant"
        called = self._recipient or rest.partition("to=")[2]
        self._recipient = ""
        if not called:
            return self._channel + channel + self._message
        name = called.split()[0].removeprefix("functions.")
        head = self._form.open + name + self._form.name_end if self._form else ""
        return f"{self._channel}{CALLING}{self._message}{head}"


class Thinking:
    """Splits a stream of text into reasoning and answer, for any cut into pieces.

    Space between a marker and the text after it is dropped. Reasoning that is never closed stays reasoning.
    """

    def __init__(
        self,
        style: ThinkingStyle | None,
        form: CallForm | None = None,
        functions: Iterable[str] = (),
        coded: Callable[[str], str] = str,
    ) -> None:
        """`form`: of calls to `functions`; `coded` makes a text of the stream from a marker."""
        self._headers = Headers(coded, form) if style and style.channels else None
        markers = {coded(marker): kind for marker, kind in style.markers.items()} if style else {}
        # Where a marker stands in front of a call, the whole beginning of the call is one that stays.
        heads = [form.begin + form.open + name + form.name_end for name in functions] if form else []
        inside = [(head, marker) for head in heads for marker in markers if marker in head]
        self._kept = {head.partition(marker)[0] + marker for head, marker in inside}
        markers |= dict.fromkeys(self._kept, Kind.TOOL_CALL)
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
        """The text whose part is certain now, in order."""
        self._held += self._headers.push(text) if self._headers else text
        parts: list[tuple[Kind, str]] = []
        while self._held and self._advance(parts):
            pass
        return parts

    def flush(self) -> list[tuple[Kind, str]]:
        """What was held back, when no more text follows."""
        held, self._held = self._held + (self._headers.flush() if self._headers else ""), ""
        cut = any(marker.startswith(held) for marker in self._kinds) and _is_code(held[:1])
        return [(self._kind, held)] if held and not cut else []

    def _advance(self, parts: list[tuple[Kind, str]]) -> bool:
        """Skip one marker; False if the rest must wait for more text."""
        if self._fresh:
            body = self._held.lstrip()
            if self._drops_space:
                self._held = body
            for beginning, marker in self._beginnings:
                if body.startswith(beginning):
                    self._enter(marker, body[len(beginning) :], parts)
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
            self._enter(match.pattern, text[match.end :], parts)
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

    def _enter(self, marker: str, rest: str, parts: list[tuple[Kind, str]]) -> None:
        self._kind = self._kinds[marker]
        self._fresh = self._drops_space = self._begins = True
        if marker in self._kept:
            parts.append((self._kind, marker))
            self._fresh = False
        self._held = rest
