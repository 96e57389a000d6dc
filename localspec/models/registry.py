"""The pairs by name: models.toml, and the user's own, which win."""

import dataclasses
import difflib
import json
import os
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from localspec import options
from localspec.errors import BadSetting, UnknownPair
from localspec.files import expanded, read_toml, unreadable, write_text_atomically
from localspec.gguf.facts import DraftKind
from localspec.gguf.header import Header
from localspec.gguf.matching import Adapter, SharedTokens, check
from localspec.models.places import ModelFile, distinct

_PACKAGE = Path(__file__).resolve().parent.parent
_NAME = re.compile(r"[a-z0-9][a-z0-9._+-]*")
_DEVICES = {"CON", "PRN", "AUX", "NUL", *(f"{port}{n}" for port in ("COM", "LPT") for n in range(10))}
DEMO = "demo"
_NEVER_WRITTEN = {"lora", "rest", "first_sha256"}  # fields of pairs and files


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and its draft; models.toml explains the fields."""

    name: str
    kind: DraftKind
    target: ModelFile
    draft: ModelFile | None = None
    aliases: tuple[str, ...] = ()
    use: str = ""
    context: int | None = None  # tokens that the target was trained for
    starting_depth: int = 4
    published: tuple[str, ...] = ()
    lora: tuple[Adapter, ...] = ()  # added to the target where it is loaded; never written

    @property
    def files(self) -> tuple[ModelFile, ...]:
        return (self.target,) if self.draft is None else (self.target, self.draft)

    @property
    def singles(self) -> tuple[ModelFile, ...]:
        """Every single file, also those of a model in several."""
        return tuple(part for file in self.files for part in (file, *file.rest))

    @property
    def hub_files(self) -> tuple[ModelFile, ...]:
        """Every single file on the Hub, each once."""
        return tuple(replace(file, rest=()) for file in distinct(self.singles) if file.repo)

    @property
    def on_disk(self) -> bool:
        return all(file.path for file in self.files)

    @property
    def adapters(self) -> list[Header]:
        """The headers of the files added to the target."""
        return [ModelFile.at(path).header for path, _ in self.lora]

    @property
    def alone(self) -> "Pair":
        """The target alone: drafts come from the text."""
        return replace(self, kind=DraftKind.LOOKUP, draft=None)

    def check(self) -> SharedTokens | None:
        """The tokens that a draft of another vocabulary shares with its target; None for one vocabulary, or no draft.

        All that two headers say against loading them is judged here. Raises BadModelFile, IncompatiblePair.
        """
        names = tuple(file.name for file in self.files)
        adapters = zip((path.name for path, _ in self.lora), self.adapters, strict=True)
        return check([file.header for file in self.files], names, adapters)


def registry_file() -> Path:
    """models.toml: inside the package in a wheel, at the repository root in a checkout."""
    packaged = _PACKAGE / "models.toml"
    return packaged if packaged.is_file() else _PACKAGE.parent / "models.toml"


def users_folder() -> Path:
    """The user's own pairs, one file each: two processes that change pairs never write the same file."""
    return options.config_dir() / "pairs.d"


def all_pairs() -> tuple[Pair, ...]:
    """Every known pair, localspec's own first; one of the user's replaces one of the same name."""
    return tuple({pair.name: pair for pair in (*_built_in(), *users_pairs())}.values())


@cache  # they never change, and each name that is looked up asks for them
def _built_in() -> tuple[Pair, ...]:
    return _read(registry_file(), relative_to=_PACKAGE)


def users_pairs() -> tuple[Pair, ...]:
    """The user's own pairs. Raises BadSetting."""
    folder = users_folder()
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        if not _is_absent(folder, error):
            raise unreadable(folder, error) from error
        return ()
    files = (folder / name for name in names if name.endswith(".toml") and not name.startswith("."))
    return tuple(pair for path in files for pair in _held(path))


def _held(path: Path) -> tuple[Pair, ...]:
    """The pair in a file of the user's; none if another process has removed it meanwhile."""
    try:
        found = _read(path, relative_to=path.parent)
    except BadSetting as error:
        if _is_absent(path, error.__cause__):
            return ()
        raise
    if [_place(pair.name) for pair in found] != [path]:
        raise BadSetting(f"{path} does not hold one pair of its name", hint="write each pair as NAME.toml")
    return found


