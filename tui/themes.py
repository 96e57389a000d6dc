"""Our own theme; the ones that come with Textual are on offer as well."""

import difflib
from collections.abc import Collection
from typing import Final

from textual.theme import Theme

from localspec.errors import BadSetting

LOCALSPEC: Final = Theme(
    name="localspec",
    primary="#7aa2c8",
    secondary="#8f9bb3",
    accent="#5fb3a1",
    foreground="#d5d9e0",
    background="#14171c",
    surface="#1a1e25",
    panel="#232933",
    success="#7fb069",
    warning="#e0a458",
    error="#d1605e",
    dark=True,
)


def check(name: str, known: Collection[str]) -> None:
    """Raises BadSetting with the nearest names when there is no such theme."""
    if name not in known:
        near = difflib.get_close_matches(name, known) or sorted(known)
        raise BadSetting(f"there is no theme {name!r}", hint=f"themes: {', '.join(near)}")
