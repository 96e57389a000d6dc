"""Draws the pictures of the README and the docs from the program itself: `python -m tools.pictures [NAME ...]`.

The chat, the race and the passes run on the demo pair; the chart is drawn from a stored result. A test compares the
words of these pictures with those of the program as it is, without their figures.
"""

import asyncio
import io
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from time import monotonic
from typing import Any
from unittest.mock import patch
from xml.etree import ElementTree

from rich.console import Console

import localspec
from localspec.cli.commands import demo
from localspec.cli.commands.demo import DEPTH, PROMPT
from localspec.events import Cycle, Origin
from localspec.measure.race import picture
from tools import charts
from tools.charts import Bar, Chart

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "pictures"
RESULT = ROOT / "benchmarks" / "results" / "llama-server-f16-2026-11-23.md"
SIZE = (100, 24)  # columns and rows of the chat
MOST_SECONDS = 60.0  # for the chat to get anywhere
REST_SECONDS = 0.8  # until a screen is drawn whole
_WEB_FONT = re.compile(r"@font-face \{.*?\}", re.DOTALL)


def chat() -> dict[str, str]:
    """The first screen of the chat, a reply with the origins of its tokens, and the inspector."""
    with tempfile.TemporaryDirectory() as home, patch.dict(os.environ, LOCALSPEC_HOME=home):
        return asyncio.run(_chat(Path(home)))


async def _chat(home: Path) -> dict[str, str]:
    from localspec.tui.app import ChatApp
    from localspec.tui.state.chat import Setup

    from localspec.engine.client import EngineProcess
    from localspec.engine.messages import LoadPair
    from localspec.models.registry import named

    load, drawn = LoadPair(named("demo")), {}
    with closing(EngineProcess()) as engine:
        engine.start()
        engine.send(load)
        app = ChatApp(Setup(engine, home, load, {"temperature": 0.0, "depth": DEPTH}))
        app.animation_level = "none"
        async with app.run_test(size=SIZE) as pilot:
            state = app.state.engine
            await _until(lambda: state.ready)
            app.screen.query_one("#prompt").cursor_blink = False  # type: ignore[attr-defined]
            await pilot.pause(REST_SECONDS)
            drawn["chat-first-screen"] = _screen(app)
            for _ in range(2):  # the demo pair gives its notice once
                await pilot.press("ctrl+n", *PROMPT, "enter")
                await _until(lambda: state.last_reply and not state.busy)
                await pilot.pause(REST_SECONDS)
            drawn["chat-reply"] = _screen(app)
            await pilot.press("f3")
            await pilot.pause(REST_SECONDS)
            drawn["chat-inspector"] = _screen(app)
            await pilot.press("f3", "f9")
            await _until(lambda: not state.busy and len(app.screen_stack) > 1)
            await pilot.pause(4 * REST_SECONDS)  # until plain decoding has caught up
            drawn["chat-compare"] = _screen(app)
    return drawn


async def _until(condition: Callable[[], object]) -> None:
    end = monotonic() + MOST_SECONDS
    while not condition():
        if monotonic() > end:
            raise TimeoutError("the chat hangs")
        await asyncio.sleep(0.02)


def _screen(app: Any) -> str:  # noqa: ANN401 - Textual's
    """The screen as SVG, without fonts from elsewhere."""
    return _WEB_FONT.sub("", app.export_screenshot(title="localspec chat"))


def race() -> dict[str, str]:
    """The end of the race of `localspec demo`, measured here."""
    ended, about, outcome = demo.race()
    paper = Console(
        record=True, width=100, file=io.StringIO(), color_system="truecolor", legacy_windows=False
    )
    paper.print(picture(ended.race_sides, PROMPT, about, outcome, ended.branch_point))
    return {"race": _WEB_FONT.sub("", paper.export_svg(title="localspec"))}


def passes() -> dict[str, str]:
    """Draw the draft tokens and the target's tokens in each pass of a reply."""
    with localspec.load(pair="demo") as session:
        cycles = [
            event
            for event in session.stream(PROMPT, temperature=0.0, depth=DEPTH)
            if isinstance(event, Cycle)
        ]
        return {"passes": _drawn_passes(cycles, session)}