def _is_absent(path: Path, error: BaseException | None) -> bool:
    """Whether nothing has that name, not even a link."""
    return isinstance(error, FileNotFoundError | NotADirectoryError) and not path.is_symlink()


def named(name: str) -> Pair:
    """The pair of that name or alias. Raises UnknownPair, which suggests the nearest names."""
    wanted, by_name = name.strip().lower(), _by_name()
    if wanted in by_name:
        return by_name[wanted]
    near = near_names(name)
    hint = f"did you mean {' or '.join(near)}?" if near else "`localspec pairs` lists all of them"
    if name.lower().endswith(".gguf"):
        hint = (
            f"it names a file, and only pairs are fetched and removed; `localspec run {name} PROMPT` runs it"
        )
    raise UnknownPair(f"there is no pair called {name}", hint=hint)


def pairs_like(text: str) -> tuple[Pair, ...]:
    """The pairs whose name, alias or use has this text. Raises UnknownPair for none."""
    texts = {pair: " ".join((pair.name, *pair.aliases, pair.use)) for pair in all_pairs()}
    found = tuple(pair for pair, has in texts.items() if text.lower() in has.lower())
    if not found:
        raise UnknownPair(f"no pair is like {text}", hint="`localspec pairs` lists all of them")
    return found


def is_known(name: str) -> bool:
    """Whether a pair has this name or alias."""
    return name.strip().lower() in _by_name()


def near_names(name: str) -> list[str]:
    """At most three pairs whose name or alias has this beginning or looks like it, the nearest first."""
    wanted, by_name = name.strip().lower(), _by_name()
    begun = [known for known in by_name if wanted and _letters(known).startswith(_letters(wanted))]
    found = begun or difflib.get_close_matches(wanted, by_name, n=6, cutoff=0.6)
    found = found or [known for known in by_name if len(wanted) > 2 and wanted in known]
    return list(dict.fromkeys(by_name[known].name for known in found))[:3]


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name)


def _by_name() -> dict[str, Pair]:
    pairs = all_pairs()
    aliases = {alias.lower(): pair for pair in pairs for alias in pair.aliases}
    return aliases | {pair.name: pair for pair in pairs}


def check_name(name: str) -> None:
    """Raises BadSetting for a name that no pair can have."""
    if not _NAME.fullmatch(name):
        raise BadSetting(
            f"a pair cannot be called {name}: names hold lower-case letters, digits and . _ + - only",
            hint="begin with a letter or a digit, as in qwen3-4b+0.6b",
        )


def stays_inside(file: str) -> bool:
    """Whether a path, put below a folder, is a file there on every system.

    Windows also parts it at \\ and after :, drops dots and blanks at the end of a part, and has devices everywhere.
    """
    parts = file.split("/")
    devices = any(part.split(".")[0].rstrip().upper() in _DEVICES for part in parts)
    dropped = any(part != part.rstrip(". ") or not part for part in parts)
    return not devices and not dropped and not set("\\:\0") & set(file)


def _read(path: Path, *, relative_to: Path) -> tuple[Pair, ...]:
    tables = read_toml(path)
    pairs = tables.get("pair", [])
    if set(tables) - {"pair"} or not isinstance(pairs, list):
        raise BadSetting(f"{path} may hold nothing but [[pair]] tables", hint=_explained())
    found = []
    for number, table in enumerate(pairs, 1):
        try:
            found.append(_pair(table, relative_to))
        except (ValueError, BadSetting) as error:
            name = table.get("name", number) if isinstance(table, dict) else number
            raise BadSetting(f"{path}: pair {name}: {error}", hint=_explained()) from error
    return tuple(found)


def _explained() -> str:
    return f"the head of {registry_file()} explains tables and fields"


_Described = TypeVar("_Described", Pair, ModelFile)


