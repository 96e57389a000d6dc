"""Options that several commands share, declared once."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from localspec.cli.commands.completion import complete_with_pairs
from localspec.cli.fetching import take_from_hub
from localspec.cli.usage import WrongUsage, refuse_together
from localspec.errors import BadSetting

MEMORY_OPTIONS = (
    "context_length",
    "gpu_layers",
    "kv_type",
    "device",
    "split",
    "cpu_moe",
    "draft_device",
    "flash_attn",
    "ignore_memory",
    "rpc",
)
NOTHING_REMEMBERED = {"remember_logits": False}
RULES = ("auto", "greedy", "block", "coupled")


def add_pair_argument(parser: argparse.ArgumentParser) -> None:
    """The pair by name as the first argument, or by the options that other commands have for it."""
    named = parser.add_argument(
        "name", nargs="?", metavar="PAIR", help="a pair by name; `localspec pairs` lists them"
    )
    complete_with_pairs(named)
    add_pair_options(parser)


def add_pair_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("models")
    named = group.add_argument(
        "-m", "--pair", metavar="NAME", help="a pair by name; `localspec pairs` lists them"
    )
    complete_with_pairs(named)
    group.add_argument("--target", metavar="FILE", help="a GGUF file, or ORG/REPO:QUANT, instead of a pair")
    group.add_argument(
        "--draft", metavar="FILE", help="what drafts for it, named likewise, or lookup: from the text alone"
    )
    group.add_argument("--no-draft", action="store_true", help="load no draft model: plain decoding")
    add_memory_options(group)
    add_lora_option(group)
    group.add_argument("--pull", action="store_true", help="fetch the pair if it is not here")
    group.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: fast physical cores)")
    group.add_argument(
        "--mmap", action=argparse.BooleanOptionalAction, help="map files into memory, or read them"
    )


def add_lora_option(group: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    group.add_argument("--lora", action="append", metavar="FILE[:SCALE]", help="a LoRA adapter of the target")


def add_memory_options(group: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    """What the memory plan heeds."""
    group.add_argument(
        "--context", type=int, metavar="N", dest="context_length", help="context length in tokens"
    )
    group.add_argument("--gpu-layers", type=int, metavar="N", help="target layers on the GPU (default: all)")
    group.add_argument("--kv-type", metavar="TYPE", help="of the target's cache (default: f16)")
    group.add_argument(
        "--device", metavar="DEVICE[,...]", help="where the target goes; see `localspec doctor`"
    )
    group.add_argument("--split", metavar="X,Y", help="shares of several GPUs in the target's layers")
    group.add_argument("--cpu-moe", type=int, metavar="N", help="keep the experts of N layers on the CPU")
    group.add_argument("--draft-device", metavar="DEVICE", help="where the draft goes (default: the same)")
    group.add_argument(
        "--flash-attn", choices=("on", "off", "auto"), help="flash attention (default: auto, where it is)"
    )
    group.add_argument(
        "--ignore-memory",
        action="store_true",
        default=None,
        help="load the models although the memory plan says that they do not fit",
    )
    add_rpc_option(group)


def add_rpc_option(parser: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    parser.add_argument(
        "--rpc", metavar="HOST:PORT[,...]", help="llama.cpp's RPC servers, to use their devices"
    )


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
    group.add_argument(
        "--temperature", type=temperature, metavar="T", help="0 always takes the likeliest token"
    )
    group.add_argument("--top-k", type=int, metavar="K", help="keep the K likeliest tokens; 0 keeps all")
    group.add_argument("--top-p", type=float, metavar="P", help="keep the likeliest tokens that add up to P")
    group.add_argument("--min-p", type=float, metavar="P", help="drop tokens below P times the likeliest one")
    group.add_argument("--repeat-penalty", type=float, metavar="X", help="above 1 discourages repetition")
    group.add_argument(
        "--presence-penalty", type=float, metavar="X", help="taken off every token that is in the text"
    )
    group.add_argument(
        "--frequency-penalty", type=float, metavar="X", help="taken off for each time that it is"
    )
    group.add_argument(
        "--seed", type=int, metavar="N", help="reproduces a run on the same machine and settings"
    )
    group.add_argument(
        "--rule", type=_rule, choices=RULES, metavar="RULE", help=f"{', '.join(RULES)} (default: auto)"
    )
    group.add_argument(
        "-n", "--max-tokens", type=int, metavar="N", help=f"end the reply after N tokens (default: {limit})"
    )
    group.add_argument(
        "--stop", action="append", metavar="TEXT", help="end the reply before TEXT; may be repeated"
    )
    group.add_argument("--depth", type=depth, metavar="N", help="draft tokens in a cycle, or auto (default)")
    group.add_argument("-s", "--system", metavar="TEXT", help="the system message")
    group.add_argument(
        "--json-schema", metavar="FILE|TEXT", help="the answer is JSON that this schema describes"
    )
    group.add_argument(
        "--no-compact-json",
        action="store_false",
        dest="compact_json",
        default=None,
        help="let the model put white space into JSON",
    )
    group.add_argument("--regex", metavar="PATTERN", help="the answer matches this pattern as a whole")
    group.add_argument("--grammar", metavar="FILE", help="the answer belongs to this grammar: Lark or GBNF")
    think = group.add_mutually_exclusive_group()
    think.add_argument("--think", action="store_true", default=None, help="let a thinking model think")
    think.add_argument("--no-think", action="store_false", dest="think", help="ask it for the answer at once")


def add_quiet_option(group: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    group.add_argument(
        "-q", "--quiet", action="store_true", help="results and errors only: no notes, no progress"
    )


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
        ("--json-schema", values["json_schema"]),
        ("--regex", values["regex"]),
        ("--grammar", values["grammar"]),
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
    return {
        **{name: value for name, value in values.items() if value is not None},
        "speculate": not arguments.no_draft,
    }


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
