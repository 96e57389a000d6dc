"""The pairs by name: models.toml, and the user's own, which win."""

import dataclasses
import difflib
import json
import os
import re
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from localspec import settings
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
    return settings.config_dir() / "pairs.d"


def user_file() -> Path:
    """The file that held all of the user's pairs before; its pairs still count."""
    return settings.config_dir() / "models.toml"


def all_pairs() -> tuple[Pair, ...]:
    """Every known pair, localspec's own first; one of the user's replaces one of the same name."""
    own = _read(registry_file(), relative_to=_PACKAGE)
    return tuple({pair.name: pair for pair in (*own, *users_pairs())}.values())


def users_pairs() -> tuple[Pair, ...]:
    """The user's own pairs; of two of one name the one in the folder."""
    found: dict[str, Pair] = {}
    for path in users_files():
        try:
            found |= {pair.name: pair for pair in _read(path, relative_to=path.parent)}
        except BadSetting as error:
            if not _is_absent(path, error.__cause__):  # because another process may have removed it
                raise
    return tuple(found.values())


def users_files() -> list[Path]:
    """The files of the user's own pairs; the last one wins. Raises BadSetting."""
    folder, single = users_folder(), user_file()
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        if not _is_absent(folder, error):
            raise _unreadable(folder, error) from error
        names = []
    files = [folder / name for name in names if name.endswith(".toml") and not name.startswith(".")]
    return [single, *files]


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
    for other in users_files()[1:]:
        names = _names(_text(other))
        if names != [pair.name] if other == path else pair.name in names:
            raise _by_hand(other, f"{pair.name} cannot be written")
    write_text_atomically(path, "# The fields are explained in localspec's models.toml.\n" + _block(pair))
    return path


def take_out(name: str) -> tuple[Path, ...]:
    """Remove a pair from the user's files and return these; model files stay.

    Raises BadSetting if only a person can find its lines, OSError.
    """
    changed = []
    with locked(users_folder()):
        for path in users_files():
            text = _text(path)
            if name not in _names(text):
                continue
            if path == _place(name) and _names(text) == [name]:
                path.unlink()
            else:
                write_text_atomically(path, _without(path, text, name))
            changed.append(path)
    return tuple(changed)


def _place(name: str) -> Path:
    """The file of a pair; no pair is called _NAME, and Windows has devices that are."""
    return users_folder() / f"{'' if stays_inside(name) else '_'}{name}.toml"


def _without(path: Path, text: str, name: str) -> str:
    """The text without the tables of that pair; all others stay as they were written, comments too."""
    lines = text.splitlines(keepends=True)
    heads = [number for number, line in enumerate(lines) if _tables(line) == [{}]]
    gone: set[int] = set()
    for head, end in pairwise([*heads, len(lines)]):
        if name in _names("".join(lines[head:end])):
            while head and lines[head - 1].lstrip().startswith("#"):
                head -= 1
            while lines[end - 1].lstrip()[:1] in ("", "#"):  # about what follows
                end -= 1
            gone.update(range(head, end))
    left = "".join(line for number, line in enumerate(lines) if number not in gone)
    if _tables(left) != [table for table in _tables(text) if table.get("name") != name]:
        raise _by_hand(path, f"{name} cannot be taken out of it")
    return left


def _by_hand(path: Path, what: str) -> BadSetting:
    return BadSetting(f"{path} was written by hand: {what}", hint="change the file by hand")


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return ""


def _names(text: str) -> list[object]:
    return [table.get("name") for table in _tables(text)]


def _tables(text: str) -> list[dict[str, Any]]:
    """The pairs in a text; none where it is only a piece of TOML."""
    try:
        tables: list[dict[str, Any]] = tomllib.loads(text).get("pair", [])
    except tomllib.TOMLDecodeError:
        return []
    return tables


def _block(pair: Pair) -> str:
    lines = ["[[pair]]", _line("name", pair.name), _line("kind", pair.kind.value), _line("use", pair.use)]
    if pair.aliases:
        lines.append(_line("aliases", list(pair.aliases)))
    if pair.context:
        lines.append(_line("context", pair.context))
    lines += [
        _line("starting_depth", pair.starting_depth),
        _line("starting_depth_from", pair.starting_depth_from),
    ]
    for role, file in zip(("target", "draft"), pair.files, strict=False):
        lines += [f"[pair.{role}]", *_file_lines(file)]
    return "\n".join(lines) + "\n"


def _file_lines(file: ModelFile) -> list[str]:
    named = ("repo", "file", "revision") if file.repo else ()
    lines = [_line(key, getattr(file, key)) for key in named] or [_line("path", file.file)]
    lines += [_line("bytes", file.bytes), _line("sha256", file.sha256)]
    if file.rest:
        parts = ", ".join(f"{{ {', '.join(_file_of_part(part))} }}" for part in file.rest)
        lines.append(f"parts = [{parts}]")
    numbers = ("layers", "kv_bytes_per_token", "window", "window_layers", "embedding_bytes", "output_bytes")
    known = {key: getattr(file, key) for key in numbers if getattr(file, key) is not None}
    return lines + [_line(key, value) for key, value in known.items()]


def _file_of_part(part: ModelFile) -> list[str]:
    return [_line("file", part.file), _line("bytes", part.bytes), _line("sha256", part.sha256)]


def _line(key: str, value: str | int | list[str]) -> str:
    """A TOML line; JSON's strings are TOML's basic strings, but for DEL."""
    return f"{key} = {json.dumps(value, ensure_ascii=False).replace(chr(127), '?')}"