def _described(kind: type[_Described], table: dict[str, Any]) -> _Described:
    """A pair or a file with the values of a table; a zero counts as missing. Raises ValueError."""
    import msgspec  # takes 20 ms

    known = {field.name for field in dataclasses.fields(kind)} - _NEVER_WRITTEN
    for name, value in table.items():
        if name not in known:
            raise ValueError(f"{name} is not a field of it")
        if isinstance(value, int) and value < 0:
            raise ValueError(f"{name} may not be negative")
    return msgspec.convert({name: value for name, value in table.items() if value != 0}, kind)


def _pair(table: object, relative_to: Path) -> Pair:
    """Raises ValueError, BadSetting."""
    if not isinstance(table, dict):
        raise ValueError("it is not a table")
    files = {role: _file(table[role], relative_to) for role in ("target", "draft") if role in table}
    pair = _described(Pair, {"kind": DraftKind.MODEL, **table, **files})
    check_name(pair.name)
    if pair.kind is not DraftKind.MTP and (pair.draft is None) != (pair.kind is DraftKind.LOOKUP):
        raise ValueError(f"{pair.kind} goes {'without' if pair.draft else 'with'} a draft file")
    return pair


def _file(table: object, relative_to: Path, first: ModelFile | None = None) -> ModelFile:
    """The file of a table, by its path or on the Hub; a part has the repository of the `first` one.

    Raises ValueError, BadSetting.
    """
    if not isinstance(table, dict) or not isinstance(table.get("parts", []), list):
        raise ValueError("a file is not a table, or its parts are not tables")
    values = table | ({"repo": first.repo, "revision": first.revision} if first else {})
    parts, path = values.pop("parts", []), values.pop("path", None)
    if path is not None:
        values |= {"repo": "", "file": str(relative_to / expanded(str(path)))}
    file = _described(ModelFile, values)
    file = replace(file, sha256=file.sha256.lower())
    if file.sha256 and not re.fullmatch(r"[0-9a-f]{64}", file.sha256):
        raise ValueError("sha256 is not 64 hexadecimal digits")
    if path is not None:
        return file
    if not (file.revision and file.bytes and file.sha256):
        raise ValueError("revision, bytes and sha256 are missing, or one of them")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", file.repo) or not stays_inside(file.file):
        raise ValueError(f"{file.repo}:{file.file} is not a file of a repository")
    if first:
        return replace(file, first_sha256=first.sha256)
    return replace(file, rest=tuple(_file(part, relative_to, file) for part in parts))


def add_pair(pair: Pair) -> Path:
    """Write a pair, in place of an earlier one of the same name; returns its file. Raises BadSetting, OSError."""
    check_name(pair.name)
    all_pairs()  # a file that cannot be read is not written over
    path = _place(pair.name)
    write_text_atomically(path, _written(pair))
    return path


def take_out(name: str) -> Path:
    """Take a pair out of the user's own; returns its file. The model files stay where they are. Raises OSError."""
    path = _place(name)
    path.unlink(missing_ok=True)
    return path


def _place(name: str) -> Path:
    """The file of a pair; no pair is called _NAME, and Windows has devices that are."""
    return users_folder() / f"{'' if stays_inside(name) else '_'}{name}.toml"


def _written(pair: Pair) -> str:
    lines = ["# The fields are explained in localspec's models.toml.", "[[pair]]", *_lines(pair)]
    for role, file in zip(("target", "draft"), pair.files, strict=False):
        lines += [f"[pair.{role}]", *_lines(file)]
        parts = [f"{{ {', '.join(_lines(part, 'repo', 'revision'))} }}" for part in file.rest]
        lines += [f"parts = [{', '.join(parts)}]"] if parts else []
    return "\n".join(lines) + "\n"


def _lines(value: Pair | ModelFile, *others: str) -> list[str]:
    """A TOML line for each field that was set, `others` left out. JSON's strings are TOML's, but for DEL."""
    found = []
    for field in dataclasses.fields(value):
        now = getattr(value, field.name)
        if now not in (field.default, "") and field.name not in {*_NEVER_WRITTEN, "target", "draft", *others}:
            key = "path" if field.name == "file" and not getattr(value, "repo", "") else field.name
            found.append(f"{key} = {json.dumps(now, ensure_ascii=False).replace(chr(127), '?')}")
    return found
