"""Reasoning told apart from the answer: how models mark it, and a splitter for streams."""

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

from localspec.chat.patterns import Patterns
from localspec.events import Kind

R, A = Kind.REASONING, Kind.ANSWER
_CALLING = "call"  # stands for any header that names a recipient
_LONGEST_HEADER = 256  # characters


@dataclass(frozen=True, slots=True)
class ThinkingStyle:
    """How a family of models marks its reasoning.

    `markers` are removed from the text; each says what follows it. Where an answer might quote them
    (`quotable`), they count only in their place: where a part begins, and the closing one while reasoning.
    """

    name: str
    signs: tuple[str, ...]  # texts in a chat template that give the style away
    markers: Mapping[str, Kind]
    quotable: bool = False
    opened: bool = False  # the prompt ends inside the reasoning
    channels: bool = False  # parts have headers, of which the markers hold the first word


def _tags(opening: str, closing: str) -> ThinkingStyle:
    return ThinkingStyle(opening, (opening, closing), {opening: R, closing: A}, quotable=True)


THINK = _tags("<think>", "</think>")

STYLES = (  # the first whose sign stands in the template counts, so the common <think> is last
    ThinkingStyle(
        "harmony",  # gpt-oss
        ("<|channel|>analysis",),
        {
            "<|channel|>analysis<|message|>": R,
            "<|channel|>commentary<|message|>": A,
            "<|channel|>final<|message|>": A,
            f"<|channel|>{_CALLING}<|message|>": Kind.TOOL_CALL,
            "<|start|>assistant": A,
            "<|end|>": A,
        },
        channels=True,
    ),
    ThinkingStyle("gemma 4", ("<|channel>thought",), {"<|channel>thought\n": R, "<channel|>": A}),
    ThinkingStyle(
        "cohere",
        ("<|START_THINKING|>",),
        {
            "<|START_THINKING|>": R,
            "<|END_THINKING|>": A,
            "<|START_RESPONSE|>": A,
            "<|END_RESPONSE|>": A,
            "<|START_TEXT|>": A,
            "<|END_TEXT|>": A,
        },
    ),
    ThinkingStyle(
        "kimi k3",
        ("<|open|>",),
        {
            "<|open|>think<|sep|>": R,
            "<|close|>think<|sep|>": A,
            "<|open|>response<|sep|>": A,
            "<|close|>response<|sep|>": A,
            "<|close|>message<|sep|>": A,
        },
    ),
    ThinkingStyle(
        "solar",
        ("<|think|><|end|>",),
        {"<|think|>": R, "<|end|>": A, "<|begin|>assistant": A, "<|content|>": A},
    ),
    ThinkingStyle(
        "muse",
        (" to=self<|message|>",),
        {
            " to=self<|message|>": R,
            " to=user<|message|>": A,
            "<|start|>assistant": A,
            "<|message|>": A,
            "<|eom|>": A,
        },
    ),
    ThinkingStyle("apertus", ("<|inner_prefix|>",), {"<|inner_prefix|>": R, "<|inner_suffix|>": A}),
    ThinkingStyle(
        "apriel",
        ("[BEGIN FINAL RESPONSE]",),
        {"Here are my reasoning steps:\n": R, "[BEGIN FINAL RESPONSE]": A, "[END FINAL RESPONSE]": A},
    ),
    _tags("[THINK]", "[/THINK]"),
    _tags("<seed:think>", "</seed:think>"),
    _tags("<mm:think>", "</mm:think>"),
    ThinkingStyle(
        "hunyuan 3", ("<think{}>",), {"<think:opensource>": R, "</think:opensource>": A}, quotable=True
    ),
    ThinkingStyle(
        "granite 3",
        ("<response></response>",),
        {"<think>": R, "</think>": A, "<response>": A, "</response>": A},
    ),
    THINK,
)


def style_of(source: str) -> ThinkingStyle | None:
    """How the models of a chat template mark reasoning; None where the template shows no sign of any."""
    return next((style for style in STYLES if any(sign in source for sign in style.signs)), None)


def after_prompt(style: ThinkingStyle, prompt: str) -> ThinkingStyle:
    """The style, `opened` if the prompt's last marker begins reasoning and only space follows it."""
    # One marker may be the end of another: the longer one counts.
    present = sorted((marker for marker in style.markers if marker in prompt), key=len)
    ends = {prompt.rfind(marker) + len(marker): style.markers[marker] for marker in present}
    last = max(ends, default=0)
    return replace(style, opened=ends.get(last) is R and not prompt[last:].strip())


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
        if start < 0 or "<|message|>" in text[start:] or len(text) - start > _LONGEST_HEADER:
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
        return f"<|channel|>{_CALLING if called else channel}<|message|>"


class Thinking:
    """Splits a stream of text into reasoning and answer, however it is cut into pieces.

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
        """Go past one marker; False when what is left must wait for more text."""
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
        """An answer in a channel of its own stands apart from one before it."""
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


_SWITCHES = ("enable_thinking", "thinking", "reasoning")


def thinking_variables(think: bool, names: AbstractSet[str], literals: AbstractSet[str]) -> dict[str, Any]:
    """The variables to set, of those that the template mentions by `names`; `literals` are the texts in it.

    Templates that know only an effort get the least effort that they have a name for.
    """
    variables: dict[str, Any] = {name: think for name in _SWITCHES if name in names}
    if "thinking_mode" in names:
        variables["thinking_mode"] = "enabled" if think else "disabled"
    if "thinking_budget" in names and not think:
        variables["thinking_budget"] = 0
    if "reasoning_effort" in names and not variables:
        variables |= _effort(think, literals)
    return variables


def _effort(think: bool, literals: AbstractSet[str]) -> dict[str, Any]:
    if think:
        return {"reasoning_effort": "high"} if "no_think" in literals else {}
    least = next((word for word in ("no_think", "none", "minimal") if word in literals), "low")
    return {"reasoning_effort": least}
