"""Where localspec keeps things, and what the user has set: flags, then environment, then config.toml."""

import dataclasses
import difflib
import functools
import logging
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from localspec.errors import BadSetting
from localspec.files import expanded

_PREFIX = "LOCALSPEC_"
GONE_RULES = dict.fromkeys(("compare", "rejection"), "use block, which keeps more of a draft, or coupled")
_GONE = {
    "remember_replies": "replies are no longer remembered, `localspec rm --replies` deletes the old ones"
}
log = logging.getLogger(__name__)


def home() -> Path | None:
    """The one folder that LOCALSPEC_HOME puts everything into; None: the system's usual folders."""
    value = os.environ.get("LOCALSPEC_HOME")
    return expanded(value).absolute() if value else None


def config_dir() -> Path:
    """The folder of config.toml and of the user's own pairs. Not created here."""
    return home() or Path(platformdirs.user_config_path("localspec", appauthor=False))


def data_dir() -> Path:
    """The folder of what cannot be made again: model files, sessions, measurements. Not created here."""
    moved = home()
    return moved / "data" if moved else Path(platformdirs.user_data_path("localspec", appauthor=False))


def cache_dir() -> Path:
    """The folder of what can be thrown away at any time. Not created here."""
    moved = home()
    return moved / "cache" if moved else Path(platformdirs.user_cache_path("localspec", appauthor=False))


def config_file() -> Path:
    return config_dir() / "config.toml"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user has set. None: not set, so whoever needs the value decides."""

    pair: str | None = None
    context: int | None = None  # tokens
    gpu_layers: int | None = None  # target layers on the GPU
    kv_type: str | None = None  # of the target's cache: f16, q8_0, ...
    device: str | None = None  # of the target, as `localspec doctor` calls it
    split: str | None = None  # shares of several GPUs in the target's layers, as 3,1
    cpu_moe: int | None = None  # layers, from the first, whose experts stay on the CPU
    draft_device: str | None = None
    ignore_memory: bool | None = None  # load although the memory plan says that it does not fit
    flash_attn: str | None = None  # on, off or auto
    mmap: bool | None = None
    lora: str | None = None  # adapters of the target, as FILE,FILE:0.5
    rpc: str | None = None  # RPC servers, as HOST:PORT,HOST:PORT
    threads: int | None = None
    depth: str | None = None  # "auto" or a number
    rule: str | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    system: str | None = None
    remember_logits: bool | None = None  # log what targets hold for likely, to make drafts of

    @classmethod
    def load(cls, **flags: object) -> "Settings":
        """Flags over LOCALSPEC_* variables over config.toml; a flag that is None was not given.

        Raises BadSetting for a damaged file, a name that does not exist, or a value of the wrong type.
        """
        values = {name: given.value for name, given in given_settings().items()}
        values |= {name: _checked(name, value) for name, value in flags.items() if value is not None}
        return cls(**values)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Given:
    """A setting's value, and where it was given."""

    value: object
    source: str  # the file or the variable


def given_settings() -> dict[str, Given]:
    """What the file and the environment set, by name. Raises BadSetting as `Settings.load` does."""
    path = config_file()
    given = {name: Given(value, str(path)) for name, value in _from_file(path).items()}
    for name, value in _from_environment(os.environ).items():
        given[name] = Given(value, _PREFIX + name.upper())
    return {
        name: dataclasses.replace(found, value=_checked(name, found.value))
        for name, found in given.items()
        if not _is_gone(name, found)
    }


def _is_gone(name: str, given: Given) -> bool:
    """Whether this setting is no more; a sentence tells the user so."""
    why = GONE_RULES.get(str(given.value)) if name == "rule" else _GONE.get(name)
    if why:
        _warn(f"{name} = {given.value} in {given.source} is ignored: {why}")
    return bool(why)


@functools.cache  # once in a process
def _warn(sentence: str) -> None:
    log.warning(sentence)


_TYPES: dict[str, type] = {
    field.name: next(kind for kind in (bool, int, float, str) if f"{kind.__name__} |" in str(field.type))
    for field in dataclasses.fields(Settings)
}


_SWITCHES = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def _from_file(path: Path) -> dict[str, object]:
    try:
        return dict(tomllib.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSetting(f"{path} is not valid TOML: {error}", hint="repair or remove the file") from error
    except OSError as error:
        raise BadSetting(
            f"{path} cannot be read: {error.strerror}", hint="check the path and its permissions"
        ) from error


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    found: dict[str, object] = {}
    known = {_PREFIX + name.upper() for name in (*_TYPES, *_GONE)}
    for variable in sorted(environment.keys() - known):
        # Others may have variables of that beginning: only what looks mistyped is one.
        near = difflib.get_close_matches(variable, known, n=1, cutoff=0.92)
        if variable.startswith(_PREFIX) and near:
            raise BadSetting(f"there is no variable {variable}", hint=f"did you mean {near[0]}?")
    for name, kind in _TYPES.items():
        text = environment.get(_PREFIX + name.upper())
        if text is None:
            continue
        try:
            found[name] = _SWITCHES[text.lower()] if kind is bool else kind(text)
        except (ValueError, KeyError):
            raise BadSetting(
                f"{_PREFIX}{name.upper()}={text!r} is not {_article(kind)}",
                hint="correct or unset the variable",
            ) from None
    return found


def _checked(name: str, value: object) -> object:
    kind = _TYPES.get(name)
    if kind is None:
        near = difflib.get_close_matches(name, _TYPES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known settings: {', '.join(_TYPES)}"
        raise BadSetting(f"there is no setting called {name}", hint=hint)
    if name == "depth" and type(value) is int:
        return str(value)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise BadSetting(
            f"{name} = {value!r} is not {_article(kind)}",
            hint=f"correct it where it was given, or in {config_file()}",
        )
    return value


def _article(kind: type) -> str:
    return {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[kind]
