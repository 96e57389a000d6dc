"""What `think=` means in the variables that chat templates know."""

from collections.abc import Set as AbstractSet
from typing import Any

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
