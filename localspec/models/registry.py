"""The pairs by name: models.toml, and the user's own, which win."""

import dataclasses
import difflib
import json
import os
import re
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from localspec import options
from localspec.errors import BadSetting, IncompatiblePair, UnknownPair
from localspec.files import expanded, locked, write_text_atomically
from localspec.gguf.facts import DraftKind
from localspec.gguf.header import Header
from localspec.gguf.matching import Adapter, SharedTokens, check
from localspec.models.store import ModelFile

_PACKAGE = Path(__file__).resolve().parent.parent
_NAME = re.compile(r"[a-z0-9][a-z0-9._+-]*")
_DEVICES = {"CON", "PRN", "AUX", "NUL", *(f"{port}{n}" for port in ("COM", "LPT") for n in range(10))}
DEMO = "demo"
_NO_FACTS = ("repo", "file", "revision", "bytes", "sha256", "rest", "first_sha256")  # of a ModelFile


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
    starting_depth_from: str = "guess"
    acceptance: float | None = None  # accepted / drafted tokens, as published
    pairing: str = ""
    published: tuple[str, ...] = ()
    lora: tuple[Adapter, ...] = ()  # added to the target where it is loaded; never written

    @property
    def runnable(self) -> bool:
        """Whether it has the file it would draft with: a prediction head may be inside the target."""
        return self.kind is DraftKind.MTP or (self.draft is None) == (self.kind is DraftKind.LOOKUP)

    @property
    def files(self) -> tuple[ModelFile, ...]:
        return (self.target,) if self.draft is None else (self.target, self.draft)

    @property
    def singles(self) -> tuple[ModelFile, ...]:
        """Every single file, also those of a model in several."""
        return tuple(part for file in self.files for part in (file, *file.rest))

    @property
    def hub_files(self) -> tuple[ModelFile, ...]:
        """Every single file on the Hub."""
        return tuple(file for file in self.singles if file.repo)

    @property
    def on_disk(self) -> bool:
        return all(file.path for file in self.files)

    @property
    def adapters(self) -> list[Header]:
        """The headers of the files added to the target."""
        return [ModelFile.at(path).header for path, _ in self.lora]

    def refuse_unless_runnable(self) -> None:
        """Raises IncompatiblePair for a pair that lacks the file it would draft with, or has one it does not need."""
        if self.runnable:
            return
        how = (
            "drafts from the text alone and has a draft file all the same"
            if self.kind is DraftKind.LOOKUP
            else f"drafts with a file of its own ({self.kind}), but names no file"
        )
        raise IncompatiblePair(f"{self.name} {how}", hint="write the pair again: `localspec pairs add`")

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


def user_file() -> Path:
    """The file that held all of the user's pairs before; its pairs still count."""
    return options.config_dir() / "models.toml"


def all_pairs() -> tuple[Pair, ...]:
    """Every known pair, localspec's own first; one of the user's replaces one of the same name."""
    own = _read(registry_file(), relative_to=_PACKAGE)
    return tuple({pair.name: pair for pair in (*own, *users_pairs())}.values())


def users_pairs() -> tuple[Pair, ...]:
    """The user's own pairs; of two of one name the one in the folder."""
    return tuple({pair.name: pair for path in users_files() for pair in _held(path)}.values())


def users_files() -> Iterator[Path]:
    """The files with the user's own pairs, the most important last. Raises BadSetting.

    The folder is read after the single file: its pairs are in the folder before it is set aside.
    """
    yield user_file()
    folder = users_folder()
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        if not _is_absent(folder, error):
            raise _unreadable(folder, error) from error
        return
    yield from (folder / name for name in names if name.endswith(".toml") and not name.startswith("."))


def _held(path: Path) -> tuple[Pair, ...]:
    """The pairs in a file of the user's; none if another process has removed it meanwhile."""
    try:
        return _read(path, relative_to=path.parent)
    except BadSetting as error:
        if _is_absent(path, error.__cause__):
            return ()
        raise


def _is_absent(path: Path, error: BaseException | None) -> bool:
    """Whether nothing has that name, not even a link."""
    return isinstance(error, FileNotFoundError | NotADirectoryError) and not path.is_symlink()


def named(name: str) -> Pair:
    """The pair of that name or alias. Raises UnknownPair, which suggests the nearest names."""
    wanted, by_name = name.strip().lower(), _by_name()
    if wanted in by_name:
        return by_name[wanted]
    near = near_names(name) or [known for known in by_name if wanted and wanted in known][:3]
    hint = f"did you mean {' or '.join(near)}?" if near else "`localspec pairs` lists all of them"
    raise UnknownPair(f"there is no pair called {name}", hint=hint)


def is_known(name: str) -> bool:
    """Whether a pair has this name or alias."""
    return name.strip().lower() in _by_name()


