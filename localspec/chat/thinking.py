"""How models mark their reasoning."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

from localspec.events import Kind

R, A = Kind.REASONING, Kind.ANSWER
CALLING = "call"  # stands for any header that names a recipient


@dataclass(frozen=True, slots=True)
class ThinkingStyle:
    """How a family of models marks its reasoning.

    `markers` are removed from the text; each starts a part. If an answer might quote them (`quotable`), they count only
    at the start of a part, and the closing one during reasoning.
    """

    name: str
    signs: tuple[str, ...]  # texts in a chat template that give the style away
    markers: Mapping[str, Kind]
    quotable: bool = False
    opened: bool = False  # the prompt ends inside the reasoning
    channels: bool = False  # parts have headers; the markers hold their first word


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
            f"<|channel|>{CALLING}<|message|>": Kind.TOOL_CALL,
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
    ThinkingStyle("functionary", (">>>${recipient}",), {"all\n": A}, quotable=True),  # a prompt ends in ">>>"
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
    """How a chat template's models mark reasoning; None if the template shows no mark."""
    return next((style for style in STYLES if any(sign in source for sign in style.signs)), None)


def after_prompt(style: ThinkingStyle, prompt: str) -> ThinkingStyle:
    """The style, `opened` if the prompt's last marker begins reasoning and only space follows it."""
    # One marker may be the end of another: the longer one counts.
    present = sorted((marker for marker in style.markers if marker in prompt), key=len)
    ends = {prompt.rfind(marker) + len(marker): style.markers[marker] for marker in present}
    last = max(ends, default=0)
    return replace(style, opened=ends.get(last) is R and not prompt[last:].strip())


_SWITCHES = ("enable_thinking", "thinking", "reasoning")


def thinking_variables(think: bool, names: AbstractSet[str], literals: AbstractSet[str]) -> dict[str, Any]:
    """The variables to set, from the template's `names`; `literals` are the texts in it.

    A template that knows only an effort gets its least effort.
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
