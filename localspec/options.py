"""Every option of a load and of a reply, localspec's folders, and the user's settings.

Keyword arguments, the command line, config.toml, the endpoint and the engine process read the options here.
"""

import difflib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeAlias, TypedDict, TypeVar, get_args, get_origin

import platformdirs

from localspec.errors import BadSetting, LocalspecError
from localspec.files import expanded, read_toml

Text: TypeAlias = str | None
Switch: TypeAlias = bool | None
Whole: TypeAlias = int | None
Number: TypeAlias = float | None
Rule = Literal["auto", "greedy", "block", "coupled"]
_PREFIX = "LOCALSPEC_"
_SWITCHES = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
MOST_LOGPROBS = 20  # other tokens told for each
MOST_DEPTH = 32  # draft tokens in a cycle
MOST_PARALLEL = 8  # replies at once


@dataclass(frozen=True, slots=True)
class Option:
    """The part of an option that its type does not say."""

    help: str
    metavar: str | None = None  # of its flag; "" for a switch, None: it has no flag
    least: float = -math.inf
    most: float = math.inf
    above: bool = False  # the least value itself is excluded
    flags: tuple[str, ...] = ()  # other than --NAME
    repeats: bool = False  # whether the flag may be given several times
    config: str | None = None  # its name in config.toml; "" is the same, None: it is not there
    kind: type | None = None  # bool, int, float or str; None: the reader checks the value
    choices: tuple[str, ...] = ()  # beside numbers, or alone
    default: str = ""  # what counts without a value, in words

    @property
    def about(self) -> str:
        """The help and the default."""
        return f"{self.help} (default: {self.default})" if self.default else self.help

    @property
    def expected(self) -> str:
        """The values that it takes, in words."""
        texts = " or ".join(filter(None, [", ".join(self.choices[:-1]), *self.choices[-1:]]))
        if self.kind is bool or self.kind is str:
            return texts or ("text" if self.kind is str else "true or false")
        number = "a whole number" if self.kind is int else "a number"
        if self.least > -math.inf:
            number += f" above {_figure(self.least)}" if self.above else f" of at least {_figure(self.least)}"
        if self.most < math.inf:
            number = number.replace("of at least", "from") + f" to {_figure(self.most)}"
        return f"{texts} or {number}" if texts else number

    def admits(self, value: object) -> bool:
        """Whether a value has this type and lies in this range."""
        if self.choices and isinstance(value, str):
            return value in self.choices
        if self.kind is None or self.kind is bool or self.kind is str:
            return self.kind is None or isinstance(value, self.kind)
        if isinstance(value, bool) or not isinstance(value, int if self.kind is int else (int, float)):
            return False
        inside = self.least < value if self.above else self.least <= value
        return inside and value <= self.most and (value < 2**64 if self.kind is int else math.isfinite(value))

    def read(self, text: str) -> Any:  # noqa: ANN401  of its kind
        """The value in a text, its range unchecked. Raises ValueError."""
        if self.kind is bool:
            return _SWITCHES[text.lower()]
        return text if self.kind in (None, str) or text in self.choices else self.kind(text)


def _own(value: str) -> str:
    return f"{value}, unless the model file sets it"