def near_names(name: str, cutoff: float = 0.5) -> list[str]:
    """Names and aliases that look like this one, the nearest first."""
    return difflib.get_close_matches(name.strip().lower(), _by_name(), n=3, cutoff=cutoff)


def _by_name() -> dict[str, Pair]:
    pairs = all_pairs()
    aliases = {alias.lower(): pair for pair in pairs for alias in pair.aliases}
    return aliases | {pair.name: pair for pair in pairs}


def valid_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def stays_inside(file: str) -> bool:
    """Whether a path, put below a folder, is a file there on every system.

    Windows also parts it at \\ and after :, drops dots and blanks at the end of a part, and has devices everywhere.
    """
    parts = file.split("/")
    devices = any(part.split(".")[0].rstrip().upper() in _DEVICES for part in parts)
    dropped = any(part != part.rstrip(". ") or not part for part in parts)
    return not devices and not dropped and not set("\\:\0") & set(file)


def _read(path: Path, *, relative_to: Path) -> tuple[Pair, ...]:
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSetting(f"{path} is not valid TOML: {error}", hint="repair or remove the file") from error
    except OSError as error:
        raise _unreadable(path, error) from error
    pairs = tables.get("pair", [])
    if set(tables) - {"pair"} or not isinstance(pairs, list):
        raise BadSetting(f"{path} may hold nothing but [[pair]] tables", hint=_explained())
    return tuple(_pair(_Table(path, f"pair {i}", table), relative_to) for i, table in enumerate(pairs, 1))


def _unreadable(path: Path, error: OSError) -> BadSetting:
    return BadSetting(f"{path} cannot be read: {error.strerror}", hint="check the path and its permissions")


def _explained() -> str:
    return f"the head of {registry_file()} explains tables and fields"


class _Table:
    """One TOML table, read by name and type; an unread value is an error."""

    def __init__(self, path: Path, where: str, values: object) -> None:
        if not isinstance(values, Mapping):
            raise BadSetting(f"{path}: {where} is not a table", hint=_explained())
        self.path, self.where, self._left = path, where, dict(values)

    def text(self, key: str, default: str | None = None) -> str:
        return str(self._take(key, str, default))

    def count(self, key: str) -> int:
        value = self._take(key, int, 0)
        assert isinstance(value, int)
        return value

    def fields(self, kind: type[ModelFile | Pair], *others: str) -> dict[str, Any]:
        """The values of a dataclass that the table has, `others` and zeros left out."""
        fields = [
            field for field in dataclasses.fields(kind) if field.name in self._left.keys() - set(others)
        ]
        values = {field.name: self._take(field.name, field.type) for field in fields}
        return {name: value for name, value in values.items() if value != 0}

    def table(self, key: str) -> "_Table | None":
        values = self._left.pop(key, None)
        return None if values is None else _Table(self.path, f"{self.where}, {key}", values)

    def tables(self, key: str) -> "list[_Table]":
        values = self._take(key, list, [])
        assert isinstance(values, list)
        return [_Table(self.path, f"{self.where}, {key} {n}", value) for n, value in enumerate(values, 1)]

    def done(self) -> None:
        if self._left:
            raise self.mistake(f"{next(iter(self._left))} is not a field of it")

    def mistake(self, what: str) -> BadSetting:
        return BadSetting(f"{self.path}: {self.where}: {what}", hint=_explained())

    def _take(self, key: str, kind: object, default: object = None) -> object:
        value = self._left.pop(key, default)
        if value is None:
            raise self.mistake(f"{key} is missing")
        if (
            kind == tuple[str, ...]
            and isinstance(value, list)
            and all(isinstance(text, str) for text in value)
        ):
            return tuple(value)
        kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
        if type(value) not in kinds:
            raise self.mistake(f"{key} = {value!r} has the wrong type")
        if isinstance(value, int) and value < 0:
            raise self.mistake(f"{key} may not be negative")
        if isinstance(value, float) and not 0 < value <= 1:
            raise self.mistake(f"{key} is not a share between 0 and 1")
        return value


def _pair(table: _Table, relative_to: Path) -> Pair:
    name = table.text("name")
    if not valid_name(name):
        raise table.mistake(f"the name {name!r} may hold only lower-case letters, digits and . _ + -")
    table.where = f"pair {name}"
    try:
        kind = DraftKind(table.text("kind", DraftKind.MODEL.value))
    except ValueError as error:
        raise table.mistake(str(error)) from None
    target, draft = table.table("target"), table.table("draft")
    if target is None:
        raise table.mistake("target is missing")
    files = (_file(target, relative_to), _file(draft, relative_to) if draft else None)
    pair = Pair(name, kind, *files, **table.fields(Pair, "name", "kind", "target", "draft", "lora"))
    table.done()
    return pair


