"""Every option of a load and of a reply, localspec's folders, and the user's settings.

Keyword arguments, the command line, config.toml, the endpoint and the engine process share these options.
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
_ON, _OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_SWITCHES = dict.fromkeys(_ON, True) | dict.fromkeys(_OFF, False)
MOST_LOGPROBS = 20  # largest number of alternatives that `logprobs` can list for each token
MOST_DEPTH = 32
MOST_PARALLEL = 8  # largest number of replies at once
MOST_THREADS = 512  # GGML_MAX_N_THREADS: with more threads ggml writes past the end of its tables
# Limits that keep the sampler's sum of penalties over a whole context finite in float32
MOST_LOGIT = 1e15
MOST_FACTOR = 1e9


@dataclass(frozen=True, slots=True)
class Option:
    """The help text of an option, its flags, and the values that it accepts."""

    help: str
    metavar: str | None = None  # the value's name in the help; "": the flag is a switch; None: no flag
    least: float = -math.inf
    most: float = math.inf
    above: bool = False  # whether `least` itself is excluded
    flags: tuple[str, ...] = ()  # the flags, by default --NAME
    repeats: bool = False  # whether the flag may be given several times
    kind: type | None = None  # bool, int, float or str; None: the code that uses the value checks it
    choices: tuple[str, ...] = ()  # the accepted words; with `kind` int or float, numbers are accepted, too
    switches: bool = False  # whether true and false are accepted, besides numbers
    default: str = ""  # the default value in words; only options with a default are settings of config.toml

    @property
    def about(self) -> str:
        """The help text, followed by the default."""
        return f"{self.help} (default: {self.default})" if self.default else self.help

    @property
    def expected(self) -> str:
        """The accepted values, in words."""
        texts = " or ".join(filter(None, [", ".join(self.choices[:-1]), *self.choices[-1:]]))
        texts = "true, false" if self.switches else texts
        if self.kind is bool or self.kind is str:
            return texts or ("text" if self.kind is str else "true or false")
        number = "a whole number" if self.kind is int else "a number"
        least, most = (n if isinstance(n, int) else f"{n:g}" for n in (self.least, self.most))
        if self.least > -math.inf:
            number += f" above {least}" if self.above else f" of at least {least}"
        if self.most < math.inf:
            number = number.replace("of at least", "from") + f" to {most}"
        return f"{texts} or {number}" if texts else number

    def admits(self, value: object) -> bool:
        """Return whether the option accepts a value."""
        if self.choices and isinstance(value, str):
            return value in self.choices
        if self.kind is None or self.kind is bool or self.kind is str:
            return self.kind is None or isinstance(value, self.kind)
        if isinstance(value, bool) or not isinstance(value, int if self.kind is int else (int, float)):
            return self.switches and isinstance(value, bool)
        inside = self.least < value if self.above else self.least <= value
        return inside and value <= self.most and value < (2**64 if self.kind is int else math.inf)

    def read(self, text: str) -> Any:  # noqa: ANN401  a value of its kind
        """Convert the text of a value, without a check of its range. Raises ValueError or KeyError."""
        if self.kind is bool or (self.switches and text.lower() in _SWITCHES and not text.isdecimal()):
            return _SWITCHES[text.lower()]
        return text if self.kind in (None, str) or text in self.choices else self.kind(text)


def _own(value: str) -> str:
    return f"{value}, unless the model file sets it"


class LoadOptions(TypedDict, total=False):
    """Options of a load. A missing option comes from LOCALSPEC_*, config.toml or the memory plan."""

    context_length: Annotated[
        Whole,
        Option(
            "context length",
            "N",
            16,
            flags=("--context",),
            default="8,192 to 32,768 tokens, as memory allows",
        ),
    ]
    gpu_layers: Annotated[Whole, Option("target layers on the GPU", "N", 0, default="all that fit")]
    kv_type: Annotated[
        Text, Option("type of the target's KV cache; it affects the text", "TYPE", default="f16")
    ]
    device: Annotated[
        Text, Option("devices of the target; see `doctor`", "DEVICE[,...]", default="the GPUs, else the CPU")
    ]
    split: Annotated[
        Text, Option("how several GPUs share the target's layers", "X,Y", default="by free memory")
    ]
    cpu_moe: Annotated[
        Whole, Option("keep the experts of N layers on the CPU", "N", 0, default="as memory needs")
    ]
    draft_device: Annotated[Text, Option("device of the draft", "DEVICE", default="the target's")]
    flash_attn: Annotated[
        Literal["on", "off", "auto"] | None,
        Option(
            "flash attention: on, off, or auto (on if supported, unless it was measured to be slow)",
            "MODE",
            default="auto",
        ),
    ]
    ignore_memory: Annotated[Switch, Option("load models that the memory plan rejects", "", default="no")]
    rpc: Annotated[
        Text, Option("llama.cpp RPC servers whose devices to use", "HOST:PORT[,...]", default="none")
    ]
    mmproj: Annotated[
        Text, Option("the projector for images, or none", "FILE", default="the one beside the target")
    ]
    lora: Annotated[
        Text, Option("a LoRA adapter of the target", "FILE[:SCALE]", repeats=True, default="none")
    ]
    threads: Annotated[Whole, Option("CPU threads", "N", 1, MOST_THREADS, default="the fast physical cores")]
    mmap: Annotated[Switch, Option("map files into memory, or read them", "", default="map")]
    # auto: two replies if the target is on a GPU that has memory for two
    parallel: Annotated[
        int | Literal["auto"] | None, Option("number of replies at once, or auto", "N", 1, MOST_PARALLEL)
    ]
    cache_gb: Annotated[
        Number, Option("limit of prompt caches on disk, in gigabytes", least=0, most=10**6, default="8")
    ]
    cache: Annotated[
        Literal["conversations", "all"] | None,
        Option("which prompt caches go to disk: of stored conversations, or all", default="conversations"),
    ]
    read_ahead: Annotated[
        Switch, Option("prefill the beginning of the next prompt while nobody waits", "", default="yes")
    ]


class ReplyOptions(TypedDict, total=False):
    """Keyword arguments of `run`, `stream` and `complete`. A missing argument has the model's default."""

    temperature: Annotated[
        Number, Option("randomness; 0 always takes the likeliest token", "T", 0, 5, default=_own("0.8"))
    ]
    top_k: Annotated[Whole, Option("keep the K likeliest tokens; 0 keeps all", "K", 0, default=_own("40"))]
    top_p: Annotated[
        Number, Option("keep the likeliest tokens that add up to P; 1: all", "P", 0, 1, default=_own("0.95"))
    ]
    min_p: Annotated[
        Number,
        Option("drop tokens below P times the likeliest one; 0: none", "P", 0, 1, default=_own("0.05")),
    ]
    repeat_penalty: Annotated[
        Number, Option("above 1 discourages repetition; 1 is off", "X", 1 / MOST_FACTOR, MOST_FACTOR)
    ]
    repeat_last_n: Annotated[Whole, Option("number of last tokens that penalties count; -1: all", least=-1)]
    presence_penalty: Annotated[
        Number, Option("penalty for every token that is in the text", "X", -MOST_LOGIT, MOST_LOGIT)
    ]
    frequency_penalty: Annotated[Number, Option("penalty for each occurrence", "X", -MOST_LOGIT, MOST_LOGIT)]
    logit_bias: Annotated[Mapping[int, float] | None, Option("added to logits by token; -inf bans a token")]
    # seed=None: a random seed, even if config.toml sets a seed
    seed: Annotated[
        Whole, Option("a seed repeats a reply on this machine", "N", 0, 2**64 - 1, default="a random one")
    ]
    rule: Annotated[Rule, Option("acceptance rule: auto, greedy, block or coupled", "RULE", default="auto")]
    # max_tokens=None: reply until the model ends or the context is full; max_tokens=0: prefill only
    max_tokens: Annotated[
        Whole,
        Option("end the reply after N tokens", "N", 0, flags=("-n", "--max-tokens"), default="no limit"),
    ]
    stop: Annotated[str | Sequence[str] | None, Option("end the reply before TEXT", "TEXT", repeats=True)]
    depth: Annotated[
        int | Literal["auto"] | None,
        Option("draft depth in tokens, or auto", "N", 0, MOST_DEPTH, default="auto"),
    ]
    speculate: Annotated[bool, Option("False: plain decoding")]
    system: Annotated[Text, Option("the system message", "TEXT", flags=("-s", "--system"), default="none")]
    # think=0 is a budget of 0 tokens, not the same as think=False
    think: Annotated[
        bool | int | None,
        Option("let a thinking model think, for at most N tokens, or not", "N", 0, default="the template's"),
    ]
    think_message: Annotated[str, Option("ends the reasoning when its budget is spent")]
    template_arguments: Annotated[Mapping[str, Any] | None, Option("extra variables for the chat template")]
    overflow: Annotated[
        Literal["trim", "error"], Option("trim: drop the oldest messages that do not fit; error: raise")
    ]
    json_schema: Annotated[
        Mapping[str, Any] | str | type | None,
        Option("the answer is JSON that follows this schema", "FILE|TEXT"),
    ]
    compact_json: Annotated[bool, Option("leave white space out of JSON, or allow it anywhere", "")]
    regex: Annotated[Text, Option("the whole answer matches this pattern", "PATTERN")]
    grammar: Annotated[Text, Option("the answer follows this grammar: Lark or GBNF", "FILE")]
    tools: Annotated[Sequence[Mapping[str, Any]] | None, Option("functions for the model, in OpenAI's form")]
    tool_choice: Annotated[str, Option("auto, required, none, or the name of the tool to call")]
    parallel_tool_calls: Annotated[bool, Option("False: at most one call in a reply")]
    json_calls: Annotated[
        bool, Option("read calls that a reply writes as plain JSON, not in the model's form", default="yes")
    ]
    prediction: Annotated[Text, Option("the probable reply, as a file to edit; draft from it")]
    logprobs: Annotated[
        Whole, Option("report the probabilities of each token and N others", least=0, most=MOST_LOGPROBS)
    ]
    post_sampling_probs: Annotated[bool, Option("report the probabilities after the sampler chain")]


