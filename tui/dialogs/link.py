"""A link of a reply: its whole address first, and the browser only when the person says so."""

import asyncio
import re
import webbrowser
from typing import ClassVar, Final
from urllib.parse import quote, urlsplit

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from localspec.terminal_text import for_terminal

from .base import Dialog

_HOST: Final = re.compile(r"[\w.:-]+", re.ASCII)
_KEPT: Final = "%/:?#[]@!$&'()*+,;=~"  # what an address may hold unquoted


class LinkDialog(Dialog[None]):
    """Shows where a link leads; the model chose the address, so nothing opens by itself."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("o", "open", "open"), Binding("c", "copy", "copy")]
    BOX_TITLE = "Link"
    KEYS = "o open in the browser · c copy the address · esc close"

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address
        self._web_address = web_address(address)

    def content(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(for_terminal(self._address), markup=False)

    def foot(self) -> ComposeResult:
        yield Static(for_terminal(self._where), markup=False, classes="detail")

    @property
    def _where(self) -> str:
        if self._web_address is None:
            return "Not opened from here: only plain http and https addresses are."
        return f"It leads to {urlsplit(self._web_address).hostname}."

    @work
    async def action_open(self) -> None:
        if self._web_address is None:
            self.notify(self._where, severity="warning")
            return
        # Some systems wait for the browser.
        try:
            await asyncio.to_thread(self.app.open_url, self._web_address)
        except (OSError, webbrowser.Error) as error:
            self.notify(f"The browser cannot be opened: {error}.", severity="error")
        else:
            self.dismiss()

    def action_copy(self) -> None:
        self.app.copy_to_clipboard(self._address)
        self.notify("Copied, if your terminal allows it (OSC 52).")


def web_address(text: str) -> str | None:
    """An unquoted address as a browser may be given it; None unless it is http or https to a host named plainly."""
    address = quote(text, safe=_KEPT)
    try:
        parts = urlsplit(address)
        host, _port = parts.hostname or "", parts.port
    except ValueError:
        return None
    plain = parts.scheme in ("http", "https") and _HOST.fullmatch(host) and "@" not in parts.netloc
    return address if plain else None
