"""Remove the files that were fetched for a pair, unless another pair on this machine uses them. A pair of
your own is forgotten, too.
"""

import argparse
from typing import TYPE_CHECKING

from localspec.cli.commands.completion import complete_with_pairs
from localspec.cli.usage import WrongUsage
from localspec.display import say, say_json, size_text
from localspec.errors import BadSetting

if TYPE_CHECKING:
    from pathlib import Path

    from localspec.models.removal import Removal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    named = parser.add_argument(
        "name", nargs="?", metavar="NAME", help="a pair, as `localspec list` names it"
    )
    complete_with_pairs(named)
    parser.add_argument(
        "--unused",
        action="store_true",
        help="remove the files that `localspec list` shows as unused: of interrupted pulls, and of pairs that are gone",
    )
    parser.add_argument(
        "--replies",
        action="store_true",
        help="delete the replies that earlier versions kept and the log of likely tokens (`remember_logits`)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    if [arguments.name is not None, arguments.unused, arguments.replies].count(True) != 1:
        raise WrongUsage(
            "`localspec rm` removes one thing at a time", hint="give a NAME, or --unused, or --replies"
        )
    if arguments.name is not None:
        removal, written_in, nothing = remove_pair(arguments.name)
    elif arguments.unused:
        from localspec.models.removal import prune

        removal, written_in, nothing = prune(), (), "every file here belongs to a pair"
    else:
        removal, written_in, nothing = remove_replies(), (), "no reply is stored"
    if arguments.json:
        say_json(
            {
                "removed": [str(path) for path in removal.removed],
                "freed_bytes": removal.freed,
                "kept": [{"file": file, "because": reason} for file, reason in removal.kept],
                "taken_out_of": str(written_in[-1]) if written_in else None,
            }
        )
        return 0
    for path in removal.removed:
        say(f"removed {path}")
    for file, reason in removal.kept:
        say(f"kept {file}: {reason}")
    for path in written_in:
        say(f"{arguments.name} is no longer in {path}")
    if removal.removed:
        say(f"{size_text(removal.freed)} freed")
    elif not (removal.kept or written_in):
        say(f"nothing to remove: {nothing}")
    return 0


def remove_pair(name: str) -> "tuple[Removal, tuple[Path, ...], str]":
    """Remove the files of a pair, and a pair of the user's own from the files it is written in, which come second."""
    from localspec.models.hub import of_system
    from localspec.models.registry import DEMO, named, take_out, users_pairs
    from localspec.models.removal import remove

    pair = named(name)
    users = pair.name in {users.name for users in users_pairs()}
    if pair.name == DEMO and not users:
        raise BadSetting(
            "the embedded pair cannot be removed", hint="it steps aside as soon as another pair is here"
        )
    removal = remove(pair)
    try:
        written_in = take_out(pair.name) if users else ()
    except OSError as error:
        raise of_system(error, pair.name, "removed") from error
    return removal, written_in, f"nothing of {pair.name} is on this machine"


def remove_replies() -> "Removal":
    """Delete the replies that earlier versions kept, and the log that drafts are made of."""
    from localspec.files import lies_in
    from localspec.models.drafting import logits_dir, replies_dir
    from localspec.models.removal import Removal

    replies = [path for path in replies_dir().glob("*") if path.name != ".lock" and not path.is_dir()]
    logged = [path for path in logits_dir().glob("*/*.npz*") if lies_in(path, logits_dir())]
    freed = sum(path.lstat().st_size for path in (*replies, *logged))
    for path in (*replies, *logged):
        path.unlink(missing_ok=True)
    return Removal((*replies, *logged), freed, ())