def _declared(options: type) -> dict[str, Option]:
    hints = options.__annotations__.items()
    return {name: _typed(hint.__origin__, hint.__metadata__[0]) for name, hint in hints}


def _typed(hint: Any, option: Option) -> Option:  # noqa: ANN401
    parts = [hint] if get_origin(hint) is Literal else get_args(hint) or [hint]
    choices = tuple(text for part in parts if get_origin(part) is Literal for text in get_args(part))
    kinds = [part for part in parts if part is not NoneType and get_origin(part) is not Literal] or [str]
    switches = kinds == [bool, int]
    simple = switches or (len(kinds) == 1 and kinds[0] in (bool, int, float, str))
    return replace(option, kind=kinds[-1] if simple else None, choices=choices, switches=switches)


LOAD, REPLY = _declared(LoadOptions), _declared(ReplyOptions)
_PAIR = Option("the pair if none is named", kind=str, default="the one used or downloaded last")
_STOP_LOOPS = Option("end a reply that repeats itself (chat and run)", kind=bool, default="yes")
_EMBED = Option("the model for embeddings (serve and Python)", kind=str, default="none")
_RERANK = Option("the model that scores documents (serve and Python)", kind=str, default="none")
_LLAMA = Option("a folder with an official build of llama.cpp", kind=str, default="llama-cpp-python's own")
_OTHERS = {"stop_loops": _STOP_LOOPS, "embed": _EMBED, "rerank": _RERANK, "llama": _LLAMA}
OPTIONS = {"pair": _PAIR} | _OTHERS | LOAD | REPLY
_NAMED = {(o.flags or (name,))[-1].lstrip("-").replace("-", "_"): name for name, o in OPTIONS.items()}
# The option of each setting in config.toml. A setting has the name of its option's flag.
SETTINGS = {setting: name for setting, name in _NAMED.items() if OPTIONS[name].default}
_F = TypeVar("_F", bound=Callable[..., Any])


