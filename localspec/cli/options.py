"""Options that several commands share, declared once."""

import argparse
import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from localspec.cli.commands.completion import complete_with_pairs
from localspec.display import say
from localspec.errors import BadSetting
from localspec.files import text_of
from localspec.options import LOAD, OPTIONS, REPLY, Option

WRONG_USAGE = 2  # the exit code for what the user typed or set, as argparse's; after any other error it is 1
Group: TypeAlias = argparse.ArgumentParser | argparse._ArgumentGroup
FEW = 12  # flags that a usage line names
_PAIR_HELP = "a pair by name, a GGUF file, or ORG/REPO:QUANT; `localspec pairs` lists the names"


def add_pair_argument(parser: argparse.ArgumentParser) -> None:
    """The pair by name as the first argument, or by the options that other commands have for it."""
    complete_with_pairs(parser.add_argument("name", nargs="?", metavar="PAIR", help=_PAIR_HELP))
    add_pair_options(parser)


def add_pair_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("models")
    add = group.add_mutually_exclusive_group().add_argument
    complete_with_pairs(add("-m", "--pair", metavar="NAME", help=_PAIR_HELP))
    add("--target", metavar="FILE", help="a GGUF file, or ORG/REPO:QUANT, instead of a pair")
    add = group.add_mutually_exclusive_group().add_argument
    add("--draft", metavar="FILE", help="the draft, named the same way; lookup drafts from the text alone")
    add("--no-draft", action="store_true", help="load no draft model: plain decoding")
    group.add_argument("--pull", action="store_true", help="fetch the pair if it is not here")
    group = parser.add_argument_group("memory and devices")
    for name in LOAD:
        if name != "parallel":  # these commands answer one after the other
            add_option(group, name)


def add_reply_options(parser: argparse.ArgumentParser, **changes: Mapping[str, Any]) -> None:
    """`changes`: by option, arguments of argparse in place of the usual ones."""
    group = parser.add_argument_group("reply")
    grammars = group.add_mutually_exclusive_group()
    for name in REPLY:
        is_grammar = name in ("json_schema", "regex", "grammar")
        add_option(grammars if is_grammar else group, name, **changes.get(name, {}))


def add_option(group: Group, name: str, **changes: Any) -> None:  # noqa: ANN401  argparse's own
    """The flag of an option, if it has one."""
    option = OPTIONS[name]
    if option.metavar is None:
        return
    flags = option.flags or (f"--{name.replace('_', '-')}",)
    about: dict[str, Any] = {"dest": name, "help": option.about}
    if option.kind is bool:
        about["action"] = argparse.BooleanOptionalAction
    else:
        about |= {"metavar": option.metavar, "type": partial(_read, option)}
    if option.repeats:
        about |= {"action": "append", "help": f"{option.about}; may be repeated"}
    if option.kind is str and option.choices:
        about["choices"] = option.choices
    group.add_argument(*flags, **about | changes)


def number(
    kind: type[float], least: float, most: float = math.inf, *, above: bool = False
) -> Callable[[str], Any]:
    """Reads a number in these limits; `above`: the least one is excluded."""
    return partial(_read, Option("", kind=kind, least=least, most=most, above=above))


def _read(option: Option, text: str) -> object:
    with suppress(ValueError):
        if option.admits(value := option.read(text)):
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not {option.expected}")


def add_quiet_option(group: Group) -> None:
    what = "results and errors only: no notes, no progress"
    group.add_argument("-q", "--quiet", action="store_true", help=what)


def drawable(path: str) -> Path:
    """Raises BadSetting if there is no folder for the file, before anything is measured."""
    if not (folder := Path(path).absolute().parent).is_dir():
        raise BadSetting(f"there is no folder {folder}", hint="make it, or name another file")
    return Path(path)


def reply_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The user's options as keyword arguments of `Session.stream`. Raises BadSetting."""
    from localspec.chat.options import request_from
    from localspec.sampler.sampling import Sampling

    values = given_of(arguments, REPLY)
    schema = values.get("json_schema")
    if "compact_json" in values and schema is None:
        raise BadSetting("--no-compact-json goes with --json-schema", hint="leave it out, or add a schema")
    if schema is not None and not schema.lstrip().startswith("{"):
        values["json_schema"] = text_of(schema)
    if "grammar" in values:
        values["grammar"] = text_of(values["grammar"])
    request_from(values, Sampling())  # raises before a model is loaded
    return values


