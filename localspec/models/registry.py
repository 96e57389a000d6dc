"""Read and write named pairs: the built-in pairs of models.toml, and the user's own, which take precedence."""

import dataclasses
import difflib
import json
import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from localspec import demo, options
from localspec.errors import BadSetting, UnknownPair
from localspec.files import expanded, read_toml, unreadable, write_text_atomically
from localspec.gguf.facts import DraftKind, draft_kind, has_head
from localspec.gguf.header import Header, parts_of
from localspec.gguf.matching import Adapter, SharedTokens, check
from localspec.models.local_models import ModelFile, distinct, last_uses
from localspec.models.stores import StoredModel, labelled, stored_models

_PACKAGE = Path(__file__).resolve().parent.parent
_NAME = re.compile(r"[a-z0-9][a-z0-9._+-]*")
_DEVICES = {"CON", "PRN", "AUX", "NUL", *(f"{port}{n}" for port in ("COM", "LPT") for n in range(10))}
DEMO = "demo"
OWN = "your own file"  # `Pair.use` of a file that the user opened
# Fields that are not in a pair's TOML file.
_NEVER_WRITTEN = {"lora", "projector", "listed", "found", "has_own_draft", "rest", "first_sha256"}


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and its draft; models.toml explains the fields."""

    name: str
    kind: DraftKind
    target: ModelFile
    draft: ModelFile | None = None
    aliases: tuple[str, ...] = ()
    use: str = ""
    context: int | None = None  # trained context length of the target, in tokens
    published: tuple[str, ...] = ()
    images: bool = False  # whether a projector for images was published with the target
    lora: tuple[Adapter, ...] = ()  # LoRA adapters of the loaded target; not stored with the pair
    projector: Path | None = None  # the file with which the loaded target reads images; not stored, either
    listed: bool = False  # whether the pair's name is enough to find it
    has_own_draft: bool = False  # whether localspec found the draft, and the user did not name it
    found: StoredModel | None = None  # the target's model in another program

    @property
    def files(self) -> tuple[ModelFile, ...]:
        return (self.target,) if self.draft is None else (self.target, self.draft)

    @property
    def singles(self) -> tuple[ModelFile, ...]:
        return tuple(part for file in self.files for part in (file, *file.rest))

    @property
    def hub_files(self) -> tuple[ModelFile, ...]:
        return tuple(replace(file, rest=()) for file in distinct(self.singles) if file.repo)

    @property
    def file_bytes(self) -> int:
        return sum(file.all_bytes for file in distinct(self.files))

    @property
    def on_disk(self) -> bool:
        is_usable = self.found is None or not self.found.why_not
        return is_usable and all(file.path for file in self.files)

    @property
    def paths(self) -> tuple[str, ...]:
        """The absolute paths of the files; () for a `listed` pair, which can be found by its name."""
        return () if self.listed else tuple(str(file.place.absolute()) for file in self.files)

    @property
    def used_as(self) -> str:
        """The key of the pair's last use: its name, or its paths except that of a draft that localspec found."""
        return "\0".join(self.paths[: 1 if self.has_own_draft else None]) or self.name

    @property
    def drafter(self) -> DraftKind:
        """The source of draft tokens according to the headers; it may differ from the stored `kind`."""
        if self.draft:
            return draft_kind(self.draft.header)
        has_none = self.kind is DraftKind.LOOKUP or not has_head(self.target.header)
        return DraftKind.LOOKUP if has_none else DraftKind.MTP

    @property
    def own_options(self) -> dict[str, Any]:
        """The system message and the sampler's options that another program has for the target."""
        return self.found.options if self.found else {}

    @property
    def adapters(self) -> list[Header]:
        return [ModelFile.at(path).header for path, _ in self.lora]

    @property
    def alone(self) -> "Pair":
        return replace(self, kind=DraftKind.LOOKUP, draft=None)

    @property
    def is_demo(self) -> bool:
        embedded = {demo.target_path(), demo.draft_path()}
        return not self.lora and {file.path for file in self.files} <= embedded

    def check(self) -> SharedTokens | None:
        """Check all headers. Return the shared tokens; None if both vocabularies are the same."""
        names = tuple(file.name for file in self.files)
        adapters = zip((path.name for path, _ in self.lora), self.adapters, strict=True)
        return check([file.header for file in self.files], names, adapters)


