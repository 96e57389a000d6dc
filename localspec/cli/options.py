"""Command-line options that several commands share, and their parser."""

import argparse
import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

from localspec.cli.commands.completion import complete_with_pairs
from localspec.display import say
from localspec.errors import BadSetting
from localspec.files import text_of
from localspec.options import LOAD, OPTIONS, REPLY, Option, configured

WRONG_USAGE = 2  # the exit code for wrong arguments and settings, as in argparse; other errors exit with 1
Group: TypeAlias = argparse.ArgumentParser | argparse._ArgumentGroup
FEW = 12  # a usage line with more flags shows only [options]
T = TypeVar("T")
PAIR_HELP = "a pair by name, a GGUF file, or ORG/REPO:QUANT; `localspec pairs` lists the names"


def add_pair_argument(parser: argparse.ArgumentParser) -> None:
    complete_with_pairs(parser.add_argument("name", nargs="?", metavar="PAIR", help=PAIR_HELP))
    add_pair_options(parser)


def add_pair_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("models")
    add = group.add_mutually_exclusive_group().add_argument
    complete_with_pairs(add("-m", "--pair", metavar="NAME", help=PAIR_HELP))
    add("--target", metavar="FILE", help="a GGUF file, or ORG/REPO:QUANT, instead of a pair")
    add = group.add_mutually_exclusive_group().add_argument
    add("--draft", metavar="FILE", help="a GGUF file, ORG/REPO:QUANT, or lookup in the text, as the draft")
    add("--no-draft", action="store_true", help="load no draft model: plain decoding")
    group.add_argument("--pull", action="store_true", help="download the pair if it is not on this machine")
    group = parser.add_argument_group("memory and devices")
    for name in LOAD:
        if name != "parallel":  # left out, because these commands run one reply at a time
            add_option(group, name)


def add_reply_options(parser: argparse.ArgumentParser, **changes: Mapping[str, Any]) -> None:
    """Add the options of a reply; `changes`: arguments of `add_argument` to override, by option name."""
    group = parser.add_argument_group("reply")
    grammars = group.add_mutually_exclusive_group()
    for name in REPLY:
        is_grammar = name in ("json_schema", "regex", "grammar")
        add_option(grammars if is_grammar else group, name, **changes.get(name, {}))


def add_option(group: Group, name: str, **changes: Any) -> None:  # noqa: ANN401  as in argparse
    """Add the flag of an option that has one; `changes` override arguments of `add_argument`."""
    option = OPTIONS[name]
    if option.metavar is None:
        return
    flags = option.flags or (f"--{name.replace('_', '-')}",)
    about: dict[str, Any] = {"metavar": option.metavar, "type": partial(_read, option)}
    if option.kind is bool:
        about = {"action": argparse.BooleanOptionalAction}
    if option.repeats:
        about["action"] = "append"
    if option.kind is str and option.choices:
        about["choices"] = option.choices
    what = option.about + "; may be repeated" * option.repeats
    if option.switches:
        about |= {"nargs": "?", "const": True}
    group.add_argument(*flags, **{"dest": name, "help": what} | about | changes)
    if option.switches:
        group.add_argument(
            f"--no-{name}", dest=name, action="store_false", default=None, help=f"--{name}=off"
        )


def number(
    kind: type[float], least: float, most: float = math.inf, *, above: bool = False
) -> Callable[[str], Any]:
    """Return a function that reads a number from `least` to `most`; `above` excludes `least`."""
    return partial(_read, Option("", kind=kind, least=least, most=most, above=above))


def _read(option: Option, text: str) -> object:
    with suppress(ValueError, KeyError):
        if option.admits(value := option.read(text)):
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not {option.expected}")