def _file(table: _Table, relative_to: Path) -> ModelFile:
    path, sha256, size = table.text("path", ""), _sha256(table), table.count("bytes")
    if path:
        facts = table.fields(ModelFile, *_NO_FACTS)
        table.done()
        try:
            return replace(ModelFile.at(relative_to / expanded(path), size, sha256), **facts)
        except BadSetting as error:
            raise table.mistake(str(error)) from None
    repo, file, revision = table.text("repo"), table.text("file"), table.text("revision")
    rest = tuple(_part(part, repo, revision, sha256) for part in table.tables("parts"))
    facts = table.fields(ModelFile, *_NO_FACTS)
    table.done()
    if not (sha256 and size):
        raise table.mistake("bytes and sha256 are missing")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo) or not stays_inside(file):
        raise table.mistake(f"{repo}:{file} is not a file of a repository")
    return ModelFile(repo, file, revision, size, sha256, rest=rest, **facts)


def _part(table: _Table, repo: str, revision: str, first_sha256: str) -> ModelFile:
    file, size, sha256 = table.text("file"), table.count("bytes"), _sha256(table)
    table.done()
    if not (size and sha256 and stays_inside(file)):
        raise table.mistake("file, bytes or sha256 cannot be meant")
    return ModelFile(repo, file, revision, size, sha256, first_sha256=first_sha256)


def _sha256(table: _Table) -> str:
    """The sha256 in lower case; "" without one."""
    sha256 = table.text("sha256", "").lower()
    if sha256 and not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise table.mistake("sha256 is not 64 hexadecimal digits")
    return sha256


def add_pair(pair: Pair) -> Path:
    """Write a pair, in place of an earlier one of the same name; returns its file. Raises BadSetting, OSError."""
    if not valid_name(pair.name):
        raise BadSetting(
            f"a pair cannot be called {pair.name}",
            hint="use lower-case letters, digits and . _ + -, beginning with a letter or a digit",
        )
    all_pairs()  # a file that cannot be read is not written over
    path = _place(pair.name)
    if any(_is_shared(other) and other.parent == path.parent for other in users_files()):
        _one_file_each()
    write_text_atomically(path, _written(pair))
    return path


def take_out(name: str) -> tuple[Path, ...]:
    """Take a pair out of the user's files, which are returned; the model files stay where they are.

    Raises BadSetting, OSError.
    """
    with locked(users_folder()):
        files = tuple(path for path in users_files() if name in {pair.name for pair in _held(path)})
        if files:
            _one_file_each()
            _place(name).unlink(missing_ok=True)
    return files


def _one_file_each() -> None:
    """Give each of the user's pairs a file of its own; a file of several is kept as NAME.before."""
    shared = list(filter(_is_shared, users_files()))
    for path in shared:
        names = (path.with_name(f"{path.name}.before{number}") for number in ("", *range(2, 1000)))
        aside = next(name for name in names if not os.path.lexists(name))
        write_text_atomically(aside, path.read_text("utf-8"))
    for pair in users_pairs() if shared else ():
        write_text_atomically(_place(pair.name), _written(pair))
    for path in filter(_is_shared, shared):  # no longer shared: it became the place of one pair
        path.unlink()


def _is_shared(path: Path) -> bool:
    return any(path != _place(pair.name) for pair in _held(path))


def _place(name: str) -> Path:
    """The file of a pair; no pair is called _NAME, and Windows has devices that are."""
    return users_folder() / f"{'' if stays_inside(name) else '_'}{name}.toml"


def _written(pair: Pair) -> str:
    lines = ["# The fields are explained in localspec's models.toml.", "[[pair]]"]
    lines += _lines(pair, "target", "draft", "lora")
    for role, file in zip(("target", "draft"), pair.files, strict=False):
        lines.append(f"[pair.{role}]")
        lines += _lines(file, "rest", "first_sha256") if file.repo else [_line("path", file.file)]
        lines += [] if file.repo else _lines(file, "file")
        if file.rest:
            parts = ", ".join(f"{{ {', '.join(_file_of_part(part))} }}" for part in file.rest)
            lines.append(f"parts = [{parts}]")
    return "\n".join(lines) + "\n"


def _lines(value: Pair | ModelFile, *others: str) -> list[str]:
    """A line for each field that was set, `others` left out."""
    fields = [field for field in dataclasses.fields(value) if field.name not in others]
    found = [(field.name, getattr(value, field.name), field.default) for field in fields]
    return [_line(name, now) for name, now, default in found if now not in (default, "")]


def _file_of_part(part: ModelFile) -> list[str]:
    return [_line("file", part.file), _line("bytes", part.bytes), _line("sha256", part.sha256)]


def _line(key: str, value: object) -> str:
    """A TOML line; JSON's strings are TOML's basic strings, but for DEL."""
    return f"{key} = {json.dumps(value, ensure_ascii=False).replace(chr(127), '?')}"
