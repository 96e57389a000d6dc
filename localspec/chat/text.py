"""Turn tokens into text: complete characters, reasoning, answers, calls and stop strings."""

import codecs
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace

from localspec.algorithm.protocols import Vocabulary
from localspec.events import Kind, ToolCall
from localspec.prompt.thinking import CALLING, A, R, ThinkingStyle
from localspec.structure.constraint import prefixes_space
from localspec.structure.grammar import FENCE, FENCE_END
from localspec.structure.read_calls import CallReader, Change, Functions, TextPart
from localspec.structure.tool_call_format import ToolCallFormat

LONGEST_HEADER = 256  # characters; a longer text is shown, because it is no header
REPEATS, LONGEST_BLOCK = 8, 64  # a reply repeats itself if it ends with this many equal blocks of tokens
_RECIPIENT = " to="
_QUOTES = '`"'
_FIRST_CODE, _CODES = 0xD800, 2048  # lone surrogates, which UTF-8 text never has


def repeated_block(tokens: Sequence[int], least: int = 0) -> Sequence[int]:
    """Return the shortest block that the tokens repeat at their end, REPEATS times and over `least` tokens; else ()."""
    for size in range(1, min(LONGEST_BLOCK, len(tokens) // REPEATS) + 1):
        loop = tokens[-max(REPEATS * size, least) :]
        if loop[-1] == loop[-1 - size] and len(loop) >= least and loop[size:] == loop[:-size]:
            return loop[-size:]
    return ()


class Patterns:
    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = tuple(dict.fromkeys(filter(None, patterns)))
        self._first = frozenset(p[0] for p in self._patterns)
        self._longest = max(map(len, self._patterns), default=0)

    def find(self, text: str) -> tuple[int, str] | None:
        """Return the start and text of the pattern that ends first in `text`; if several end there, the longest."""
        places = ((start, p) for p in self._patterns if (start := text.find(p)) >= 0)
        return min(places, key=lambda each: (each[0] + len(each[1]), each[0]), default=None)

    def unfinished(self, text: str) -> int:
        """Return the length of the longest suffix of the text that is the beginning of a pattern."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[start] in self._first and any(p.startswith(text[start:]) for p in self._patterns):
                return len(text) - start
        return 0


class TextStream:
    """A stream that turns the tokens of a reply into text. Stop strings count only in the answer."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        style: ThinkingStyle | None,
        stops: Sequence[str],
        *,
        continues_text: bool = False,
        calls: ToolCallFormat | None = None,
        functions: Functions | None = None,
        reader: Callable[[ToolCallFormat, Functions, Change], CallReader] = CallReader,
        fenced: bool = False,
    ) -> None:
        """`fenced`: whether to drop a code fence (```) around the answer."""
        markers = [*(style.markers if style else ()), *(calls.marks if calls else ()), *stops]
        self.vocabulary = vocabulary
        self.codes = Codes(vocabulary, markers)
        self.detokenizer = Detokenizer(vocabulary, self.codes.by_token, starts_text=not continues_text)
        form = calls.with_texts(self.codes.coded) if calls else None
        self._reader = reader(form, functions or {}, self.codes.plain) if form else None
        self._begun: list[TextPart] = []  # parts of a call that began in the text before the reply
        self._before = 0  # number of characters from before the reply that are still held back
        self.thinking = Thinking(style, form, functions or (), self.codes.coded)
        tagged = form is not None and bool(form.tag) and not (style and style.channels)
        # Finds calls that begin inside the reasoning.
        self._unclosed = CallReader(form, functions or {}) if form and tagged else None
        self._thoughts = ""  # reasoning that may be, or begin, a call
        self._calling = False  # whether `_thoughts` is the beginning of a call so far
        self.calls: list[ToolCall] = []  # complete calls, and one that the end of the reply cut off
        self._scanner = StopScanner(stops)
        self._fence = Unfencer() if fenced else None

    @property
    def stopped_by(self) -> str:
        return self._scanner.found

    @property
    def repeats(self) -> bool:
        """Whether the reply ends with a call that it has written before."""
        return self._reader is not None and self._reader.repeats

    @property
    def held(self) -> int:
        """The number of bytes that are not shown: incomplete text, or the stop string and the text after it."""
        text = self._scanner.held + (self._reader.held if self._reader else "")
        text += self._fence.held if self._fence else ""
        text += self.codes.plain(self._thoughts + self.thinking.held)
        return len(text.encode("utf-8", "surrogatepass")) + self.detokenizer.held

    def resume(self, text: str) -> None:
        """Read the text before the reply: a call that begins in it and ends in the reply belongs to the reply."""
        parts = self._reader.push(text) if self._reader else []
        open_call = next((part.call for part in reversed(parts) if part.call or part.ended), None)
        if open_call:
            self._begun = parts[[part.call for part in parts].index(open_call) :]
        self._before = len(self._reader.held) if self._reader else 0

    def _resumed(self, parts: Iterable[TextPart]) -> Iterator[TextPart]:
        """Yield the parts of the reply, without the text before it."""
        for part in (*self._begun, *parts):
            if part.kind is Kind.ANSWER and self._before:
                dropped, self._before = self._before, max(self._before - len(part.text), 0)
                yield TextPart(part.text[dropped:], part.kind)
            else:
                self._before = 0
                yield part
        self._begun = []

    def push(self, token: int) -> list[TextPart]:
        text = self.detokenizer.push(token)
        return self._split(self.thinking.push(text)) if text and not self.stopped_by else []

    def flush(self, *, cut: bool = False) -> list[TextPart]:
        """Return the rest of the text at the end of the reply; `cut`: whether the reply was cut off."""
        if self.stopped_by:
            return []
        parts = self._split(self.thinking.push(self.detokenizer.flush()))
        if not self.stopped_by:
            parts += self._split(self.thinking.flush())
            if self._reader and self._calling and self.thinking.kind is R and not cut:
                called, self._thoughts = self._reader.push(self._thoughts.rstrip()), ""
                parts += self._without_stops(
                    replace(part, kind=R) if part.kind is A else part for part in called
                )
            parts += self._all_thoughts()
        if self._reader and not self.stopped_by:
            parts += self._without_stops(self._resumed(self._reader.flush(cut=cut)))
        return parts if self.stopped_by else parts + self._released()

    def _split(self, parts: Iterable[tuple[Kind, str]]) -> list[TextPart]:
        split: list[TextPart] = []
        for kind, text in parts:
            if kind is R and self._unclosed:
                split += self._read_thought(self._unclosed, text)
            elif self._reader and kind is not R:
                split += self._all_thoughts()
                split += self._resumed(self._reader.push(text))
            else:
                split.append(TextPart(self.codes.plain(text), kind))
        return self._without_stops(split)

    def _read_thought(self, reader: CallReader, text: str) -> list[TextPart]:
        """Return reasoning to show. Hold back a call at its end, which counts only if the reply ends there."""
        self._thoughts += text
        for part in reader.push(text):
            if part.call or part.text.strip():
                self._calling = part.kind is not A
        return [] if self._calling else self._shown_thoughts(len(self._thoughts) - len(reader.held))

    def _shown_thoughts(self, end: int) -> list[TextPart]:
        shown, self._thoughts = self._thoughts[:end], self._thoughts[end:]
        return [TextPart(self.codes.plain(shown), R)] if shown else []

    def _all_thoughts(self) -> list[TextPart]:
        if self._unclosed:
            self._unclosed.flush()
            self._calling = False
        return self._shown_thoughts(len(self._thoughts))

    def _without_stops(self, parts: Iterable[TextPart]) -> list[TextPart]:
        shown: list[TextPart] = []
        for part in parts:
            if part.kind is not Kind.ANSWER:
                self.calls += [part.ended] if part.ended else []
                shown += [*self._released(), *([part] if part.text or part.call else [])]
                continue
            if released := self._scanner.push(self._fence.push(part.text) if self._fence else part.text):
                shown.append(TextPart(released, part.kind))
            if self.stopped_by:
                break
        return shown

    def _released(self) -> list[TextPart]:
        held = self._scanner.push(self._fence.flush()) if self._fence else ""
        held += self._scanner.flush()
        return [TextPart(held, Kind.ANSWER)] if held else []


class Codes:
    """A code that writes special tokens as lone surrogates, to distinguish them from the same letters in plain text.

    the model writes            in the stream             shown
    the token <think>           one lone surrogate        <think>
    the letters of "<think>"    "<think>"                 <think>

    Markers are searched for in their `coded` form.
    """

    def __init__(self, vocabulary: Vocabulary, markers: Collection[str]) -> None:
        texts = vocabulary.special_tokens().items() if markers else ()
        inside = {token for text, token in texts if text and any(text in marker for marker in markers)}
        self.by_token = {token: vocabulary.text(token) for token in sorted(inside)}
        controls = [token for token in self.by_token if not vocabulary.piece(token)]
        pairs = {chr(_FIRST_CODE + n): self.by_token[token] for n, token in enumerate(controls[:_CODES])}
        self.by_token |= dict(zip(controls, pairs, strict=False))
        self._names = str.maketrans(pairs)
        self._codes = {name: code for code, name in pairs.items()}
        longest_first = sorted(self._codes, key=len, reverse=True)
        self._find = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def coded(self, text: str) -> str:
        return self._find.sub(lambda name: self._codes[name[0]], text)

    def plain(self, text: str) -> str:
        return text.translate(self._names) if self._names else text


class Detokenizer:
    """A decoder from tokens to complete characters; bytes that cannot become a character turn into U+FFFD.

    `visible`: texts of the special tokens that are shown. `starts_text`: whether to drop the space that
    SentencePiece puts before the first word of a text.
    """

    def __init__(
        self, vocabulary: Vocabulary, visible: Mapping[int, str], *, starts_text: bool = True
    ) -> None:
        self._piece = vocabulary.piece
        self._visible = visible
        self._cut = b""  # the bytes so far of an incomplete character
        self._drops_space = starts_text and prefixes_space(vocabulary)

    def push(self, token: int) -> str:
        if token in self._visible:
            self._drops_space = False
            return self.flush() + self._visible[token]
        piece = self._piece(token)
        if self._drops_space and piece:
            self._drops_space = False
            piece = piece.removeprefix(b" ")
        return self._decoded(piece)

    @property
    def held(self) -> int:
        return len(self._cut)

    def flush(self) -> str:
        return self._decoded(b"", final=True)

    def _decoded(self, more: bytes, *, final: bool = False) -> str:
        text, used = codecs.utf_8_decode(held := self._cut + more, "replace", final)
        self._cut = held[used:]
        return text


class StopScanner:
    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = Patterns(stops)
        self.held = ""
        self.found = ""  # the stop string that ended the stream

    def push(self, text: str) -> str:
        """Return the text that may be shown now; drop the text after a stop string."""
        if self.found:
            return ""
        text = self.held + text
        if match := self._stops.find(text):
            start, self.found = match
            self.held = text[start:]
            return text[:start]
        released = len(text) - self._stops.unfinished(text)
        self.held = text[released:]
        return text[:released]

    def flush(self) -> str:
        held, self.held = "" if self.found else self.held, ""
        return held


class Unfencer:
    """A stream that drops a code fence (```) around JSON. No line of JSON itself begins with a grave accent."""

    def __init__(self) -> None:
        self.held = ""
        self._begun = False

    def push(self, text: str) -> str:
        text, self.held = self.held + text, ""
        if not self._begun and FENCE.startswith(text):
            self.held = text
            return ""
        text, self._begun = text if self._begun else text.removeprefix(FENCE), True
        size = next(size for size in range(len(FENCE_END), -1, -1) if text.endswith(FENCE_END[:size]))
        self.held = text[len(text) - size :]
        return text[: len(text) - size]

    def flush(self) -> str:
        held, self.held = self.held, ""
        return "" if "`" in held else held


class Headers:
    """Shorten gpt-oss headers (`<|channel|>final <|constrain|>json<|message|>`) to a channel or a call."""

    def __init__(self, coded: Callable[[str], str], form: ToolCallFormat | None) -> None:
        self._channel, self._start, self._message = map(coded, ("<|channel|>", "<|start|>", "<|message|>"))
        start, channel, message = map(re.escape, (self._start, self._channel, self._message))
        self._header = re.compile(
            rf"{start}assistant((?:(?!{channel}|{message})[^<])*)|{channel}\s*(\w*)((?:(?!{message}).)*){message}",
            re.DOTALL,
        )
        self._beginnings = Patterns((self._channel, self._start))
        self._form = form
        self.held = ""
        self._begun = False
        self._recipient = ""  # the recipient of a call, if the header has it after the role

    def push(self, text: str) -> str:
        """Return the text with its gpt-oss headers shortened; keep an incomplete header for the next call."""
        text = self.held + text
        if not self._begun:
            if _RECIPIENT.startswith(text):
                self.held = text
                return ""
            self._begun = True
            if text.startswith(_RECIPIENT):  # the prompt began this header
                text = f"{self._start}assistant{text}"
        start = max(text.rfind(self._channel), text.rfind(self._start))
        if start < 0 or self._message in text[start:] or len(text) - start > LONGEST_HEADER:
            start = len(text) - self._beginnings.unfinished(text)
        self.held = text[start:]
        return self._header.sub(self._short, text[:start])

    def flush(self) -> str:
        held, self.held = self.held, ""
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
    def __init__(
        self,
        style: ThinkingStyle | None,
        form: ToolCallFormat | None = None,
        functions: Iterable[str] = (),
        coded: Callable[[str], str] = str,
    ) -> None:
        """`form`: the tool-call format of the `functions`; `coded`: a function that encodes special tokens."""
        self._headers = Headers(coded, form) if style and style.channels else None
        markers = {coded(marker): kind for marker, kind in style.markers.items()} if style else {}
        # A marker inside the beginning of a call stays in the text, because it is part of the call.
        heads = [form.begin + form.open + name + form.name_end for name in functions] if form else []
        inside = [(head, marker) for head in heads for marker in markers if marker in head]
        self._kept = {head.partition(marker)[0] + marker for head, marker in inside}
        markers |= dict.fromkeys(self._kept, Kind.TOOL_CALL)
        self._answered = False  # whether the reply had an answer before the current part
        self._begins = False  # whether the current part has begun, but none of its text is released
        self.markers = markers
        # White space at the start of a part is skipped, so markers are compared without leading space.
        self._beginnings = sorted(((m.lstrip(), m) for m in markers), key=lambda pair: -len(pair[0]))
        quotable = style is not None and style.quotable
        self._patterns = {
            R: Patterns(m for m, kind in markers.items() if kind is A or not quotable),
            A: Patterns(() if quotable else markers),
            Kind.TOOL_CALL: Patterns(markers),
        }
        self.kind = R if style and style.opened else A
        self._fresh = style is not None  # whether the current part is only white space so far
        self._drops_space = self.kind is R
        self._held = ""
        self._line = ""  # the last line of the current part, as far as it is written

    @property
    def held(self) -> str:
        return self._held + (self._headers.held if self._headers else "")

    def push(self, text: str) -> list[tuple[Kind, str]]:
        if self._headers:
            self._headers = copy(self._headers)  # copied, because copies of this object must share no state
            text = self._headers.push(text)
        self._held += text
        parts: list[tuple[Kind, str]] = []
        while self._held and self._advance(parts):
            pass
        return parts

    def flush(self) -> list[tuple[Kind, str]]:
        held, self._held = self._held + (self._headers.flush() if self._headers else ""), ""
        cut = any(marker.startswith(held) for marker in self.markers) and "\ud800" <= held[:1] <= "\udfff"
        return [(self.kind, held)] if held and not cut else []

    def _advance(self, parts: list[tuple[Kind, str]]) -> bool:
        """Release text up to the next marker, and skip the marker; return False if more text is needed."""
        if self._fresh:
            body = self._held.lstrip()
            if self._drops_space:
                self._held = body
            for beginning, marker in self._beginnings:
                if body.startswith(beginning):
                    self._enter(marker, body[len(beginning) :], parts)
                    return True
            begins = not body or any(beginning.startswith(body) for beginning, _ in self._beginnings)
            if begins and len(self._held) <= LONGEST_HEADER:
                return False
            self._fresh = False
        text, patterns = self._held, self._patterns[self.kind]
        match, passes_quote = patterns.find(text), False
        released = match[0] if match else len(text) - patterns.unfinished(text)
        if match and self.kind is R and (quote := self._quote(text[:released])):
            end = released + len(match[1])
            following = text[end : end + 1]  # "": not known yet; shows whether the marker is quoted
            if following in ("", quote):
                match, passes_quote = None, bool(following)
                released = end + 1 if passes_quote else released
        if released:
            begins, self._begins = self._begins, False
            apart = ""
            if self._headers and self.kind is A:  # a blank line separates answers of different channels
                apart, self._answered = "\n\n" if begins and self._answered else "", True
            parts.append((self.kind, apart + text[:released]))
            self._line = (self._line + text[:released]).rpartition("\n")[2]
        if match:
            self._enter(match[1], text[released + len(match[1]) :], parts)
            return True
        self._held = text[released:]
        return passes_quote

    def _quote(self, text: str) -> str:
        """Return the quotation mark that opens at the end of a text; "" if none does."""
        line = (self._line + text).rpartition("\n")[2]
        return line[-1:] if line[-1:] in _QUOTES and line.count(line[-1:]) % 2 else ""

    def _enter(self, marker: str, rest: str, parts: list[tuple[Kind, str]]) -> None:
        self.kind = self.markers[marker]
        self._fresh = self._drops_space = self._begins = True
        self._line = ""
        if marker in self._kept:
            parts.append((self.kind, marker))
            self._fresh = False
        self._held = rest