def explains(options: Mapping[str, Option]) -> Callable[[_F], _F]:
    """Return a decorator that adds the options to the end of a docstring, where help() shows them."""
    lines = [f"        {name}: {option.about}" for name, option in options.items()]

    def explained(function: _F) -> _F:
        function.__doc__ = "\n".join([(function.__doc__ or "").rstrip(), "", "    Options:", *lines])
        return function

    return explained


def check(name: str, value: object, *, called: str = "", hint: str = "") -> None:
    """Raise BadSetting for an unknown option, or a value that the option does not accept."""
    option = OPTIONS.get(name)
    if option is None:
        raise BadSetting(f"there is no option called {name}", hint=nearest(name, OPTIONS))
    if not option.admits(value):
        shown = text if len(text := repr(value)) <= 80 else f"{text[:77]}..."
        what = f"{called or name} is {shown}, not {option.expected}"
        raise BadSetting(what, hint=hint or f"{name}: {option.about}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint with the known name nearest to an unknown one, or with all names."""
    names = list(known)
    if name in ("model", "model_path"):  # the names for `pair` in other programs
        return "did you mean pair or target?"
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.65)
    return f"did you mean {near[0]}?" if near else f"choose one of: {', '.join(names)}"


def _folder(name: str, usual: Callable[..., Path]) -> Path:
    """Return the folder `name` in LOCALSPEC_HOME; the system's `usual` folder if that variable is not set."""
    home = os.environ.get("LOCALSPEC_HOME")
    return expanded(home).absolute() / name if home else usual("localspec", appauthor=False)


