"""Remove the files that localspec downloaded or made for a pair, unless another pair uses them. A pair that you
added is removed from the list as well.
"""

import argparse
from pathlib import Path

from localspec.caches.store import empty, usage
from localspec.cli.commands.completion import complete_with_pairs
from localspec.display import say, say_json, size_text
from localspec.errors import BadSetting
from localspec.models import local_models, registry, removal
from localspec.options import texts_dir


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    complete_with_pairs(add("name", nargs="?", metavar="NAME", help="a pair, as `localspec list` names it"))
    what = "remove what `localspec list` shows as unused: unfinished pulls, and files that no pair uses"
    add("--unused", action="store_true", help=what)
    add("--caches", action="store_true", help="delete the prompt caches")
    add("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    if (named := (arguments.name is not None) + arguments.unused + arguments.caches) != 1:
        hint = "give one of NAME, --unused and --caches; `localspec chats rm` deletes a conversation"
        what = "`localspec rm` removes one thing at a time" if named else "nothing is named to remove"
        raise BadSetting(what, hint=hint)
    written_in: Path | None = None
    if arguments.unused:
        done, nothing = removal.prune(), "every file here belongs to a pair"
    elif arguments.caches:
        freed, paths = usage(folder := texts_dir())[1], empty(folder)
        done, nothing = removal.Removal(tuple(paths), freed, ()), f"there is no prompt cache in {folder}"
    else:
        done, written_in = remove_pair(pair := registry.named(arguments.name))
        nothing = f"nothing of {pair.name} is on this machine"
    if arguments.json:
        found = {"removed": [str(path) for path in done.removed], "freed_bytes": done.freed}
        kept = [{"file": file, "because": reason} for file, reason in done.kept]
        say_json({**found, "kept": kept, "taken_out_of": str(written_in) if written_in else None})
        return 0
    for path in done.removed:
        say(f"removed {path}")
    for file, reason in done.kept:
        say(f"kept {file}: {reason}")
    if written_in:
        say(f"{arguments.name} is no longer in the list")
    if done.removed:
        say(f"{size_text(done.freed)} freed")
    elif not (done.kept or written_in):
        say(f"nothing to remove: {nothing}")
    return 0


def remove_pair(pair: registry.Pair) -> tuple[removal.Removal, Path | None]:
    users = pair.name in registry.users_pairs()
    if pair.name == registry.DEMO and not users:
        done = removal.remove_enlarged_demo()
        if not done.removed:
            hint = "download another pair to use instead: `localspec pull NAME`"
            raise BadSetting("the demo pair is part of localspec and cannot be removed", hint=hint)
        return done, None
    if pair.paths:  # the pair is a file that the user has opened
        return removal.remove(pair), local_models.forget_use(pair.used_as)
    return removal.remove(pair), registry.take_out(pair.name) if users else None