def registry_file() -> Path:
    packaged = _PACKAGE / "models.toml"
    return packaged if packaged.is_file() else _PACKAGE.parent / "models.toml"


def users_folder() -> Path:
    """Return the folder of the user's pairs, which has one file for each pair."""
    return options.config_dir() / "pairs.d"


def all_pairs() -> tuple[Pair, ...]:
    """Return every readable pair, the opened files, and the models of other programs.

    A user's pair replaces a built-in pair of the same name.
    """
    pairs, models = registered_pairs(), stored_models()
    taken = {name.lower() for pair in pairs for name in (pair.name, *pair.aliases)}
    others = [_of_store(model, taken) for model in models]
    names = {*taken, *(pair.name for pair in others)}
    return (*pairs, *_opened_files(names, {model.path for model in models}), *others)


def registered_pairs() -> tuple[Pair, ...]:
    return tuple({pair.name: pair for pair in (*_built_in(), *users_pairs().values())}.values())


def _of_store(model: StoredModel, taken: Collection[str]) -> Pair:
    """Return another program's model as a pair without a draft, under a name that no pair has."""
    names = [name for name in (model.name, *model.aliases) if name.lower() not in taken]
    name = names[0] if names else f"{model.store}:{model.path}"
    use = f"found in {model.store}"
    return Pair(
        name, DraftKind.MODEL, model.file, aliases=tuple(names[1:]), use=use, listed=True, found=model
    )


def _opened_files(taken: Collection[str], known: Collection[str]) -> Iterator[Pair]:
    """Yield the files that the user has opened and that still exist, the latest first, each under a free name.

    `known`: paths of files that have a name in another program.
    """
    names = {name.lower() for name in taken}
    for key, _ in sorted(last_uses().items(), key=lambda used: -used[1]):
        paths = [Path(path) for path in key.split("\0")]
        if key not in known and all(path.is_absolute() and path.is_file() for path in paths):
            pair = opened_as(*map(labelled, paths))
            numbered = (pair.name if n == 1 else f"{pair.name}-{n}" for n in count(1))
            names.add((name := next(free for free in numbered if free.lower() not in names)).lower())
            yield replace(pair, name=name)


def opened_as(target: ModelFile, draft: ModelFile | None = None) -> Pair:
    """Return opened files as a pair. Its name is one line without blanks at its ends, so that a look-up finds it."""
    stems = (file.label or " ".join(parts_of(file.place)[0].stem.split()) for file in (target, draft) if file)
    return Pair("+".join(stem or "model" for stem in stems), DraftKind.MODEL, target, draft, use=OWN)


@cache  # cached, because each look-up needs it, and models.toml never changes
def _built_in() -> tuple[Pair, ...]:
    return _read(registry_file(), relative_to=_PACKAGE)


def users_pairs() -> dict[str, Pair]:
    """Return the user's own pairs by name, without those that cannot be read."""
    return {name: pair for name, pair in _users_own().items() if isinstance(pair, Pair)}


def unreadable_pairs() -> dict[str, BadSetting]:
    """Return the errors of the user's pairs that cannot be read, by name. The name "" means the whole folder."""
    return {name: reason for name, reason in _users_own().items() if isinstance(reason, BadSetting)}


def _users_own() -> dict[str, Pair | BadSetting]:
    """Return the user's pairs by name, with an error in place of each pair that cannot be read."""
    folder, own = users_folder(), dict[str, Pair | BadSetting]()
    try:
        files = sorted(folder / name for name in os.listdir(folder) if re.fullmatch(r"[^.].*\.toml", name))
    except OSError as error:
        return {} if _is_absent(folder, error) else {"": unreadable(folder, error)}
    for path in files:
        name = path.stem
        try:
            found = _read(path, relative_to=folder)
            if [_place(pair.name) for pair in found] != [path]:
                raise BadSetting(
                    f"{path} must have one pair, named {name}", hint="write one file NAME.toml for each pair"
                )
            own[name] = found[0]
        except BadSetting as error:
            if not _is_absent(path, error.__cause__):  # the file was just removed
                own[name] = error
    return own


def _is_absent(path: Path, error: BaseException | None) -> bool:
    return isinstance(error, FileNotFoundError | NotADirectoryError) and not path.is_symlink()