def config_dir() -> Path:
    """Return the folder of config.toml and of the user's own pairs."""
    return _folder("", platformdirs.user_config_path)


def data_dir() -> Path:
    """Return the folder of model files, conversations and measurements."""
    return _folder("data", platformdirs.user_data_path)


def cache_dir() -> Path:
    """Return the folder of files that may be deleted at any time."""
    return _folder("cache", platformdirs.user_cache_path)


def texts_dir() -> Path:
    """Return the folder of prompt caches on disk."""
    return cache_dir() / "texts"


def config_file() -> Path:
    return config_dir() / "config.toml"


@dataclass(frozen=True, slots=True)
class Given:
    """A setting's value and its source."""

    value: Any
    source: str  # the path of config.toml, or the name of a LOCALSPEC_* variable

    def place(self, name: str) -> str:
        return self.source if self.source.startswith(_PREFIX) else f"{name} in {self.source}"


def configured(**flags: object) -> dict[str, Any]:
    """Return the user's options. Flags override LOCALSPEC_* variables; variables override config.toml.

    A flag of None is ignored. Raises BadSetting for a damaged file, an unknown name, or a value that the
    option does not accept.
    """
    chosen = {name: value for name, value in flags.items() if value is not None}
    for name, value in chosen.items():
        check(name, value)
    settings, mistakes = given_settings()
    if mistakes:
        raise mistakes[0]
    return {SETTINGS[name]: found.value for name, found in settings.items()} | chosen


def given_settings() -> tuple[dict[str, Given], list[BadSetting]]:
    """Return the settings of config.toml and the environment by name, and the mistakes in them."""
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
            mistakes.append(BadSetting(f"{variable} is not a setting", hint=f"did you mean {near[0]}?"))
    checked = dict[str, Given]()
    for name, one in found.items():
        try:
            checked[name] = _checked(name, one)
        except BadSetting as error:
            mistakes.append(error)
    return checked, mistakes


@contextmanager
def naming_settings() -> Iterator[None]:
    """Add the source of a setting (config.toml or a variable) to an error that quotes the setting's value."""
    try:
        yield
    except LocalspecError as error:
        for name, found in given_settings()[0].items():
            text = found.value if SETTINGS[name] in ("pair", *LOAD) else None
            place = found.place(name)
            if isinstance(text, str) and text and text in str(error) and place not in str(error):
                error.args = (f"{error} ({place})",)
        raise


def _checked(name: str, given: Given) -> Given:
    if name not in SETTINGS:
        raise BadSetting(f"there is no setting called {given.place(name)}", hint=nearest(name, SETTINGS))
    option, value = OPTIONS[SETTINGS[name]], given.value
    if given.source.startswith(_PREFIX) or (option.choices and isinstance(value, str)):
        with suppress(ValueError, KeyError):
            value = option.read(value)
    check(SETTINGS[name], value, called=given.place(name), hint=f"{name}: {option.about}")
    return Given(value, given.source)
