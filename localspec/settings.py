"""localspec's folders, and the user's settings: flags, then environment, then config.toml."""

import difflib
import functools
import logging
import os
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from localspec.errors import BadSetting
from localspec.files import expanded
from localspec.options import GONE_RULES, OPTIONS, check, nearest

_PREFIX = "LOCALSPEC_"
_GONE = {
    "remember_replies": "replies are no longer remembered, `localspec rm --replies` deletes the old ones"
}
log = logging.getLogger(__name__)


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


def config_file() -> Path:
    return config_dir() / "config.toml"


SETTINGS = {option.config or name: name for name, option in OPTIONS.items() if option.config is not None}


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
    return {SETTINGS[name]: found.value for name, found in given_settings().items()} | given


def given_settings() -> dict[str, Given]:
    """Values of the file and the environment, by setting. Raises BadSetting as `configured` does."""
    path = config_file()
    given = {name: Given(value, str(path)) for name, value in _from_file(path).items()}
    for variable, text in _variables().items():
        given[variable.removeprefix(_PREFIX).lower()] = Given(text, variable)
    return {name: _checked(name, found) for name, found in given.items() if not _is_gone(name, found)}


def _is_gone(name: str, given: Given) -> bool:
    """Whether this setting was removed; prints a sentence about it."""
    why = GONE_RULES.get(str(given.value)) if name == "rule" else _GONE.get(name)
    if why:
        _warn(f"{name} = {given.value} in {given.source} is ignored: {why}")
    return bool(why)


@functools.cache  # once in a process
def _warn(sentence: str) -> None:
    log.warning(sentence)


def _from_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSetting(f"{path} is not valid TOML: {error}", hint="repair or remove the file") from error
    except OSError as error:
        raise BadSetting(
            f"{path} cannot be read: {error.strerror}", hint="check the path and its permissions"
        ) from error


def _variables() -> dict[str, str]:
    """The variables that are settings. Raises BadSetting for one that looks mistyped."""
    known = {_PREFIX + name.upper() for name in (*SETTINGS, *_GONE)}
    for variable in sorted(os.environ.keys() - known):
        near = difflib.get_close_matches(variable, known, n=1, cutoff=0.92)
        if variable.startswith(_PREFIX) and near:
            raise BadSetting(f"there is no variable {variable}", hint=f"did you mean {near[0]}?")
    return {variable: os.environ[variable] for variable in known & os.environ.keys()}


def _checked(name: str, given: Given) -> Given:
    if name not in SETTINGS:
        raise BadSetting(f"there is no setting called {name}", hint=nearest(name, SETTINGS))
    option, value, variable = OPTIONS[SETTINGS[name]], given.value, given.source.startswith(_PREFIX)
    if variable or (option.choices and isinstance(value, str)):
        with suppress(ValueError, KeyError):
            value = option.read(value)
    check(
        SETTINGS[name], value, called=given.source if variable else name, hint=f"correct it in {given.source}"
    )
    return Given(value, given.source)