def named(name: str) -> Pair:
    """Return the pair with this name or alias. Raises UnknownPair, or BadSetting if it cannot be read."""
    if pair := known(name):
        return pair
    reasons = unreadable_pairs()
    if error := reasons.get(name.strip().lower(), reasons.get("")):
        raise error
    near = near_names(name)
    hint = f"did you mean {' or '.join(near)}?" if near else "see all pairs: `localspec pairs`"
    if name.lower().endswith(".gguf"):
        hint = f"run a file with `localspec run {name} PROMPT`; only pairs are downloaded and removed"
    raise UnknownPair(f"there is no pair called {name}", hint=hint)


def pairs_like(text: str) -> tuple[Pair, ...]:
    """Return the pairs with this text in their name, aliases or use. Raises UnknownPair if there is none."""
    texts = {pair: " ".join((pair.name, *pair.aliases, pair.use)) for pair in all_pairs()}
    pairs = tuple(pair for pair, has in texts.items() if text.lower() in has.lower())
    if not pairs:
        raise UnknownPair(f"no pair has {text!r} in its name or purpose", hint="`localspec pairs` lists all")
    return pairs


def known(name: str) -> Pair | None:
    """Return the readable pair with this name or alias, or None."""
    wanted = name.strip().lower()
    if wanted in unreadable_pairs():
        return None
    # Search other programs' models only if no pair has the name, because there may be hundreds of them.
    return _by_name(registered_pairs()).get(wanted) or _by_name(all_pairs()).get(wanted)


def is_known(name: str) -> bool:
    return known(name) is not None or name.strip().lower() in unreadable_pairs()


def near_names(name: str) -> list[str]:
    """Return the names of at most three pairs whose name or alias begins with `name`, or is similar to it.

    Ollama's llama3.1:8b is llama-3.1-8b. Pairs of this machine come first.
    """
    wanted, by_name = name.strip().lower().removesuffix(":latest").replace(":", "-"), _by_name(all_pairs())
    spellings = wanted, re.sub(r"([a-z])(\d)", r"\1-\2", wanted, count=1)
    begun = [known for known in by_name if wanted and known.startswith(spellings)]
    found = begun or difflib.get_close_matches(wanted, by_name, n=6, cutoff=0.6)
    pairs = dict.fromkeys(by_name[known] for known in found)
    return [pair.name for pair in sorted(pairs, key=lambda pair: not pair.on_disk)][:3]


def _by_name(pairs: Sequence[Pair]) -> dict[str, Pair]:
    table = dict[str, Pair]()
    theirs = [pair for pair in reversed(pairs) if pair.found]  # Ollama's come last, and so win
    for group in (theirs, [pair for pair in pairs if not pair.found]):
        table |= {alias.lower(): pair for pair in group for alias in pair.aliases}
        table |= {pair.name.lower(): pair for pair in group}
    return table


def check_name(name: str) -> None:
    if not (_NAME.fullmatch(name) and stays_inside(name)):
        raise BadSetting(
            f"{name} is not a valid name of a pair: use only lower-case letters, digits and . _ + -",
            hint="begin with a letter or a digit, as in qwen3-4b+0.6b",
        )


def stays_inside(file: str) -> bool:
    """Return whether a relative path stays inside its folder on every operating system.

    Windows splits at \\ and after :, drops trailing dots and blanks, and reserves the names of _DEVICES.
    """
    parts = file.split("/")
    devices = any(part.split(".")[0].rstrip().upper() in _DEVICES for part in parts)
    dropped = any(part != part.rstrip(". ") or not part for part in parts)
    return not devices and not dropped and not set("\\:\0") & set(file)


def _read(path: Path, *, relative_to: Path) -> tuple[Pair, ...]:
    tables, hint = read_toml(path), f"see the tables and fields at the head of {registry_file()}"
    pairs = tables.get("pair", [])
    if (others := sorted(set(tables) - {"pair"})) or not isinstance(pairs, list):
        what = f"{path} has {', '.join(others) or 'one [pair]'}, but must have only [[pair]] tables"
        raise BadSetting(what, hint=hint)
    read = []
    for number, table in enumerate(pairs, 1):
        try:
            read.append(_pair(table, relative_to))
        except (ValueError, BadSetting) as error:
            name = table.get("name", number) if isinstance(table, dict) else number
            raise BadSetting(f"{path}: pair {name}: {error}", hint=hint) from error
    return tuple(read)


_Described = TypeVar("_Described", Pair, ModelFile)


