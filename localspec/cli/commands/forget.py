"""`localspec forget`: delete what was remembered of replies, to draft from or to make drafts of."""

import argparse

from localspec.cli.printing import say
from localspec.cli.usage import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "forget",
        help="delete remembered replies",
        description="Delete the replies that localspec remembers to draft from, if `remember_replies` was set, and "
        "the log of what targets held for likely, if `remember_logits` was.",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from localspec.files import lies_in
    from localspec.pair_drafting import logits_dir, replies_dir
    from localspec.units import size_text

    replies = [path for path in replies_dir().glob("*") if path.name != ".lock" and not path.is_dir()]
    logged = [path for path in logits_dir().glob("*/*.npz*") if lies_in(path, logits_dir())]
    targets, freed = len({path.parent for path in logged}), sum(path.stat().st_size for path in logged)
    for path in (*replies, *logged):
        path.unlink(missing_ok=True)
    found = [f"the replies of {_counted(len(replies), 'model')}"] if replies else []
    found += [f"the log of {_counted(targets, 'target')}, {size_text(freed)}"] if logged else []
    say(f"Forgot {' and '.join(found)}." if found else "There is nothing to forget: no reply was remembered.")
    return 0


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
