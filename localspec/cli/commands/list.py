"""List the pairs on this machine with size and last use. After them come the models of Ollama, LM Studio, Hugging Face
and llama.cpp, unfinished pulls, and files that no pair uses. The total includes the enlarged demo pair, prompt caches
and the training answers of `localspec fit`, and no models of other programs.
"""

import argparse
from datetime import datetime

from localspec.display import say, say_json, size_text
from localspec.models import local_models, registry, removal
from localspec.options import texts_dir


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    uses = local_models.last_uses()
    pairs = registry.all_pairs()
    here = [pair for pair in pairs if not pair.found and pair.on_disk]
    theirs = [(pair.name, pair.found) for pair in pairs if pair.found]
    here.sort(key=lambda pair: -uses.get(pair.used_as, 0.0))
    unused = removal.leftovers(pairs)
    files = local_models.distinct(file for pair in here for file in pair.files)
    texts = [removal.size_of(path) for path in texts_dir().glob("*.cache*")]
    demo = sum(path.stat().st_size for path in removal.enlarged_demo())
    folders = set(local_models.fitted_dir().glob("*/")) - {left.path for left in unused}
    answers = sum(map(removal.size_of, folders))  # answers that `localspec fit` trains drafts on
    total = sum(texts) + demo + answers + sum(left.bytes for left in unused)
    total += sum(file.all_bytes for file in files)
    if arguments.json:
        found = {
            "pairs": [as_json(pair, uses.get(pair.used_as)) for pair in here],
            "found": [
                {"name": name, "store": model.store, "path": model.path, "problem": model.why_not or None}
                for name, model in theirs
            ],
            "unused": [{"path": str(left.path), "bytes": left.bytes, "pair": left.pair} for left in unused],
            "caches": {"texts": len(texts), "bytes": sum(texts)},
            "answers_bytes": answers,
        }
        say_json({**found, "enlarged_demo_bytes": demo, "bytes": total}, indent=2)
        return 0
    rows: list[tuple[str, int | None, str]] = []
    for pair in here:
        used = uses.get(pair.used_as)
        when = f"{datetime.fromtimestamp(used):%Y-%m-%d %H:%M}" if used else "-"
        rows.append((pair.name, pair.file_bytes, when))
    if theirs:
        rows.append(("\nIN OTHER PROGRAMS: `localspec run NAME PROMPT` uses these", None, ""))
    rows += [(name, 0 if model.trouble else model.file.all_bytes, model.about) for name, model in theirs]
    if unused:
        rows.append(("\nUNUSED: `localspec rm --unused` removes these", None, ""))
    for left in unused:
        why = f"`localspec pull {left.pair}` completes it" if left.pair else "no pair uses it"
        rows.append((left.path.name, left.bytes, why))
    resume = "training data of `localspec fit`; `localspec rm NAME` and `rm --unused` remove them"
    kept = [
        ("demo, enlarged", demo, "by `localspec demo`; `localspec rm demo` removes it"),
        ("texts", sum(texts), "prompt caches; `localspec rm --caches` removes them"),
        ("answers", answers, resume),
    ]
    rows += [("", None, ""), *(row for row in kept if row[1]), ("total", total, "")]
    width = max(len(name) for name, size, _ in rows if size is not None)
    say(f"{'NAME':<{width}}  {'SIZE':>7}  LAST USED")
    for name, size, about in rows:
        say(name if size is None else f"{name:<{width}}  {size_text(size):>7}  {about}".rstrip())
    return 0


def as_json(pair: registry.Pair, used: float | None) -> dict[str, object]:
    paths = [path for file in pair.files if (path := file.path)]
    when = None if used is None else datetime.fromtimestamp(used).astimezone().isoformat("T", "seconds")
    return {
        "name": pair.name,
        "bytes": pair.file_bytes,
        "last_used": when,
        "files": [{"path": str(path), "removable": local_models.is_ours(path)} for path in paths],
    }
