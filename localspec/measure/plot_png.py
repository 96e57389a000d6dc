"""A page of charts as PNG, drawn by Pillow: one wheel, no system libraries, and a font inside."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from localspec.errors import BadSetting
from localspec.measure.plot import Box, Line, Page, Words

SCALE = 2  # pixels of the file for each pixel of the page: sharp on today's screens
ANCHORS = {"start": "lm", "middle": "mm", "end": "rm"}


def require_pillow() -> None:
    """Asked before anything is measured. Raises BadSetting where Pillow is missing."""
    if find_spec("PIL") is None:
        raise BadSetting(
            "PNG files need Pillow, which is not installed",
            hint='pip install "localspec[png]", or use --svg',
        )


def write_png(page: Page, path: Path) -> None:
    """Raises OSError when the file cannot be written."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (page.width * SCALE, page.height * SCALE), "white")
    draw: Any = ImageDraw.Draw(image)
    for shape in page.shapes:
        match shape:
            case Box(x, y, width, height, colour):
                draw.rectangle([v * SCALE for v in (x, y, x + width, y + height)], fill=colour)
            case Line(x1, y1, x2, y2, colour):
                draw.line([v * SCALE for v in (x1, y1, x2, y2)], fill=colour, width=SCALE)
            case Words(x, y, text, size, anchor, colour):
                font = ImageFont.load_default(size * SCALE)
                draw.text((x * SCALE, y * SCALE), text, fill=colour, font=font, anchor=ANCHORS[anchor])
    image.save(path, "PNG")