def given_of(arguments: argparse.Namespace, options: Iterable[str]) -> dict[str, Any]:
    """The options that the user gave, by name; adapters as one text."""
    given = {name: getattr(arguments, name, None) for name in options}
    if adapters := given.get("lora"):
        given["lora"] = ",".join(adapters)
    return {name: value for name, value in given.items() if value is not None}


def load_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The user's options as keyword arguments of `localspec.load`; fetches models of the Hub if wanted.

    Raises BadSetting, and errors of fetching.
    """
    pair = pair_of(arguments)
    if pair and arguments.target:
        raise BadSetting(f"the pair {pair} and --target contradict each other", hint="give one of them")
    values = {"pair": pair} | given_of(arguments, ("target", "draft", *LOAD))
    if on_hub := arguments.target or (pair and "/" in pair and pair):
        from localspec.cli.fetching import take_from_hub

        values |= take_from_hub(on_hub, arguments.draft, pull=arguments.pull)
    given = {name: value for name, value in values.items() if value is not None}
    return given | {"speculate": not arguments.no_draft}


def pair_of(arguments: argparse.Namespace) -> str | None:
    """The pair from its argument or its option; not every command has both."""
    named = [name for name in (vars(arguments).get("name"), arguments.pair) if name is not None]
    if len(named) > 1:
        raise BadSetting("the pair was named twice", hint=f"localspec {arguments.command} {named[0]}")
    return named[0] if named else None


class Parser(argparse.ArgumentParser):
    """A parser that raises its errors, so that one place prints them."""

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401  argparse's own
        super().__init__(*args, **options)
        self.allow_abbrev = False  # an option that is shortened today may be two options tomorrow
        self.color = False  # of Python 3.14: the help goes through a filter that shows no sequences

    def error(self, message: str) -> NoReturn:
        raise BadSetting(message, hint=self._help)

    def _check_value(self, action: argparse.Action, value: Any) -> None:  # noqa: ANN401  argparse's own
        """Raises BadSetting with the nearest choice."""
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            near = did_you_mean(str(value), map(str, action.choices or ()))
            raise BadSetting(str(error), hint=f"{near}{self._help}") from None

    def parse_known_args(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401  argparse's own
        """Reads arguments as argparse does: the parser of a command knows all its options.

        Words of a prompt may stand behind options; argparse takes those of one place only.
        """
        parsed, unknown = super().parse_known_args(*args, **options)
        if "words" in parsed and not any(word.startswith("-") for word in unknown):
            parsed.words, unknown = [*parsed.words, *unknown], []
        if unknown:
            word = next((word for word in unknown if word.startswith("-")), "").partition("=")[0]
            near = did_you_mean(word, self._option_string_actions) if word else ""
            raise BadSetting(f"unexpected argument {' '.join(unknown)}", hint=f"{near}{self._help}")
        return parsed, unknown

    @property
    def _help(self) -> str:
        return f"`{self.prog} --help` shows the arguments"

    def format_help(self) -> str:
        """The help, with [options] in the usage in place of more than a few."""
        if self.usage is None and len(self._option_string_actions) > FEW:
            named = [action for action in self._actions if not action.option_strings]
            words = [f"[{each.metavar}]" if each.nargs == "?" else str(each.metavar) for each in named]
            self.usage = " ".join(["%(prog)s [options]", *words])
        return super().format_help()

    def _print_message(self, message: str, file: object = None) -> None:
        """Help and version, through the filter like everything else."""
        say(message, end="")


# Words of other programs for commands and options.
_ELSEWHERE = {
    "--model": ("--pair", "--target"),
    **dict.fromkeys(("--draft-model", "--model-draft"), ("--draft",)),
    **dict.fromkeys(("--ctx-size", "--num-ctx"), ("--context",)),
    **dict.fromkeys(("--n-gpu-layers", "--num-gpu"), ("--gpu-layers",)),
    "--all": ("--unused", "--caches"),
    "show": ("info",),
    "search": ("pairs",),
    "create": ("pairs add",),
    **dict.fromkeys(("remove", "delete"), ("rm",)),
}
_DELETES = "rm"  # suggested where nothing else is near


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The question "did you mean" with the nearest known words; "" for none."""
    names = list(known)
    if not (near := [name for name in _ELSEWHERE.get(word, ()) if name.split()[0] in names]):
        found = [name for name in names if name.startswith(word)] or difflib.get_close_matches(word, names)
        near = sorted(found, key=_DELETES.__eq__)[:1]
    return f"did you mean {' or '.join(near)}? " if near else ""
