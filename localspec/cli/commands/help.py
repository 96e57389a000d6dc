"""`localspec help`: what `COMMAND --help` prints; the command line is rewritten to that before it is parsed."""

from localspec.cli.usage import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("help", help="explain a command")
    parser.add_argument("about", nargs="*", metavar="COMMAND", help="the command, and its action")
