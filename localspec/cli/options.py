"""Options that several commands share, declared once."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from localspec.cli.commands.completion import complete_with_pairs
from localspec.cli.fetching import take_from_hub
from localspec.cli.usage import WrongUsage, refuse_together
from localspec.errors import BadSetting

MEMORY_OPTIONS = (
    *("context_length", "gpu_layers", "kv_type", "device", "split", "cpu_moe", "draft_device", "flash_attn"),
    *("ignore_memory", "rpc"),
)
NOTHING_REMEMBERED = {"remember_logits": False}
RULES = ("auto", "greedy", "block", "coupled")


Group: TypeAlias = argparse.ArgumentParser | argparse._ArgumentGroup
_PAIR_HELP = "a pair by name; `localspec pairs` lists them"


def add_pair_argument(parser: argparse.ArgumentParser) -> None:
    """The pair by name as the first argument, or by the options that other commands have for it."""
    complete_with_pairs(parser.add_argument("name", nargs="?", metavar="PAIR", help=_PAIR_HELP))
    add_pair_options(parser)


def add_pair_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("models")
    add = group.add_argument
    complete_with_pairs(add("-m", "--pair", metavar="NAME", help=_PAIR_HELP))
    add("--target", metavar="FILE", help="a GGUF file, or ORG/REPO:QUANT, instead of a pair")
    add("--draft", metavar="FILE", help="the draft, named the same way; lookup drafts from the text alone")
    add("--no-draft", action="store_true", help="load no draft model: plain decoding")
    add_memory_options(group)
    add("--pull", action="store_true", help="fetch the pair if it is not here")
    add("--threads", type=int, metavar="N", help="CPU threads (default: fast physical cores)")
    add("--mmap", action=argparse.BooleanOptionalAction, help="map files into memory, or read them")


def add_memory_options(group: Group) -> None:
    """Options that the memory plan reads."""
    add = group.add_argument
    add("--context", type=int, metavar="N", dest="context_length", help="context length in tokens")
    add("--gpu-layers", type=int, metavar="N", help="target layers on the GPU (default: all)")
    add("--kv-type", metavar="TYPE", help="type of the target's KV cache (default: f16)")
    add("--device", metavar="DEVICE[,...]", help="devices of the target; `localspec doctor` lists them")
    add("--split", metavar="X,Y", help="how several GPUs share the target's layers")
    add("--cpu-moe", type=int, metavar="N", help="keep the experts of N layers on the CPU")
    add("--draft-device", metavar="DEVICE", help="device of the draft (default: the target's)")
    modes = ("on", "off", "auto")
    add("--flash-attn", choices=modes, help="flash attention (default: auto, on where supported)")
    what = "load the models even if they do not fit by the memory plan"
    add("--ignore-memory", action="store_true", default=None, help=what)
    add_rpc_option(group)
    add(
        "--lora",
        action="append",
        metavar="FILE[:SCALE]",
        help="a LoRA adapter of the target; may be repeated",
    )


def add_rpc_option(group: Group) -> None:
    group.add_argument("--rpc", metavar="HOST:PORT[,...]", help="llama.cpp RPC servers whose devices to use")


def _rule(text: str) -> str:
    from localspec.settings import GONE_RULES

    if text in GONE_RULES:
        raise argparse.ArgumentTypeError(f"{text} is gone: {GONE_RULES[text]}")
    return text


def add_reply_options(
    parser: argparse.ArgumentParser, temperature: Callable[[str], object] = float, limit: str = "no limit"
) -> None:
    """Temperature and limit: what reads the first, and the default of the second in words."""
    group = parser.add_argument_group("reply")
    add = group.add_argument
    add("--temperature", type=temperature, metavar="T", help="0 always takes the likeliest token")
    add("--top-k", type=int, metavar="K", help="keep the K likeliest tokens; 0 keeps all")
    add("--top-p", type=float, metavar="P", help="keep the likeliest tokens that add up to P")
    add("--min-p", type=float, metavar="P", help="drop tokens below P times the likeliest one")
    add("--repeat-penalty", type=float, metavar="X", help="above 1 discourages repetition")
    add("--presence-penalty", type=float, metavar="X", help="penalty for every token that is in the text")
    add("--frequency-penalty", type=float, metavar="X", help="penalty for each earlier occurrence of a token")
    add("--seed", type=int, metavar="N", help="repeats a run on the same machine with the same settings")
    add("--rule", type=_rule, choices=RULES, metavar="RULE", help=f"{', '.join(RULES)} (default: auto)")
    most = f"end the reply after N tokens (default: {limit})"
    add("-n", "--max-tokens", type=int, metavar="N", help=most)
    add("--stop", action="append", metavar="TEXT", help="end the reply before TEXT; may be repeated")
    add("--depth", type=depth, metavar="N", help="draft tokens in a cycle, or auto (default)")
    add("-s", "--system", metavar="TEXT", help="the system message")
    add("--json-schema", metavar="FILE|TEXT", help="the answer is JSON that follows this schema")
    loose = "let the model put white space into JSON"
    add("--no-compact-json", action="store_false", dest="compact_json", default=None, help=loose)
    add("--regex", metavar="PATTERN", help="the whole answer matches this pattern")
    add("--grammar", metavar="FILE", help="the answer follows this grammar: Lark or GBNF")
    think = group.add_mutually_exclusive_group()
    think.add_argument("--think", action="store_true", default=None, help="let a thinking model think")
    think.add_argument("--no-think", action="store_false", dest="think", help="ask for the answer at once")


def add_quiet_option(group: Group) -> None:
    what = "results and errors only: no notes, no progress"
    group.add_argument("-q", "--quiet", action="store_true", help=what)


def add_report_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print one JSON object instead of the report")
    add_drawing_options(group, "the bars")


def add_drawing_options(group: argparse._ArgumentGroup, what: str) -> None:
    group.add_argument("--svg", type=Path, metavar="FILE", help=f"also draw {what} into an SVG file")
    group.add_argument("--png", type=svg_instead, help=argparse.SUPPRESS)


def svg_instead(path: str) -> NoReturn:
    raise WrongUsage("PNG files are no longer drawn", hint=f"--svg {Path(path).with_suffix('.svg')}")


def reply_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the user set, as keyword arguments of `Session.stream`. Raises BadSetting."""
    from localspec.chat.options import ReplyOptions

    values = {name: getattr(arguments, name, None) for name in ReplyOptions.__annotations__}
    refuse_together(
        *((f"--{name.replace('_', '-')}", values[name]) for name in ("json_schema", "regex", "grammar"))
    )
    if values["compact_json"] is False and values["json_schema"] is None:
        raise WrongUsage("--no-compact-json goes with --json-schema", hint="leave it out, or add a schema")
    schema = values["json_schema"]
    if schema is not None and not schema.lstrip().startswith("{"):
        values["json_schema"] = text_of(schema)
    if values["grammar"] is not None:
        values["grammar"] = text_of(values["grammar"])
    return {name: value for name, value in values.items() if value is not None}


