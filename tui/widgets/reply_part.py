"""A stretch of a reply: Markdown near the view, and far from it its source, as every widget costs at every layout."""

from contextlib import suppress

from textual.geometry import Size
from textual.widget import MountError
from textual.widgets import Static

from localspec.terminal_text import for_terminal

from ..text.markdown import is_list_cut
from .markdown import ReplyMarkdown


class ReplyPart(Static):
    """Begins as plain text; a part that was drawn keeps its height when it becomes text again."""

    def __init__(self, source: str) -> None:
        self.source = for_terminal(source)
        super().__init__(self.source, markup=False, classes="part")
        self._markdown: ReplyMarkdown | None = None
        self._kept_height = 0  # lines, of what was Markdown before

    @property
    def is_drawn(self) -> bool:
        return self._markdown is not None

    async def append(self, source: str) -> None:
        """Add finished blocks at the end."""
        source = for_terminal(source)
        self.source += source
        if self.is_drawn:
            await self._add(source)
        else:
            self.update(self.source)

    async def draw(self) -> None:
        """Show it as Markdown."""
        if self.is_drawn or not self.is_attached:
            return
        self._markdown = ReplyMarkdown()
        self._kept_height = 0
        self.update("")
        with suppress(MountError):
            await self.mount(self._markdown)
            # Only `append`: after a source given to Markdown itself, it would overwrite the last block.
            await self._add(self.source)

    async def undraw(self) -> None:
        """Show its source, at the same height."""
        if self._markdown is None:
            return
        self._kept_height = self.size.height
        self.update(self.source)
        markdown, self._markdown = self._markdown, None
        await markdown.remove()

    def forget_height(self) -> None:
        """The width has changed, and with it the height, which only Markdown could tell."""
        self._kept_height = 0

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return self._kept_height or super().get_content_height(container, viewport, width)

    def is_followed_by(self, source: str) -> None:
        """What the next part begins with; a list that goes on there has no space between."""
        self.set_class(is_list_cut(self.source, source), "-list-goes-on")

    async def _add(self, source: str) -> None:
        assert self._markdown is not None
        # A program that is leaving takes its widgets down in the middle of this.
        with suppress(MountError):
            await self._markdown.append(source)