def _figure(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"


class LoadOptions(TypedDict, total=False):
    """How to load the models; missing values come from config.toml and LOCALSPEC_*, then from the memory plan."""

    context_length: Annotated[
        Whole,
        Option(
            "context length in tokens",
            "N",
            least=16,
            flags=("--context",),
            config="context",
            default="8,192 to 32,768, as memory allows",
        ),
    ]
    gpu_layers: Annotated[
        Whole, Option("target layers on the GPU", "N", least=0, config="", default="all that fit")
    ]
    kv_type: Annotated[
        Text,
        Option("type of the target's KV cache; another changes the text", "TYPE", config="", default="f16"),
    ]
    device: Annotated[
        Text,
        Option(
            "devices of the target; `localspec doctor` lists them",
            "DEVICE[,...]",
            config="",
            default="the GPUs, else the CPU",
        ),
    ]
    split: Annotated[
        Text, Option("how several GPUs share the target's layers", "X,Y", config="", default="by free memory")
    ]
    cpu_moe: Annotated[
        Whole,
        Option("keep the experts of N layers on the CPU", "N", least=0, config="", default="as memory needs"),
    ]
    draft_device: Annotated[Text, Option("device of the draft", "DEVICE", config="", default="the target's")]
    flash_attn: Annotated[
        Literal["on", "off", "auto"] | None,
        Option("flash attention: on, off, or auto (on where supported)", "MODE", config="", default="auto"),
    ]
    ignore_memory: Annotated[
        Switch,
        Option("load the models even if they do not fit by the memory plan", "", config="", default="no"),
    ]
    rpc: Annotated[
        Text,
        Option("llama.cpp RPC servers whose devices to use", "HOST:PORT[,...]", config="", default="none"),
    ]
    lora: Annotated[
        Text, Option("a LoRA adapter of the target", "FILE[:SCALE]", repeats=True, config="", default="none")
    ]
    threads: Annotated[
        Whole, Option("CPU threads", "N", least=1, config="", default="the fast physical cores")
    ]
    mmap: Annotated[Switch, Option("map files into memory, or read them", "", config="", default="map")]
    # auto: two where the target is on a GPU with room for them
    parallel: Annotated[
        int | Literal["auto"] | None, Option("replies at once, or auto", "N", least=1, most=MOST_PARALLEL)
    ]
    cache_gb: Annotated[
        Number,
        Option("gigabytes on disk for caches of earlier texts; 0: none", least=0, config="", default="8"),
    ]
    cache_folder: Annotated[Text, Option("the folder of these caches", config="", default="the cache folder")]


class ReplyOptions(TypedDict, total=False):
    """Keyword arguments of `run`, `stream` and `complete`; missing values take the model's defaults."""

    temperature: Annotated[
        Number,
        Option(
            "randomness; 0 always takes the likeliest token",
            "T",
            least=0,
            most=5,
            config="",
            default=_own("0.8"),
        ),
    ]
    top_k: Annotated[
        Whole,
        Option("keep the K likeliest tokens; 0 keeps all", "K", least=0, config="", default=_own("40")),
    ]
    top_p: Annotated[
        Number,
        Option(
            "keep the likeliest tokens that add up to P; 1 keeps all",
            "P",
            least=0,
            most=1,
            config="",
            default=_own("0.95"),
        ),
    ]
    min_p: Annotated[
        Number,
        Option(
            "drop tokens below P times the likeliest one; 0 drops none",
            "P",
            least=0,
            most=1,
            config="",
            default=_own("0.05"),
        ),
    ]
    repeat_penalty: Annotated[
        Number, Option("above 1 discourages repetition; 1 is off", "X", least=0, above=True)
    ]
    repeat_last_n: Annotated[Whole, Option("newest tokens that the penalties look at; -1: all", least=-1)]
    presence_penalty: Annotated[Number, Option("penalty for every token that is in the text", "X")]
    frequency_penalty: Annotated[Number, Option("penalty for each earlier occurrence of a token", "X")]
    logit_bias: Annotated[Mapping[int, float] | None, Option("added to the logits of tokens; -inf bans one")]
    # None: fresh randomness, even with a configured seed; the reply has the seed
    seed: Annotated[
        Whole,
        Option(
            "the same seed repeats a run on this machine",
            "N",
            least=0,
            most=2**64 - 1,
            config="",
            default="a random one",
        ),
    ]
    rule: Annotated[
        Rule,
        Option("acceptance rule: auto, greedy, block or coupled", "RULE", config="", default="auto"),
    ]
    # None: until the model ends, or the context is full; 0 only reads the prompt
    max_tokens: Annotated[
        Whole,
        Option(
            "end the reply after N tokens",
            "N",
            least=0,
            flags=("-n", "--max-tokens"),
            config="",
            default="no limit",
        ),
    ]
    stop: Annotated[str | Sequence[str] | None, Option("end the reply before TEXT", "TEXT", repeats=True)]
    depth: Annotated[
        int | Literal["auto"] | None,
        Option("draft tokens in a cycle, or auto", "N", least=0, most=MOST_DEPTH, config="", default="auto"),
    ]
    speculate: Annotated[bool, Option("False: plain decoding", default="True")]
    system: Annotated[
        Text, Option("the system message", "TEXT", flags=("-s", "--system"), config="", default="none")
    ]
    think: Annotated[Switch, Option("let a thinking model think, or ask for the answer at once", "")]
    template_arguments: Annotated[Mapping[str, Any] | None, Option("extra variables for the chat template")]
    overflow: Annotated[
        Literal["trim", "error"],
        Option(
            "drop the oldest messages of a conversation that outgrows the context, or raise", default="trim"
        ),
    ]
    json_schema: Annotated[
        Mapping[str, Any] | str | type | None,
        Option("the answer is JSON that follows this schema", "FILE|TEXT"),
    ]
    compact_json: Annotated[bool, Option("leave white space out of JSON, or allow it", "")]
    regex: Annotated[Text, Option("the whole answer matches this pattern", "PATTERN")]
    grammar: Annotated[Text, Option("the answer follows this grammar: Lark or GBNF", "FILE")]
    tools: Annotated[
        Sequence[Mapping[str, Any]] | None, Option("functions that the model may call, as OpenAI's")
    ]
    tool_choice: Annotated[
        str, Option("whether a tool may or must be called: auto, required, none, or the name of one")
    ]
    parallel_tool_calls: Annotated[bool, Option("False: at most one call in a reply", default="True")]
    background: Annotated[bool, Option("True: nobody waits for this reply; others beside it go first")]
    prediction: Annotated[Text, Option("the probable reply, as a file to edit: drafted from")]
    logprobs: Annotated[
        Whole, Option("report each token's probability and those of N others", least=0, most=MOST_LOGPROBS)
    ]


def _declared(options: type) -> dict[str, Option]:
    return {
        name: _typed(hint.__origin__, hint.__metadata__[0]) for name, hint in options.__annotations__.items()
    }


def _typed(hint: Any, option: Option) -> Option:  # noqa: ANN401  a type
    parts = [hint] if get_origin(hint) is Literal else get_args(hint) or [hint]
    choices = tuple(text for part in parts if get_origin(part) is Literal for text in get_args(part))
    kinds = [part for part in parts if part is not NoneType and get_origin(part) is not Literal] or [str]
    simple = len(kinds) == 1 and kinds[0] in (bool, int, float, str)
    return replace(option, kind=kinds[0] if simple else None, choices=choices)


LOAD, REPLY = _declared(LoadOptions), _declared(ReplyOptions)
OPTIONS = (
    {
        "pair": Option(
            "the pair where none is named", config="", kind=str, default="the one used or fetched last"
        )
    }
    | LOAD
    | REPLY
)
SETTINGS = {option.config or name: name for name, option in OPTIONS.items() if option.config is not None}


_F = TypeVar("_F", bound=Callable[..., Any])


def explains(options: Mapping[str, Option]) -> Callable[[_F], _F]:
    """Lists the options at the end of a docstring, where help() shows them."""
    lines = [f"        {name}: {option.about}" for name, option in options.items()]

    def explained(function: _F) -> _F:
        function.__doc__ = "\n".join([(function.__doc__ or "").rstrip(), "", "    Options:", *lines])
        return function

    return explained


def check(name: str, value: object, *, called: str = "", hint: str = "") -> None:
    """Raises BadSetting for a name that no option has, or a value that it does not take."""
    option = OPTIONS.get(name)
    if option is None:
        raise BadSetting(f"there is no option called {name}", hint=nearest(name, OPTIONS))
    if not option.admits(value):
        text = repr(value)
        shown = text if len(text) <= 80 else f"{text[:77]}..."
        raise BadSetting(
            f"{called or name} is {shown}, not {option.expected}", hint=hint or f"{name}: {option.about}"
        )


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint with the known name that an unknown one looks like, or with all of them."""
    names = list(known)
    if name in ("model", "model_path"):  # as other programs call it
        return "did you mean pair or target?"
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.65)
    return f"did you mean {near[0]}?" if near else f"there are: {', '.join(names)}"


def home() -> Path | None:
    """The folder in LOCALSPEC_HOME for everything; None: the system's usual folders."""
    value = os.environ.get("LOCALSPEC_HOME")
    return expanded(value).absolute() if value else None


def config_dir() -> Path:
    """The folder of config.toml and of the user's own pairs. Not created here."""
    return home() or Path(platformdirs.user_config_path("localspec", appauthor=False))


def data_dir() -> Path:
    """The folder of model files, conversations and measurements. Not created here."""
    moved = home()
    return moved / "data" if moved else Path(platformdirs.user_data_path("localspec", appauthor=False))


def cache_dir() -> Path:
    """The folder of files that may be deleted at any time. Not created here."""
    moved = home()
    return moved / "cache" if moved else Path(platformdirs.user_cache_path("localspec", appauthor=False))


def texts_dir(settings: Mapping[str, Any]) -> Path:
    """The folder of the caches of earlier texts. Not created here."""
    chosen = settings.get("cache_folder")
    return expanded(chosen).absolute() if chosen else cache_dir() / "texts"


def config_file() -> Path:
    return config_dir() / "config.toml"


@dataclass(frozen=True, slots=True)
class Given:
    """A setting's value and its source."""

    value: Any
    source: str  # the file or the variable


def configured(**flags: object) -> dict[str, Any]:
    """Options as the user set them: flags over LOCALSPEC_* variables over config.toml; None was not given.

    Raises BadSetting for a damaged file, a name that does not exist, or a value that an option does not take.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    for name, value in given.items():
        check(name, value)
    settings, mistakes = given_settings()
    if mistakes:
        raise mistakes[0]
    return {SETTINGS[name]: found.value for name, found in settings.items()} | given


def given_settings() -> tuple[dict[str, Given], list[BadSetting]]:
    """Values of the file and the environment, by setting, and the mistakes in them."""
    found, mistakes = dict[str, Given](), list[BadSetting]()
    try:
        path = config_file()
        found = {name: Given(value, str(path)) for name, value in read_toml(path).items()}
    except BadSetting as error:
        mistakes += [error] * (not isinstance(error.__cause__, FileNotFoundError))
    known = {_PREFIX + name.upper() for name in SETTINGS}
    for variable in sorted(os.environ):
        if variable in known:
            found[variable.removeprefix(_PREFIX).lower()] = Given(os.environ[variable], variable)
        elif variable.startswith(_PREFIX) and (near := difflib.get_close_matches(variable, known, 1, 0.92)):
            mistakes.append(BadSetting(f"there is no variable {variable}", hint=f"did you mean {near[0]}?"))
    given = dict[str, Given]()
    for name, one in found.items():
        try:
            given[name] = _checked(name, one)
        except BadSetting as error:
            mistakes.append(error)
    return given, mistakes


@contextmanager
def naming_settings() -> Iterator[None]:
    """An error inside it about the value of a setting says where the value is set."""
    try:
        yield
    except LocalspecError as error:
        for name, found in given_settings()[0].items():
            text = found.value if SETTINGS[name] in ("pair", *LOAD) else None
            place = _place_of(name, found)
            if isinstance(text, str) and text and text in str(error) and place not in str(error):
                error.args = (f"{error} ({place})",)
        raise


def _place_of(name: str, given: Given) -> str:
    return given.source if given.source.startswith(_PREFIX) else f"{name} in {given.source}"


def _checked(name: str, given: Given) -> Given:
    if name not in SETTINGS:
        raise BadSetting(f"there is no setting called {_place_of(name, given)}", hint=nearest(name, SETTINGS))
    option, value = OPTIONS[SETTINGS[name]], given.value
    if given.source.startswith(_PREFIX) or (option.choices and isinstance(value, str)):
        with suppress(ValueError, KeyError):
            value = option.read(value)
    check(SETTINGS[name], value, called=_place_of(name, given), hint=f"{name}: {option.about}")
    return Given(value, given.source)
