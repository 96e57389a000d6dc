"""Messages to prompt tokens, so that nothing in a message's content can become a control token.

The tokeniser cannot tell the template's text from the content. So the template is rendered twice: with the content, and
with stand-ins for every character of the content that control texts are
made of. Control texts in the second are the template's own. Mostly the first has the same ones in the same
places, and then it is tokenised whole, as the model's makers do. Otherwise the text between the template's
own control texts is tokenised without control tokens.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from localspec.algorithm.protocols import Vocabulary
from localspec.chat.messages import Message, are_continued
from localspec.chat.template import ChatTemplate

_CONTROL_LIKE = re.compile(r"^<[|｜]|[|｜]>$")
_CUT = "\U0010fffc"  # stands behind the beginning of a reply: a private character, and the last of them in its prompt
_C_SPACE = " \t\n\v\f\r"  # what llama.cpp strips beside control tokens that ask for it

Span = tuple[int, int]  # start and end of a control text


class ControlTexts(dict[str, int]):
    """Control texts with their tokens, the longest first: the order in which they take their place in a text."""

    def __init__(self, texts: Mapping[str, int]) -> None:
        super().__init__(sorted(texts.items(), key=lambda pair: -len(pair[0])))
        self._order = {text: n for n, text in enumerate(self)}
        self._lengths: dict[str, set[int]] = {}  # by first character
        for text in self:
            self._lengths.setdefault(text[0], set()).add(len(text))
        self._first = re.compile("[" + re.escape("".join(self._lengths)) + "]") if self else None

    def spans(self, text: str) -> list[Span]:
        """The places of control texts, in order, found as llama.cpp does: each from the left."""
        present = tuple(self._present(text))
        if together := _together(present):
            return [match.span() for match in together.finditer(text)]
        spans: list[Span] = []
        for control in present:
            for begin, end in _between(spans, len(text)):
                while (start := text.find(control, begin, end)) >= 0:
                    begin = start + len(control)
                    spans.append((start, begin))
            spans.sort()
        return spans

    def _present(self, text: str) -> list[str]:
        """Those that occur in a text: vocabularies have thousands, a prompt holds a few."""
        found = set[str]()
        for match in self._first.finditer(text) if self._first else ():
            start = match.start()
            found.update(
                part for n in self._lengths[text[start]] if (part := text[start : start + n]) in self._order
            )
        return sorted(found, key=self._order.__getitem__)


@lru_cache(16)
def _together(controls: tuple[str, ...]) -> re.Pattern[str] | None:
    """Finds these texts in one pass; None where the end of one may begin another, and their order counts."""
    ends = {text[n:] for text in controls for n in range(1, len(text))}
    overlap = any(text[:n] in ends for text in controls for n in range(1, len(text)))
    return re.compile("|".join(map(re.escape, controls)) or "(?!)") if not overlap else None


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered conversation."""

    tokens: list[int]
    text: str


