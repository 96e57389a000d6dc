"""Lets the tests of this folder import what lies beside them; style sheets are parsed once for all chats of a run."""

import sys
from pathlib import Path

import pytest
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
