"""List all known pairs with download size, memory at 8,192 tokens of context, where they fit on this machine, and
whether their files are here. The command uses no network.
"""

import argparse
import sys
from dataclasses import replace

from localspec.cli.fetching import DRAFT_HELP
from localspec.display import print_notice, say, say_json, size_text
from localspec.loading.pair_info import PairRow, listing
from localspec.models import registry
from localspec.models.names import described

FITS = {"gpu": "GPU", "part": "GPU+CPU", "cpu": "CPU", "no": "nowhere"}
LEGEND = (
    "MEMORY: an estimate for both models with 8,192 tokens of context, on GPU and CPU together; `localspec info NAME` "
    "plans the memory of one pair, with a longer context if that fits.\n"
    "FITS: where this machine has enough memory. `here`: the files are on your disk.\n"
    "GPU+CPU is slower than GPU. On a CPU alone a pair above 4 GB is slow, unless its target is a mixture of experts.\n"
    "★: recommended for chatting on this machine.\n"
    "`localspec pull NAME` downloads a pair."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    like = "list only pairs whose name or use has this text; `localspec pairs TEXT` does the same"
    parser.add_argument("--like", default="", metavar="TEXT", help=like)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    about = "Check that two files make a pair, and add it to your own pairs with the hashes of its files."
    parser.usage = "%(prog)s [TEXT] [--json]\n       %(prog)s add NAME --target FILE [--draft FILE]"
    actions = parser.add_subparsers(title="actions", metavar="ACTION", prog=parser.prog)
    action = actions.add_parser("add", help="add a pair of your own", description=about)
    add = action.add_argument
    add("name", metavar="NAME", help="name of the pair: lower-case letters, digits and . _ + -")
    add("--target", required=True, metavar="FILE", help="a GGUF file, or ORG/REPO:QUANT")
    add("--draft", metavar="FILE", help=DRAFT_HELP)
    add("--use", default="", metavar="TEXT", help="the purpose of the pair, for the list")
    action.set_defaults(run=run_add)


def run(arguments: argparse.Namespace) -> int:
    unread = {name: str(error) for name, error in registry.unreadable_pairs().items()}
    known, rows = registry.pairs_like(arguments.like), {row.name: row for row in listing()}
    if arguments.json:
        pairs = [as_json(pair, rows[pair.name]) for pair in known]
        say_json({"pairs": pairs, "unreadable": unread}, indent=2)
        return 0
    name = max(len(pair.name) for pair in known)
    say(f"{'NAME':<{name}}    {'SIZE':>7}  {'MEMORY':>7}  {'FITS':<7}  USE")
    for pair in known:
        row = rows[pair.name]
        size, memory, star = size_text(row.size_bytes), size_text(row.memory_bytes), " ★"[row.recommended]
        where = "here" if row.on_disk else FITS[row.fits]
        use = pair.use + ", reads images" * pair.images
        say(f"{pair.name:<{name}} {star}  {size:>7}  {memory:>7}  {where:<7}  {use}")
    say(f"\n{LEGEND}")
    for reason in unread.values():
        print_notice(reason)
    return 0


def run_add(arguments: argparse.Namespace) -> int:
    registry.check_name(arguments.name)
    pair = described(arguments.target, arguments.draft)
    pair = replace(pair, name=arguments.name, aliases=(), use=arguments.use or pair.use)
    users, replaces = registry.users_pairs(), pair.name in {known.name for known in registry.all_pairs()}
    say(f"{pair.name} is stored in {registry.add_pair(pair)}", to=sys.stderr)
    if replaces:
        say(f"It replaces {'your earlier' if pair.name in users else 'the built-in'} pair {pair.name}.")
    say(f"To {'use' if pair.on_disk else 'download'} it:")
    say(f"localspec {'chat' if pair.on_disk else 'pull'} {pair.name}")
    return 0


def as_json(pair: registry.Pair, row: PairRow) -> dict[str, object]:
    same = ("name", "aliases", "kind", "use", "context", "images")
    return {name: getattr(pair, name) for name in (*same, "published")} | {
        "bytes": row.size_bytes,
        "memory_bytes": row.memory_bytes,
        "fits": row.fits,
        "on_disk": row.on_disk,
        "licenses": [file.license for file in pair.files],
    }
