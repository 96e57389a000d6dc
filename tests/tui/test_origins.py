"""The colours that tell who wrote a word: measured in every theme, as true colours and as 256, and kept in code."""

from itertools import combinations

from driving import running
from localspec.tui.app import in_256_colours
from localspec.tui.widgets.markdown import Code
from localspec.tui.widgets.reply import STYLES
from rich.color import ColorSystem
from textual.color import Color, rgb_to_lab

APART = 20  # in CIELAB; 2 can just be seen
LEGIBLE = 4.5  # contrast of text, as accessibility rules want it
WORDS = ("guessed and kept", "corrected", "bonus")
CODE = "exact Why?\n\n```python\ndef add(one, two):\n    return one + two  # the sum of both\n```\n"


def drawn(chat, words):
    """The style in which a text is drawn on the screen."""
    for strip in chat.app.screen._compositor.render_strips():
        for segment in strip:
            if words in segment.text:
                return segment.style
    raise AssertionError(f"{words} is nowhere\n{chat.drawn}")


def shown(color, system, foreground):
    """What a terminal shows, which may have few colours."""
    return Color(*color.downgrade(system).get_truecolor(foreground=foreground))


def distance(one, other):
    return sum((a - b) ** 2 for a, b in zip(rgb_to_lab(one), rgb_to_lab(other), strict=True)) ** 0.5


def contrast(one, other):
    dark, light = sorted(luminance(color) for color in (one, other))
    return (light + 0.05) / (dark + 0.05)


def luminance(color):
    parts = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in color.normalized
    )
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True))


async def test_origins_are_told_apart_and_legible_in_every_theme_also_in_256_colours(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask("exact word")
        for theme in chat.app.available_themes:
            chat.app.theme = theme
            await chat.pilot.pause()
            styles = [drawn(chat, text) for text in (*WORDS, "tok/s")]
            for system in (ColorSystem.TRUECOLOR, ColorSystem.EIGHT_BIT):
                if system is ColorSystem.EIGHT_BIT:
                    styles = [in_256_colours(style) for style in styles]
                grounds = [shown(style.bgcolor, system, foreground=False) for style in styles]
                inks = [shown(style.color, system, foreground=True) for style in styles]
                apart = min(distance(*pair) for pair in combinations(grounds, 2))
                assert apart >= APART, (theme, system, grounds)
                for ground, ink in zip(grounds[:3], inks, strict=False):
                    assert contrast(ground, ink) >= LEGIBLE, (theme, system, ground, ink)


async def test_only_origins_colour_code_while_they_are_shown_also_in_another_theme(tmp_path):
    async with running(tmp_path) as chat:
        await chat.ask(CODE)
        code = chat.replies[0].query_one(Code)
        for theme in ("localspec", "textual-light"):
            chat.app.theme = theme
            await chat.pilot.pause()
            looks = {str(span.style) for span in code._content.spans}
            assert looks
            assert all(look.removesuffix(" italic") in STYLES.values() for look in looks)
        await chat.pilot.press("f2")
        await chat.until(lambda: "$text-accent" in looks_of_code(chat))


def looks_of_code(chat):
    return {str(span.style) for code in chat.replies[0].query(Code) for span in code._content.spans}


async def test_a_terminal_of_256_colours_gets_greys_for_the_greys_of_a_theme(tmp_path):
    async with running(tmp_path) as chat:
        chat.app.theme = "nord"
        chat.app.console._color_system = ColorSystem.EIGHT_BIT
        chat.app.refresh_css()
        await chat.pilot.pause()
        ground = shown(drawn(chat, "ready in").bgcolor, ColorSystem.EIGHT_BIT, foreground=False)
        assert max(ground.rgb) == min(ground.rgb)