def encode(
    vocabulary: Vocabulary,
    template: ChatTemplate,
    messages: Sequence[Message],
    *,
    think: bool | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Prompt:
    """The prompt for a reply to these messages, with bos once where the model wants it; errors as in render.

    Messages that `are_continued` end with the beginning of the reply, and so does the prompt. `arguments` come from
    whoever runs the model and are trusted like the template itself.
    """

    def rendered(given: Sequence[Message], opens_reply: bool) -> str:
        return template.render(given, think=think, arguments=arguments, add_generation_prompt=opens_reply)

    def render(given: Sequence[Message]) -> str:
        if not are_continued(given):
            return rendered(given, True)
        begun = given[-1].content
        text, marked, _ = rendered((*given[:-1], replace(given[-1], content=begun + _CUT)), False).rpartition(
            _CUT
        )
        # A template that leaves out the assistant's last message gets the question alone.
        return text if marked else rendered(given[:-1], True) + begun

    controls = guarded_texts(vocabulary)
    own, text = _told_apart(render, messages, template, controls)
    if controls.spans(text) == own:
        tokens = vocabulary.tokenize(text, parse_special=True)
    else:
        tokens = tokens_around(vocabulary, controls, text, own)
    if vocabulary.add_bos and vocabulary.bos is not None and tokens[:1] != [vocabulary.bos]:
        tokens.insert(0, vocabulary.bos)
    return Prompt(tokens, text)


def opening_of(prompt: Prompt, closed: str, vocabulary: Vocabulary) -> int:
    """The tokens before a prompt opens the reply: those that it shares with the `closed` text, which has no opening.

    Many templates write a past turn in another way than its opening.
    """
    pairs = enumerate(zip(prompt.text, closed, strict=False))
    parting = next((i for i, (ours, theirs) in pairs if ours != theirs), len(closed))
    count, size = len(prompt.tokens), len(prompt.text[parting:].encode())
    while count and size > 0:
        count -= 1
        token = prompt.tokens[count]
        size -= len(vocabulary.piece(token) or vocabulary.text(token).encode())
    return count


def guarded_texts(vocabulary: Vocabulary) -> ControlTexts:
    """Texts that only the template may turn into control tokens.

    User-defined tokens ("<think>", runs of line ends), which llama.cpp finds in plain text as well, are ordinary text.
    Those that look like control tokens are the exception: some files declare the tokens around turns as user-defined.
    """
    try:
        return _guarded_texts[vocabulary]
    except KeyError:
        guarded = {
            text: token
            for text, token in vocabulary.control_texts().items()
            if text
            and (
                vocabulary.is_control(token)
                or _CONTROL_LIKE.search(text)
                or vocabulary.tokenize(text, parse_special=False) != [token]
            )
        }
        return _guarded_texts.setdefault(vocabulary, ControlTexts(guarded))


_guarded_texts: WeakKeyDictionary[Vocabulary, ControlTexts] = WeakKeyDictionary()


def _told_apart(
    render: Callable[[Sequence[Message]], str],
    messages: Sequence[Message],
    template: ChatTemplate,
    controls: ControlTexts,
) -> tuple[list[Span], str]:
    """The places of the template's own control texts in the prompt, and the prompt."""
    plain = render(messages)
    taken = [plain, *(text for m in messages for text in m.texts)]
    strict = Placeholder("".join(controls), taken)
    hidden = strict.unescaped(render(strict.encode(messages)))
    own = controls.spans(hidden)
    if strict.decode(hidden) == plain:
        return own, plain
    # The template looks into the content (for "/no_think", say) and must see more of it: all but the first
    # and last characters of control texts, and in what it looks for these too, unless it touches one.
    contents = taken[1:]
    looked_for = [text for text in template.literals if text and any(text in content for content in contents)]
    harmless = [text for text in looked_for if not any(_touch(text, control) for control in controls)]
    lenient = Placeholder((c for text in controls for c in (text[0], text[-1])), taken, harmless)
    seen = lenient.unescaped(render(lenient.encode(messages)))
    more = controls.spans(seen)
    added = Counter(seen[a:b] for a, b in more) - Counter(hidden[a:b] for a, b in own)
    if lenient.decode(seen) == plain and all(text in template.source for text in added):
        return more, plain
    return own, strict.decode(hidden)


def _touch(text: str, control: str) -> bool:
    """Whether a text holds a control text or could be a part of one."""
    if text in control or control in text:
        return True
    shorter = min(len(text), len(control))
    return any(text.endswith(control[:n]) or text.startswith(control[-n:]) for n in range(1, shorter))


def tokens_around(
    vocabulary: Vocabulary, controls: ControlTexts, text: str, own: Sequence[Span]
) -> list[int]:
    """Control tokens at the template's own control texts, plain text in between."""
    tokens: list[int] = []
    ends = [*own, (len(text), len(text))]
    for (begin, end), following, before in zip(_between(own, len(text)), ends, [None, *own], strict=True):
        fragment = text[begin:end]
        if before and _strips(vocabulary, text[slice(*before)], right=True):
            fragment = fragment.lstrip(_C_SPACE)
        control = text[slice(*following)]
        if control and _strips(vocabulary, control, right=False):
            fragment = fragment.rstrip(_C_SPACE)
        if fragment:
            tokens += _plain_tokens(vocabulary, controls, fragment)
        if control:
            tokens.append(controls[control])
    return tokens


def _plain_tokens(vocabulary: Vocabulary, controls: ControlTexts, text: str) -> list[int]:
    """Tokens of a text without guarded ones: a control text that llama.cpp finds in plain text is cut in two."""
    tokens = vocabulary.tokenize(text, parse_special=False)
    spans = controls.spans(text)
    # Without a span the token stands for something else, as "<unk>" does for characters without one.
    if len(text) < 2 or not spans or set(controls.values()).isdisjoint(tokens):
        return tokens
    edges = [0, *(start + 1 for start, _ in spans), len(text)]
    return [token for a, b in pairwise(edges) for token in _plain_tokens(vocabulary, controls, text[a:b])]


def _between(spans: Sequence[Span], length: int) -> list[Span]:
    """The stretches before, between and after spans, empty ones too."""
    begins = [0, *(end for _, end in spans)]
    ends = [*(start for start, _ in spans), length]
    return list(zip(begins, ends, strict=True))


def _strips(vocabulary: Vocabulary, control: str, *, right: bool) -> bool:
    """Whether llama.cpp drops the space beside a control text, as some models were trained."""
    spaced = control + " " if right else " " + control
    return len(vocabulary.tokenize(spaced, parse_special=True)) == 1


# Private use planes: no vocabulary and no template gives these characters a meaning.
_FIRST, _LAST = 0xF0000, ord(_CUT)
_PRIVATE = re.compile(f"[{chr(_FIRST)}-{chr(_LAST)}]")


class Placeholder:
    """Replaces characters one for one, and back; `open_texts` stay as they are."""

    def __init__(
        self, characters: Iterable[str], taken: Iterable[str], open_texts: Iterable[str] = ()
    ) -> None:
        """`taken` are texts whose own private characters must not serve as stand-ins."""
        stand_ins = _unused(taken)
        pairs = [(character, next(stand_ins)) for character in sorted(set(characters))]
        own, theirs = (np.array([ord(pair[n]) for pair in pairs], np.uint32) for n in (0, 1))
        self._to, self._from = (own, theirs), (theirs, own)  # sorted
        longest_first = sorted(open_texts, key=len, reverse=True)
        self._open = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def encode(self, messages: Sequence[Message]) -> list[Message]:
        """The messages with stand-ins in all their texts."""
        texts = dict.fromkeys(text for message in messages for text in message.texts)
        whole, done, encoded = _swapped("".join(texts), *self._to), 0, dict[str, str]()
        for text in texts:
            hidden, done = whole[done : done + len(text)], done + len(text)
            for match in self._open.finditer(text) if self._open else ():
                hidden = hidden[: match.start()] + match.group() + hidden[match.end() :]
            encoded[text] = hidden
        return [message.with_texts(encoded.__getitem__) for message in messages]

    def unescaped(self, text: str) -> str:
        """A text with the stand-ins as they are where a template wrote JSON in ASCII."""
        if "\\ud" in text:
            for stand_in in map(chr, self._from[0].tolist()):
                text = text.replace(json.dumps(stand_in)[1:-1], stand_in)
        return text

    def decode(self, text: str) -> str:
        """The text with stand-ins turned back; its length stays."""
        return _swapped(text, *self._from)


def _swapped(text: str, before: np.ndarray, after: np.ndarray) -> str:
    """The text with every character of `before`, which are sorted, replaced by the one of `after`."""
    if not len(before):
        return text
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    at = np.searchsorted(before, codes).clip(max=len(before) - 1)
    found = np.where(before[at] == codes, after[at], codes)
    return found.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")


def _unused(taken: Iterable[str]) -> Iterator[str]:
    used = {character for text in taken for character in _PRIVATE.findall(text)}
    return (chr(code) for code in range(_FIRST, _LAST) if chr(code) not in used)
