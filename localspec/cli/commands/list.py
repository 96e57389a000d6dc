"""List the pairs on this machine with size and last use, unfinished pulls, and files and answers that no pair uses.
The enlarged demo pair, caches of earlier texts and answers for `localspec fit` are counted.
"""

import argparse
from datetime import datetime
from pathlib import Path

from localspec.caches.store import usage
from localspec.display import note, say, say_json, size_text
from localspec.models import inspection, places, registry, removal
from localspec.options import given_settings, texts_dir


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    uses = places.last_uses()
    here = [pair for pair in registry.all_pairs() if pair.on_disk]
    here.sort(key=lambda pair: -uses.get(pair.name, 0.0))
    unused = removal.leftovers()
    files = places.distinct(file for pair in here for file in pair.files)
    texts, text_bytes = usage(folder_of_texts())
    demo = sum(path.stat().st_size for path in removal.enlarged_demo())
    answers = removal.answer_bytes(unused)
    total = text_bytes + demo + answers + sum(left.bytes for left in unused)
    total += sum(file.all_bytes for file in files)
    if arguments.json:
        pairs = [as_json(pair, uses.get(pair.name)) for pair in here]
        left_over = [{"path": str(left.path), "bytes": left.bytes, "pair": left.pair} for left in unused]
        caches = {"texts": texts, "bytes": text_bytes}
        found = {"pairs": pairs, "unused": left_over, "caches": caches, "answers_bytes": answers}
        say_json({**found, "enlarged_demo_bytes": demo, "bytes": total}, indent=2)
        return 0
    rows = [(pair.name, inspection.file_bytes(pair), last_use(uses.get(pair.name))) for pair in here]
    lost = [(left.path.name, left.bytes, why_unused(left)) for left in unused]
    kept = [
        ("demo, enlarged", demo, "by `localspec demo`; `localspec rm demo` removes it"),
        ("texts", text_bytes, "caches of earlier texts; `localspec rm --caches` removes them"),
        (
            "answers",
            answers,
            "for `localspec fit` to resume; `localspec rm NAME` and `rm --unused` remove them",
        ),
    ]
    kept = [row for row in kept if row[1]]
    width = max(len(name) for name, _, _ in (*rows, *lost, *kept, ("total", 0, "")))

    def tell(found: list[tuple[str, int, str]]) -> None:
        for name, size, about in found:
            say(f"{name:<{width}}  {size_text(size):>7}  {about}".rstrip())

    say(f"{'NAME':<{width}}  {'SIZE':>7}  LAST USED")
    tell(rows)
    if unused:
        say("\nUNUSED: `localspec rm --unused` removes these")
    tell(lost)
    say("")
    tell([*kept, ("total", total, "")])
    return 0


def folder_of_texts() -> Path:
    """The folder of the caches of earlier texts; a mistake in the settings is a note here."""
    given, mistakes = given_settings()
    for mistake in mistakes:
        note(f"{mistake} ({mistake.hint})")
    return texts_dir({name: found.value for name, found in given.items()})


def last_use(seconds: float | None) -> str:
    return "-" if seconds is None else datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def why_unused(left: removal.Leftover) -> str:
    return f"`localspec pull {left.pair}` completes it" if left.pair else "no pair uses it"


def as_json(pair: registry.Pair, used: float | None) -> dict[str, object]:
    paths = [path for file in pair.files if (path := file.path)]
    when = None if used is None else datetime.fromtimestamp(used).astimezone().isoformat("T", "seconds")
    return {
        "name": pair.name,
        "bytes": inspection.file_bytes(pair),
        "last_used": when,
        "files": [{"path": str(path), "removable": places.is_ours(path)} for path in paths],
    }