def _described(kind: type[_Described], table: dict[str, Any], relative_to: Path) -> _Described:
    known = {field.name for field in dataclasses.fields(kind)} - _NEVER_WRITTEN
    for name, value in table.items():
        if name not in known:
            raise ValueError(f"{name} is not a known field")
        if isinstance(value, int) and value < 0:
            raise ValueError(f"{name} must not be negative")
    values: dict[str, Any] = {name: tuple(v) if type(v) is list else v for name, v in table.items() if v != 0}
    if relative_to == _PACKAGE:  # a test has checked the types in models.toml
        return kind(**values)
    import msgspec  # imported late, because the import takes 20 ms

    return msgspec.convert(values, kind)


def _pair(table: object, relative_to: Path) -> Pair:
    if not isinstance(table, dict):
        raise ValueError("the pair is not a table")
    files = {role: _file(table[role], relative_to) for role in ("target", "draft") if role in table}
    values = {**table, **files, "kind": DraftKind(table.get("kind", DraftKind.MODEL))}
    pair = replace(_described(Pair, values, relative_to), listed=True)
    check_name(pair.name)
    if pair.kind is not DraftKind.MTP and (pair.draft is None) != (pair.kind is DraftKind.LOOKUP):
        raise ValueError(f"the kind {pair.kind} {'has no' if pair.draft else 'needs a'} draft file")
    return pair


def _file(table: object, relative_to: Path, first: ModelFile | None = None) -> ModelFile:
    """Return the model file of a TOML table. If it is a later part, `first` is the first part. Raises ValueError."""
    if not isinstance(table, dict) or not isinstance(table.get("parts", []), list):
        raise ValueError("a file is not a table, or its parts are not tables")
    values = table | ({"repo": first.repo, "revision": first.revision} if first else {})
    parts, path = values.pop("parts", []), values.pop("path", None)
    if path is not None:
        values |= {"repo": "", "file": str(relative_to / expanded(str(path)))}
    file = _described(ModelFile, values, relative_to)
    file = replace(file, sha256=file.sha256.lower())
    if file.sha256 and not re.fullmatch(r"[0-9a-f]{64}", file.sha256):
        raise ValueError("sha256 is not 64 hexadecimal digits")
    if "\0" in file.file:
        raise ValueError("the path contains NUL")
    if path is not None:
        return file
    if not (file.revision and file.bytes and file.sha256):
        raise ValueError("revision, bytes or sha256 is missing")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", file.repo) or not stays_inside(file.file):
        raise ValueError(f"{file.repo}:{file.file} is not a file of a repository")
    if first:
        return replace(file, first_sha256=first.sha256)
    return replace(file, rest=tuple(_file(part, relative_to, file) for part in parts))


def add_pair(pair: Pair) -> Path:
    """Write a pair's file, or replace it, and return its path. Raises BadSetting, OSError."""
    check_name(pair.name)
    reasons = unreadable_pairs()
    if error := reasons.get(pair.name, reasons.get("")):  # never replace an unreadable file
        raise error
    path = _place(pair.name)
    write_text_atomically(path, _written(pair))
    return path


def take_out(name: str) -> Path:
    (path := _place(name)).unlink(missing_ok=True)
    return path


def _place(name: str) -> Path:
    return users_folder() / f"{name}.toml"


def _written(pair: Pair) -> str:
    lines = ["# The fields are explained in localspec's models.toml.", "[[pair]]", *_lines(pair)]
    for role, file in zip(("target", "draft"), pair.files, strict=False):
        lines += [f"[pair.{role}]", *_lines(file)]
        parts = [f"{{ {', '.join(_lines(part, 'repo', 'revision'))} }}" for part in file.rest]
        lines += [f"parts = [{', '.join(parts)}]"] if parts else []
    return "\n".join(lines) + "\n"


def _lines(value: Pair | ModelFile, *others: str) -> list[str]:
    """Return a TOML line for each field with a value, except `others`. JSON text without DEL is valid TOML."""
    lines = []
    for field in dataclasses.fields(value):
        now = getattr(value, field.name)
        if now not in (field.default, "") and field.name not in {*_NEVER_WRITTEN, "target", "draft", *others}:
            key = "path" if field.name == "file" and not getattr(value, "repo", "") else field.name
            lines.append(f"{key} = {json.dumps(now, ensure_ascii=False).replace(chr(127), '?')}")
    return lines
