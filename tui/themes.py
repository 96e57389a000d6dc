"""Our own theme; the ones that come with Textual are on offer as well."""

from typing import Final

from textual.theme import Theme

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
