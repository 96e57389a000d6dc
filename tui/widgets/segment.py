"""A stretch of a reply's Markdown that costs nothing while it is far from view."""

from textual.widgets import Markdown


class Segment(Markdown):
    """Keeps its height and hides its blocks when asleep: Textual lays out every displayed widget, seen or not."""

    asleep = False

    def __init__(self, source: str | None = None) -> None:
        super().__init__(source, open_links=False)  # the chat screen asks first

    def sleep(self) -> None:
        """Hide the blocks; only for a segment that is laid out and will not be appended to."""
        if self.asleep or not self.outer_size.height:
            return
        self.asleep = True
        self.styles.height = self.outer_size.height
        for block in self.children:
            block.display = False

    def wake(self) -> None:
        if not self.asleep:
            return
        self.asleep = False
        self.styles.height = "auto"
        for block in self.children:
            block.display = True
