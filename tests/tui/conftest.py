"""Lets the tests of this folder import what lies beside them; style sheets are parsed once for all chats of a run."""

import sys
from pathlib import Path

import pytest
import pytest_asyncio
from textual.css.stylesheet import Stylesheet

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def style_sheets_of_all_chats():
    """Every app of Textual parses them anew, which takes a tenth of a short test."""
    parse, parsed = Stylesheet._parse_rules, {}

    def parse_once(self, *arguments, **options):
        key = (arguments, tuple(options.items()), tuple(self._variables.items()))
        if key not in parsed:
            parsed[key] = parse(self, *arguments, **options)
        return parsed[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stylesheet, "_parse_rules", parse_once)
        yield


@pytest.fixture(autouse=True)
def quick_races(monkeypatch):
    """The dialog draws as often as for a person, and each drawing shows ten times as much of the race."""
    from localspec.tui import dialogs

    wait = dialogs.RaceDialog.set_interval

    def as_before(self, time, *call, **how):
        return wait(self, time / 10, *call, **how)

    monkeypatch.setattr(dialogs, "RACE_SECONDS", 10 * dialogs.RACE_SECONDS)
    monkeypatch.setattr(dialogs.RaceDialog, "set_interval", as_before)


@pytest_asyncio.fixture
async def chat(tmp_path):
    """A chat on a scripted engine, as `running` makes it, in a folder that is empty at first."""
    from driving import running

    async with running(tmp_path) as found:
        yield found