WIDTH, LETTER, ROW, TOP, LEFT, PAD = 640, 8.2, 34, 70, 76, 7  # pixels
KEPT, REJECTED, OWN = ("#d9f0dd", "#2c7a3f"), ("#f6dcd8", "#a33a2a"), ("#d6e6fa", "#1f5fae")  # ground, ink
CAPTION = (
    ("an accepted draft token", KEPT),
    ("a rejected draft token", REJECTED),
    ("the target's own token", OWN),
)


def _drawn_passes(cycles: list[Cycle], session: localspec.Session) -> str:
    shapes, tokens = list[str](), 0
    x = float(charts.MARGIN)
    for words, colours in CAPTION:
        shapes += _box(x, 20, words, colours)
        x += len(words) * LETTER + 4 * PAD
    for row, cycle in enumerate(cycles):
        x, y = float(LEFT), float(TOP + row * ROW)
        shapes.append(charts.text(charts.MARGIN, y + 13, f"pass {row + 1}", "start", colour=charts.FAINT))
        own = [token for token, by in zip(cycle.tokens, cycle.origins, strict=True) if by != Origin.ACCEPTED]
        boxes = [(token, KEPT) for token in cycle.proposal[: cycle.accepted]]
        boxes += [(token, OWN) for token in own]
        boxes += [(token, REJECTED) for token in cycle.proposal[cycle.accepted :]]
        for token, colours in boxes:
            words = "(end)" if session.pair.vocabulary.is_end(token) else session.text_of(token).strip()
            shapes += _box(x, y, words, colours)
            x += len(words) * LETTER + 3 * PAD
        tokens += len(cycle.tokens)
    bottom = TOP + len(cycles) * ROW
    words = f"{tokens} tokens in {len(cycles)} passes of the target. Plain decoding needs {tokens} passes."
    shapes.append(charts.text(charts.MARGIN, bottom + 16, words, "start", 15))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 40}" '
    head += f'width="{WIDTH}" height="{bottom + 40}" font-family="system-ui, sans-serif">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="#ffffff"/>', *shapes, "</svg>", ""])


def _box(x: float, y: float, words: str, colours: tuple[str, str]) -> list[str]:
    ground, ink = colours
    width = len(words) * LETTER + 2 * PAD
    box = f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="26" rx="4" fill="{ground}" stroke="{ink}"/>'
    line = [charts.line(x + 3, y + 13, x + width - 3, y + 13, ink)] if colours is REJECTED else []
    return [box, charts.text(x + width / 2, y + 13, words, "middle", colour=ink), *line]


RATIO = re.compile(r"\*\*([\d.]+)x\*\* \(([\d.]+) to ([\d.]+)\) as fast as the server (drafting|plain)")
AGAINST = {"drafting": "its best draft flags", "plain": "its plain decoding"}


def speed() -> dict[str, str]:
    """The speed against llama.cpp's server, from the first two tables of a stored result."""
    parts = re.split(r"^(T=[\d.]+), the server's best flags", RESULT.read_text("utf-8"), flags=re.M)
    drawn = []
    for temperature, part in list(zip(parts[1::2], parts[2::2], strict=True))[:2]:
        bars = tuple(
            Bar(AGAINST[against], float(value), f"{value}x", float(low), float(high))
            for value, low, high, against in RATIO.findall(part)
        )
        drawn.append(Chart(f"localspec against llama.cpp's server, {temperature}", bars, 1.0))
    return {"speed": charts.svg(*drawn)}


PICTURES: dict[str, Callable[[], dict[str, str]]] = {
    "chat": chat,
    "race": race,
    "passes": passes,
    "speed": speed,
}


def words_of(svg: str, until: str | None = None) -> set[str]:
    """The words of a picture, up to the line with a word if one is given. Figures and seconds are masked."""
    texts = [node for node in ElementTree.fromstring(svg).iter() if node.tag.endswith("text")]
    last = max(
        (float(node.get("y", 0)) for node in texts if until and until in (node.text or "")), default=1e9
    )
    text = " ".join(node.text or "" for node in texts if float(node.get("y", 0)) <= last)
    words = re.sub(r"[\d.,]*\d( s\b)?", "#", text.replace("\xa0", " ")).split()
    return {word for word in words if re.search(r"[A-Za-z]", word)}


def main(names: Iterable[str]) -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in names:
        for file, drawing in PICTURES[name]().items():
            (FOLDER / f"{file}.svg").write_text(drawing, "utf-8")
            print(f"{file}.svg: {len(drawing) / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:] or PICTURES)
