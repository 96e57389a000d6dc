"""Turn messages into prompt tokens; nothing in a message's content can become a special token.

The tokeniser cannot distinguish the template's text from the content. So the template is rendered twice:

    plain    <s>user: say </s> please</s>     with the content
    hidden   <s>user: .a. .... ..ea.e</s>     with placeholders (.) for every character of special-token texts
             ^^^                     ^^^^     special tokens here are the template's own

If both have the same special tokens at the same positions, `plain` is tokenised as a whole. If not, as here, the text
between the template's own special tokens is tokenised as plain text. A template that searches the content (for
"/no_think") may render the placeholders differently. Then placeholders hide only the first and last characters of
special-token texts, unless that adds a special token that the template's source lacks.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

from localspec.algorithm.images import ImageRow
from localspec.algorithm.protocols import Vocabulary
from localspec.errors import BadSetting, BadTemplate
from localspec.prompt.images import split_at_marks
from localspec.prompt.messages import Message, Messages, are_continued
from localspec.prompt.template import ChatTemplate

_CONTROL_LIKE = re.compile(r"^<[|｜]|[|｜]>$")
_CUT = "\U0010fffc"  # a private-use character that marks the end of the prompt, if a reply is continued
# Four beginnings of a text. No token matches two of them, even if it begins in the white space before the text.
_UNLIKE = ("b", "\u2063", " a", "\n\na")
_C_SPACE = " \t\n\v\f\r"  # white space that llama.cpp removes beside some special tokens

Span = tuple[int, int]  # start and end of a special token's text


class SpecialTokens(dict[str, int]):
    """Special tokens by their text, the longest first, because llama.cpp searches in this order."""

    def __init__(self, texts: Mapping[str, int]) -> None:
        super().__init__(sorted(texts.items(), key=lambda pair: -len(pair[0])))
        self._lengths: dict[str, set[int]] = {}  # lengths of the tokens' texts, by first character
        for text in self:
            self._lengths.setdefault(text[0], set()).add(len(text))
        self._first = re.compile("[" + re.escape("".join(self._lengths)) + "]") if self else None

    def spans(self, text: str) -> list[Span]:
        """Return the spans of special tokens that llama.cpp finds: the longest token first, from the left."""
        present, spans = set[str](), list[Span]()  # only the tokens in `present` occur in the text
        for match in self._first.finditer(text) if self._first else ():
            start = match.start()
            parts = (text[start : start + length] for length in self._lengths[text[start]])
            present.update(part for part in parts if part in self)
        for control in filter(present.__contains__, self):
            for begin, end in _between(spans, len(text)):
                while (start := text.find(control, begin, end)) >= 0:
                    begin = start + len(control)
                    spans.append((start, begin))
            spans.sort()
        return spans


@dataclass(frozen=True, slots=True)
class Prompt:
    tokens: list[int]
    text: str
    notice: str = ""  # a notice about changes that make the history fit the template


def encode(
    vocabulary: Vocabulary,
    template: ChatTemplate,
    messages: Sequence[Message],
    *,
    think: bool | int | None = None,
    arguments: Mapping[str, Any] | None = None,
    images: Mapping[str, Sequence[int]] | None = None,
) -> Prompt:
    """Render and tokenise messages, with one bos token if the model expects it. Raises BadTemplate.

    If the reply continues the last message, the prompt ends with that message. `arguments`: template variables.
    `images`: the tokens of each image, by the mark at its place.
    """
    fitted = template.fitted(messages, arguments or {})
    rendered = partial(template.render, think=think, arguments=arguments, fit=False)

    def render(given: Sequence[Message]) -> str:
        if not are_continued(given):
            return rendered(given)
        *before, last = given
        marked_messages = [*before, replace(last, content=last.content + _CUT)]
        text, marked, _ = rendered(marked_messages, add_generation_prompt=False).rpartition(_CUT)
        # Append the assistant's last message if the template leaves it out.
        return text if marked else rendered(before) + last.content

    controls = special_token_texts(vocabulary)
    try:
        own, text = _distinct(render, fitted.messages, template, controls)
    except BadTemplate:  # the template takes each part of the history, but not the whole
        fitted = template.fitted(messages, arguments or {}, usual=True)
        own, text = _distinct(render, fitted.messages, template, controls)
    tokens, place = list[int](), 0
    for number, part in enumerate(parts := split_at_marks(text)):
        if number % 2:
            tokens += (images or {})[part]
        elif part:
            spans = [(a - place, b - place) for a, b in own if place <= a and b <= place + len(part)]
            if controls.spans(part) == spans:
                tokens += vocabulary.tokenize(part, parse_special=True)
            else:
                tokens += tokens_around(vocabulary, controls, part, spans)
        place += len(part)
    if images and sorted(parts[1::2]) != sorted(images):
        what = "the chat template leaves an image out or repeats it"
        raise BadTemplate(what, hint="attach the images to messages of the user")
    if tokens and isinstance(tokens[-1], ImageRow):
        raise BadTemplate("the prompt ends with an image", hint="add a text after the image")
    if vocabulary.add_bos and vocabulary.bos is not None and tokens[:1] != [vocabulary.bos]:
        tokens.insert(0, vocabulary.bos)
    return Prompt(tokens, with_shown_images(text, images or {}, vocabulary), fitted.notice)


def with_shown_images(text: str, images: Mapping[str, Sequence[int]], vocabulary: Vocabulary) -> str:
    """Replace the mark of each image in a rendered text by the tokens before and after the image, as text."""
    for mark, tokens in images.items():
        words = (t for t in tokens if not isinstance(t, ImageRow))
        pieces = (vocabulary.piece(token) or vocabulary.text(token).encode() for token in words)
        text = text.replace(mark, b"".join(pieces).decode(errors="replace"))
    return text


def tokens_of(text: str | Sequence[int | str] | None, vocabulary: Vocabulary) -> list[int]:
    """Return the tokens of a raw text, or of a list of token ids and texts. Raises BadSetting."""
    tokens: list[int] = []
    if not isinstance(text, str | list | tuple):
        raise BadSetting(f"the text is of type {type(text).__name__}", hint="give text or a list of tokens")
    for number, part in enumerate([text] if isinstance(text, str) else text):
        if isinstance(part, str):
            tokens += vocabulary.tokenize(part, parse_special=True, add_special=not number)
        elif type(part) is int and 0 <= part < vocabulary.size:
            tokens.append(part)
        else:
            raise BadSetting(f"{part!r} is not a token id", hint=f"use ids from 0 to {vocabulary.size - 1}")
    if isinstance(text, str) and vocabulary.bos is not None and tokens[:2] == [vocabulary.bos] * 2:
        del tokens[0]  # the text begins with a bos token already
    if not tokens:
        raise BadSetting("the text is empty", hint="give at least one character to continue")
    return tokens


def following_messages(messages: Sequence[Message], typed: str = "") -> tuple[Messages, ...]:
    """Return several possible next messages: results of the last calls, else a question that begins with `typed`."""
    calls = messages[-1].tool_calls if messages else ()
    results = (tuple(Message("tool", text, tool_call_id=call.id) for call in calls) for text in _UNLIKE)
    return tuple(results) if calls else tuple((Message("user", typed + text),) for text in _UNLIKE)


def opening_of(prompt: Prompt, closed: str, vocabulary: Vocabulary) -> int:
    """Return the number of tokens in the common prefix of a prompt and `closed`, another rendered text."""
    pairs = enumerate(zip(prompt.text, closed, strict=False))
    branch_point = next((i for i, (ours, theirs) in pairs if ours != theirs), len(closed))
    count, size = len(prompt.tokens), len(prompt.text[branch_point:].encode())
    while count and size > 0:
        count -= 1
        token = prompt.tokens[count]
        if not isinstance(token, ImageRow):
            size -= len(vocabulary.piece(token) or vocabulary.text(token).encode())
    return count


def special_token_texts(vocabulary: Vocabulary) -> SpecialTokens:
    """Return the special tokens that only the template may write.

    Messages may contain user-defined tokens such as "<think>", because llama.cpp finds them in plain text too. But only
    the template may write a user-defined token that looks like a control token, because some files mislabel these.
    """
    if vocabulary not in _special_token_texts:
        guarded = {
            text: token
            for text, token in vocabulary.special_tokens().items()
            if text
            and (
                vocabulary.is_special(token)
                or _CONTROL_LIKE.search(text)
                or vocabulary.tokenize(text, parse_special=False) != [token]
            )
        }
        _special_token_texts[vocabulary] = SpecialTokens(guarded)
    return _special_token_texts[vocabulary]


_special_token_texts: WeakKeyDictionary[Vocabulary, SpecialTokens] = WeakKeyDictionary()


def _distinct(
    render: Callable[[Sequence[Message]], str],
    messages: Sequence[Message],
    template: ChatTemplate,
    controls: SpecialTokens,
) -> tuple[list[Span], str]:
    """Return the spans of special tokens that the template wrote, and the rendered text."""
    plain = render(messages)
    taken = [plain, *(text for m in messages for text in m.texts)]
    hidden, decoded = Placeholders("".join(controls), taken).render(render, messages)
    own = controls.spans(hidden)
    if decoded == plain:
        return own, plain

    def touches(text: str, control: str) -> bool:
        """Return whether a text and a special token overlap, or one contains the other."""
        ends = range(1, min(len(text), len(control)))
        overlap = any(text.endswith(control[:n]) or text.startswith(control[-n:]) for n in ends)
        return overlap or text in control or control in text

    # Keep literals of the template, such as "/no_think", because it may search for them in messages.
    # Replace a literal that overlaps a special token all the same.
    searched = [text for text in template.literals if text and any(text in content for content in taken[1:])]
    harmless = [text for text in searched if not any(touches(text, control) for control in controls)]
    ends = (character for text in controls for character in (text[0], text[-1]))
    seen, seen_decoded = Placeholders(ends, taken, harmless).render(render, messages)
    spans = controls.spans(seen)
    added = Counter(seen[a:b] for a, b in spans) - Counter(hidden[a:b] for a, b in own)
    if seen_decoded == plain and all(text in template.source for text in added):
        return spans, plain
    return own, decoded


def tokens_around(
    vocabulary: Vocabulary, controls: SpecialTokens, text: str, own: Sequence[Span]
) -> list[int]:
    """Tokenise the `own` spans as special tokens, and the text between them as plain text."""
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


def _plain_tokens(vocabulary: Vocabulary, controls: SpecialTokens, text: str) -> list[int]:
    """Tokenise plain text; split the text of each special token in two, to hide it from llama.cpp."""
    tokens = vocabulary.tokenize(text, parse_special=False)
    spans = controls.spans(text)
    # `tokens` may have a special token that `text` lacks, such as "<unk>" for an unknown character.
    if len(text) < 2 or not spans or set(controls.values()).isdisjoint(tokens):
        return tokens
    edges = [0, *(start + 1 for start, _ in spans), len(text)]
    return [token for a, b in pairwise(edges) for token in _plain_tokens(vocabulary, controls, text[a:b])]


def _between(spans: Sequence[Span], length: int) -> list[Span]:
    begins = [0, *(end for _, end in spans)]
    ends = [*(start for start, _ in spans), length]
    return list(zip(begins, ends, strict=True))


def _strips(vocabulary: Vocabulary, control: str, *, right: bool) -> bool:
    """Return whether llama.cpp drops the space after a special token; with `right` False, the space before it."""
    spaced = control + " " if right else " " + control
    return len(vocabulary.tokenize(spaced, parse_special=True)) == 1


# Placeholders are private-use characters, because these have no meaning in vocabularies and templates.
_FIRST, _LAST = 0xF0000, ord(_CUT)
_PRIVATE = re.compile(f"[{chr(_FIRST)}-{chr(_LAST)}]")


class Placeholders:
    """Replaces each of `characters` in messages by a private-use character. `open_texts` stay as they are."""

    def __init__(
        self, characters: Iterable[str], taken: Iterable[str], open_texts: Iterable[str] = ()
    ) -> None:
        """`taken`: texts whose private-use characters are not used as placeholders."""
        used = {character for text in taken for character in _PRIVATE.findall(text)}
        free = (chr(code) for code in range(_FIRST, _LAST) if chr(code) not in used)
        self._hide = {ord(character): next(free) for character in sorted(set(characters))}
        self._show = {ord(placeholder): chr(code) for code, placeholder in self._hide.items()}
        longest_first = sorted(open_texts, key=len, reverse=True)
        self._open = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def render(
        self, render: Callable[[Sequence[Message]], str], messages: Sequence[Message]
    ) -> tuple[str, str]:
        """Return the prompt with placeholders, and this prompt with the original characters in their places."""
        text = render([message.with_texts(self._hidden) for message in messages])
        if "\\ud" in text:  # the template wrote JSON with ASCII escapes
            for placeholder in self._hide.values():
                text = text.replace(json.dumps(placeholder)[1:-1], placeholder)
        return text, text.translate(self._show)

    def _hidden(self, text: str) -> str:
        hidden = text.translate(self._hide)
        for match in self._open.finditer(text):
            hidden = hidden[: match.start()] + match.group() + hidden[match.end() :]
        return hidden