def list_of(kind: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """Return a function that reads comma-separated values and drops empty and repeated values."""

    def read(text: str) -> tuple[T, ...]:
        return tuple(dict.fromkeys(kind(part.strip()) for part in text.split(",") if part.strip()))

    return read


def add_quiet_option(group: Group) -> None:
    what = "results and errors only: no notices, no progress"
    group.add_argument("-q", "--quiet", action="store_true", help=what)


def reply_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the reply options that the user gave, as keywords of `Session.stream`. Raises BadSetting."""
    from localspec.chat.request import request_from
    from localspec.sampler.sampling import Sampling

    values = given_of(arguments, REPLY)
    schema = values.get("json_schema")
    if "compact_json" in values and schema is None:
        raise BadSetting("--no-compact-json needs a schema", hint="leave it out, or add --json-schema")
    if schema is not None and not schema.lstrip().startswith("{"):
        values["json_schema"] = text_of(schema)
    if "grammar" in values:
        values["grammar"] = text_of(values["grammar"])
    request_from(values, Sampling())  # raises BadSetting before a model is loaded
    return values


def given_of(arguments: argparse.Namespace, options: Iterable[str]) -> dict[str, Any]:
    """Return the values that the user gave, by option name; several --lora are joined by commas."""
    given = {name: getattr(arguments, name, None) for name in options}
    if adapters := given.get("lora"):
        given["lora"] = ",".join(adapters)
    return {name: value for name, value in given.items() if value is not None}


def load_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the load options that the user gave, and the RPC servers of the flag or the settings."""
    servers = configured(rpc=arguments.rpc).get("rpc")
    return given_of(arguments, LOAD) | ({"rpc": servers} if servers else {})


def pair_of(arguments: argparse.Namespace) -> str | None:
    """Return the pair that PAIR or --pair names. Raises BadSetting if both are given."""
    named = [name for name in (vars(arguments).get("name"), arguments.pair) if name is not None]
    if len(named) > 1:
        raise BadSetting("PAIR and --pair both name a pair", hint="leave out one of them")
    return named[0] if named else None


class Parser(argparse.ArgumentParser):
    """A parser that raises BadSetting where argparse would exit, so that `program.run` prints every error."""

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401  as in argparse
        super().__init__(*args, **options)
        self._help = f"`{self.prog} --help` shows the arguments"
        self.allow_abbrev = False  # no shortened options, because new options could make them ambiguous
        self.color = False  # no colours, because `say` removes their escape sequences

    def error(self, message: str) -> NoReturn:
        raise BadSetting(message, hint=self._help)

    def _check_value(self, action: argparse.Action, value: Any) -> None:  # noqa: ANN401  as in argparse
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            near = did_you_mean(str(value), map(str, action.choices or ()))
            raise BadSetting(str(error), hint=f"{near}{self._help}") from None

    def parse_known_args(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401  as in argparse
        """Parse like argparse, but allow words of a prompt before and after an option. Raises BadSetting."""
        if args and args[0] and "--" not in args[0] and "--think" in self._option_string_actions:
            # Only a number is a value of --think, because the prompt may follow it.
            pairs = zip(args[0], [*args[0][1:], ""], strict=True)
            bare = (word == "--think" and not after.lstrip("-").isdecimal() for word, after in pairs)
            args = ([word + "=on" * is_bare for word, is_bare in zip(args[0], bare, strict=True)], *args[1:])
        parsed, unknown = super().parse_known_args(*args, **options)
        if "words" in parsed and not any(word.startswith("-") for word in unknown):
            parsed.words, unknown = [*parsed.words, *unknown], []
        if unknown:
            flag = next((word for word in unknown if word.startswith("-")), "").partition("=")[0]
            near = did_you_mean(flag, self._option_string_actions if flag else ())
            raise BadSetting(f"unexpected argument {' '.join(unknown)}", hint=f"{near}{self._help}")
        return parsed, unknown

    def format_help(self) -> str:
        """Return the help, with [options] in the usage line instead of more than `FEW` flags."""
        if self.usage is None and len(self._option_string_actions) > FEW:
            named = [action for action in self._actions if not action.option_strings]
            words = [f"[{each.metavar}]" if each.nargs == "?" else str(each.metavar) for each in named]
            self.usage = " ".join(["%(prog)s [options]", *words])
        return super().format_help()

    def _print_message(self, message: str, file: object = None) -> None:
        """Print help and version with `say`, which makes them safe for a terminal."""
        say(message, end="")


# Options and commands of other programs, each with the names in localspec that mean the same.
_ELSEWHERE = {
    "--model": ("--pair", "--target"),
    **dict.fromkeys(("--draft-model", "--model-draft"), ("--draft",)),
    **dict.fromkeys(("--ctx-size", "--num-ctx"), ("--context",)),
    **dict.fromkeys(("--n-gpu-layers", "--num-gpu"), ("--gpu-layers",)),
    "show": ("info",),
    "search": ("pairs",),
    "create": ("pairs add",),
    **dict.fromkeys(("remove", "delete"), ("rm",)),
}


_DELETING: Final = frozenset({"--caches", "--unused"})  # never suggest these, because they delete files


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the question "did you mean ...?" with the nearest known words; "" if none is near."""
    names = list(known)
    if not (near := [name for name in _ELSEWHERE.get(word, ()) if name.split()[0] in names]):
        found = [name for name in names if name.startswith(word)] or difflib.get_close_matches(word, names)
        near = [name for name in sorted(found, key="rm".__eq__) if name not in _DELETING][:1]
    return f"did you mean {' or '.join(near)}? " if near else ""