def text_of(path: str) -> str:
    """The text of a file that an option names."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or "it is not UTF-8 text"
        raise BadSetting(f"{path} cannot be read: {reason}", hint="give the path of a text file") from error


def load_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the user set, as keyword arguments of `localspec.load`; models of the Hub are fetched if that is wanted.

    Raises WrongUsage, and what fetching raises.
    """
    pair = pair_of(arguments)
    refuse_together(("--draft", arguments.draft), ("--no-draft", arguments.no_draft or None))
    refuse_together((f"the pair {pair}", pair), ("--target", arguments.target))
    names = ("target", "draft", *MEMORY_OPTIONS, "threads", "mmap")
    values = {"pair": pair, **{name: getattr(arguments, name) for name in names}}
    if on_hub := arguments.target or (pair and "/" in pair and pair):
        values |= take_from_hub(on_hub, arguments.draft, pull=arguments.pull)
    values["lora"] = ",".join(arguments.lora) if arguments.lora else None
    given = {name: value for name, value in values.items() if value is not None}
    return given | {"speculate": not arguments.no_draft}


def pair_of(arguments: argparse.Namespace) -> str | None:
    """The pair from whichever place it was named in; not every command has both."""
    named = [name for name in (vars(arguments).get("name"), arguments.pair) if name is not None]
    if len(named) > 1:
        raise WrongUsage("the pair was named twice", hint=f"localspec {arguments.command} {named[0]}")
    return named[0] if named else None


def depth(text: str) -> int | str:
    try:
        return "auto" if text == "auto" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor auto") from None
