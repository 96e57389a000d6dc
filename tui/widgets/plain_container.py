"""A container that draws nothing itself."""

from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget


class PlainContainer(Widget):
    """All its lines are the same: one is drawn, where Textual draws each, although children cover them."""

    def render_lines(self, crop: Region) -> list[Strip]:
        return super().render_lines(Region(crop.x, crop.y, crop.width, min(1, crop.height))) * crop.height
