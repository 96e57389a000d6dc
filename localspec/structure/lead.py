"""What a thinking model writes before its answer, as rules of Lark's: the grammar waits until it is over."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from localspec.structure.grammar import escaped, literal

_ANYTHING = r"(.|\n)*"


@dataclass(frozen=True, slots=True)
class Marks:
    """How a model tells its reasoning from its answer."""

    opening: Collection[str]  # texts that begin reasoning
    closing: Collection[str]  # texts that begin the answer, or a part of it
    opened: bool  # the prompt ends inside the reasoning
    framing: bool  # closing marks may also stand before and after the answer


def lead_of(marks: Marks, names: Mapping[str, int]) -> str:
    """Rules that define `lead` and `tail`, what may stand before and after an answer.

    Reasoning comes between its marks, any number of times; after it, closing marks may follow one another,
    and up to two line ends. `names`: the texts of control tokens, which are no text to a grammar.
    """
    thoughts = " | ".join(f"thought_{n}" for n in range(len(marks.closing)))
    framing = "frame*" if marks.framing else ""
    rules = [
        f"lead: {'thought ' if marks.opened else framing} (opening thought)*",
        f"opening: {' | '.join(literal(mark.strip(), names) for mark in marks.opening)}",
        f'thought: ({thoughts}) {framing} ("\\n" | "\\n\\n")?',
        *(thought_rule(n, mark, names) for n, mark in enumerate(marks.closing)),
        f"frame: {' | '.join(literal(mark.strip(), names) for mark in marks.closing)}",
        f"tail: {framing}",
    ]
    return "\n".join(rules) + "\n"


def thought_rule(number: int, mark: str, names: Mapping[str, int]) -> str:
    """Reasoning up to a mark: no control token is part of a text; other marks count as soon as they come."""
    first = next((name for name in names if mark.startswith(name)), None)
    if first is not None:
        return f"thought_{number}: /{_ANYTHING}/ {literal(mark.strip(), names)}"
    return f"thought_{number}[lazy]: /{_ANYTHING}{escaped(mark)}/"
