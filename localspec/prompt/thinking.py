"""The markers that models put around their reasoning."""

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

from localspec.events import Kind

R, A = Kind.REASONING, Kind.ANSWER
CALLING = "call"  # the channel that `text.Headers` writes into the shortened header of a call


@dataclass(frozen=True, slots=True)
class ThinkingStyle:
    """The markers around reasoning. Each marker begins a part of its kind, and is removed from the text.

    `quotable`: whether opening markers count only at the start of a part, because an answer might quote them.
    """

    name: str
    signs: tuple[str, ...]  # texts in a chat template that show the style
    markers: Mapping[str, Kind]
    quotable: bool = False
    opened: bool = False  # whether the prompt ends inside the reasoning
    closed: bool = False  # whether the prompt ends after empty reasoning, so that no reasoning may begin
    channels: bool = False  # whether parts have headers, which `text.Headers` shortens to the markers
    ending: str = ""  # the text between reasoning and answer; "": only the first closing marker


def _style(
    name: str, sign: str, opening: str, closing: list[str], *, quotable: bool = False
) -> ThinkingStyle:
    return ThinkingStyle(name, (sign,), {opening: R, **dict.fromkeys(closing, A)}, quotable)


def _tags(opening: str, closing: str) -> ThinkingStyle:
    markers = {opening: R, closing: A}
    return ThinkingStyle(opening, (opening, closing), markers, quotable=True, ending=f"\n{closing}\n\n")


THINK = _tags("<think>", "</think>")
_BEGIN = "Here are my reasoning steps:\n"
_HARMONY = {  # the markers of gpt-oss
    "<|channel|>analysis<|message|>": R,
    "<|channel|>commentary<|message|>": A,
    "<|channel|>final<|message|>": A,
    f"<|channel|>{CALLING}<|message|>": Kind.TOOL_CALL,
    "<|start|>assistant": A,
    "<|end|>": A,
}
# fmt: off
STYLES = (  # the first style with a sign in the template is used, so <think>, which many share, is last
    ThinkingStyle("harmony", ("<|channel|>analysis",), _HARMONY, channels=True,
                  ending="<|end|><|start|>assistant<|channel|>final<|message|>"),
    _style("gemma 4", "<|channel>thought", "<|channel>thought\n", ["<channel|>"]),
    _style("cohere", "<|START_THINKING|>", "<|START_THINKING|>", [
        "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"]),
    _style("kimi k3", "<|open|>", "<|open|>think<|sep|>", [
        "<|close|>think<|sep|>", "<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"]),
    _style("solar", "<|think|><|end|>", "<|think|>", ["<|end|>", "<|begin|>assistant", "<|content|>"]),
    _style("muse", " to=self<|message|>", " to=self<|message|>", [
        " to=user<|message|>", "<|start|>assistant", "<|message|>", "<|eom|>"]),
    _style("apertus", "<|inner_prefix|>", "<|inner_prefix|>", ["<|inner_suffix|>"]),
    _style("apriel", "[BEGIN FINAL RESPONSE]", _BEGIN, ["[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]"]),
    ThinkingStyle("functionary", (">>>${recipient}",), {"all\n": A}, quotable=True),  # prompts end in ">>>"
    _tags("[THINK]", "[/THINK]"),
    _tags("<seed:think>", "</seed:think>"),
    _tags("<mm:think>", "</mm:think>"),
    _style("hunyuan 3", "<think{}>", "<think:opensource>", ["</think:opensource>"], quotable=True),
    _style("granite 3", "<response></response>", "<think>", ["</think>", "<response>", "</response>"]),
    THINK,
)
# fmt: on


def style_of(source: str) -> ThinkingStyle | None:
    """Return the first style that has one of its signs in the template, or None."""
    return next((style for style in STYLES if any(sign in source for sign in style.signs)), None)


def after_prompt(style: ThinkingStyle, prompt: str) -> ThinkingStyle:
    """Return the style with `opened` and `closed` set by the end of the prompt; white space does not count."""
    # If one marker is the end of another, both end at the same place; then the longer one counts.
    present = sorted((marker for marker in style.markers if marker in prompt), key=len)
    ends = {prompt.rfind(marker) + len(marker): style.markers[marker] for marker in present}
    last = max(ends, default=0)
    opening, closing = (
        "|".join(re.escape(m) for m in present if style.markers[m] is kind) for kind in (R, A)
    )
    empty = opening and closing and re.search(rf"(?:{opening})\s*(?:{closing})\s*\Z", prompt[-1000:])
    return replace(style, opened=ends.get(last) is R and not prompt[last:].strip(), closed=bool(empty))


def thinking_variables(
    think: bool | int, names: AbstractSet[str], literals: AbstractSet[str]
) -> dict[str, Any]:
    """Return variables that switch reasoning on or off; `names`, `literals`: the template's variables and literals."""
    switches, on = ("enable_thinking", "thinking", "reasoning"), think is not False
    variables: dict[str, Any] = {name: on for name in switches if name in names}
    if "thinking_mode" in names:
        variables["thinking_mode"] = "enabled" if on else "disabled"
    if "thinking_budget" in names and think is not True:
        variables["thinking_budget"] = int(think)
    if "reasoning_effort" in names and not variables:
        least = next((word for word in ("no_think", "none", "minimal") if word in literals), "low")
        if not on or "no_think" in literals:
            variables["reasoning_effort"] = "high" if on else least
    return variables
