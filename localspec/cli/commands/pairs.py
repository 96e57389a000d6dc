"""List all known pairs: download size, memory at about 8,192 tokens of context, whether that fits on this machine, and
whether the files are here. Uses no network.
"""

import argparse
import sys
from dataclasses import replace

from localspec.display import say, say_json, size_text
from localspec.errors import BadSetting
from localspec.gguf.facts import trained_context
from localspec.models import devices, hub, inspection, registry
from localspec.models.names import model_file

DEFAULT_DEPTH = 4  # draft tokens: what most public sources begin with


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    about = "Check that two files make a pair and write it, pinned, among your own pairs."
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    action = actions.add_parser("add", help="add a pair of your own", description=about)
    add = action.add_argument
    add("name", metavar="NAME", help="name of the pair: lower-case letters, digits and . _ + -")
    add("--target", required=True, metavar="FILE", help="org/repo:file.gguf, or a path")
    add("--draft", required=True, metavar="FILE", help="org/repo:file.gguf, or a path")
    add("--depth", type=int, default=DEFAULT_DEPTH, metavar="N", help="the starting depth")
    add("--use", default="", metavar="TEXT", help="the purpose of the pair, for the list")
    action.set_defaults(run=run_add)


def run(arguments: argparse.Namespace) -> int:
    known, here = registry.all_pairs(), devices.last_devices()
    if arguments.json:
        say_json({"pairs": [as_json(pair, inspection.fit(pair, here)) for pair in known]}, indent=2)
        return 0
    name = max(len(pair.name) for pair in known)
    say(f"{'NAME':<{name}}  {'SIZE':>7}  {'MEMORY':>7}  {'HERE':<7}  USE")
    words = {"gpu": "fits", "part": "in part", "cpu": "in RAM", "no": "no"}
    for pair in known:
        fits = words[inspection.fit(pair, here)] if pair.runnable else "not yet"
        size, memory = size_text(inspection.file_bytes(pair)), size_text(inspection.memory_needed(pair))
        where = "on disk" if pair.on_disk else fits
        say(f"{pair.name:<{name}}  {size:>7}  {memory:>7}  {where:<7}  {pair.use}")
    fits = "in RAM: it fits on the CPU, as no GPU is known."
    if any(device.is_gpu for device in here):
        fits = "fits: on the GPU; in part: with layers or the draft on the CPU; in RAM: on the CPU only."
    say(
        f"\n{fits}\nMEMORY is an estimate; `localspec info NAME` asks llama.cpp. `localspec pull NAME` fetches a pair."
    )
    return 0


def run_add(arguments: argparse.Namespace) -> int:
    if arguments.depth < 1:
        raise BadSetting(f"a depth of {arguments.depth} drafts nothing", hint="use 1 or more")
    target, draft = model_file(arguments.target), model_file(arguments.draft)
    pair = registry.Pair(
        name=arguments.name,
        kind=draft.kind,
        target=target,
        draft=draft,
        use=arguments.use,
        context=trained_context(target.header),
        starting_depth=arguments.depth,
    )
    pair.check()
    users = {pair.name for pair in registry.users_pairs()}
    known = {pair.name for pair in registry.all_pairs()}
    try:
        pair = replace(pair, target=target.pinned(), draft=draft.pinned())
        path = registry.add_pair(pair)
    except OSError as error:
        raise hub.of_system(error, arguments.name) from error
    say(f"{pair.name} is in {path}", to=sys.stderr)
    if pair.name in known:
        say(f"It replaces {'your earlier' if pair.name in users else 'the built-in'} pair {pair.name}.")
    say(f"localspec run --pair {pair.name}" if pair.on_disk else f"localspec pull {pair.name}")
    return 0


def as_json(pair: registry.Pair, fits: inspection.Fit) -> dict[str, object]:
    same = ("name", "aliases", "kind", "runnable", "use", "context", "starting_depth", "starting_depth_from")
    return {name: getattr(pair, name) for name in (*same, "published")} | {
        "bytes": inspection.file_bytes(pair),
        "memory_bytes": inspection.memory_needed(pair),
        "fits": fits,
        "on_disk": pair.on_disk,
        "licenses": [file.license for file in pair.files],
    }
