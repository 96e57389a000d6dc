"""The one GGUF header reader: strict, streaming, and bounded in time and memory for any content.

Follows ggml/src/gguf.cpp, little-endian versions 2 and 3. Every count and length is checked against the
rest of the file before anything is allocated. Like llama.cpp it refuses nested arrays, duplicates and gaps.
Models in several files are called NAME-00001-of-0000N.gguf, as llama.cpp's gguf-split calls them.
"""

import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePath
from typing import TypeVar

from localspec.display import printable
from localspec.errors import ANOTHER_COPY, BadModelFile
from localspec.gguf.tensor_types import BLOCKS

ReadRange = Callable[[int, int], bytes]  # offset, length -> those bytes, fewer only at the end of the file
Value = int | float | bool | str | tuple[int | float | bool | str, ...]

_MAX_HEADER = 64 << 20  # bytes
_MAX_KEYS = 4096
_MAX_TENSORS = 32_768
_MAX_STRING = 4 << 20  # bytes: a chat template is the longest
_MAX_KEPT = 8 << 20  # bytes of all values together
_MAX_ELEMENTS = 3_000_000  # strings in arrays, all keys together
_MAX_VOCABULARY = 24 << 20  # bytes of token texts
_OBJECT = 32  # bytes that Python takes for the smallest value, about
_KEPT_ARRAY = 4096  # elements: per-layer facts are kept, longer arrays are walked or jumped over
TOKENS = "tokenizer.ggml.tokens"

STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_SMALLEST_ENTRY, _SMALLEST_TENSOR = 8 + 1 + 4 + 1, 8 + 4 + 4 + 8  # bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """One metadata value with its type in the file; a long array has no value, only its length."""

    type: int
    value: Value | None
    element_type: int | None = None  # of an array
    count: int = 1


@dataclass(frozen=True, slots=True)
class TensorInfo:
    name: str
    shape: tuple[int, ...]  # innermost dimension first, as in the file
    type: int  # see header.BLOCKS
    offset: int  # bytes from the start of the data
    bytes: int


@dataclass(frozen=True, slots=True)
class HeaderVocabulary:
    """The token texts as they lie in the file: a 64-bit length before each."""

    count: int
    raw: bytes

    def texts(self) -> Iterator[bytes]:
        position, raw = 0, self.raw
        for _ in range(self.count):
            end = position + 8 + int.from_bytes(raw[position : position + 8], "little")
            yield raw[position + 8 : end]
            position = end


@dataclass(frozen=True, slots=True)
class Header:
    """Everything in front of the weights."""

    entries: Mapping[str, Entry]
    vocabulary: HeaderVocabulary | None
    tensors: tuple[TensorInfo, ...]
    alignment: int
    data_offset: int  # bytes: where the weights begin
    file_bytes: int

    def get(self, key: str) -> Value | None:
        entry = self.entries.get(key)
        return None if entry is None else entry.value

    def text(self, key: str) -> str:
        """A text value; "" when it is missing or of another type."""
        value = self.get(key)
        return value if isinstance(value, str) else ""

    def number(self, key: str) -> int | None:
        """A whole-number value; None when it is missing or of another type."""
        value = self.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def architecture(self) -> str:
        """The architecture's name; "" when it is missing."""
        return self.text("general.architecture")

    def of_model(self, key: str) -> int:
        """A number among those of its architecture; 0 when it is missing."""
        return self.number(f"{self.architecture}.{key}") or 0


def header_at(path: Path) -> Header:
    """The header of a model on this machine, of all its parts together. Raises BadModelFile."""
    header, parts = header_of_part(path), parts_of(path)
    if (count := header.number("split.count") or 1) == 1:
        return header
    if len(parts) != count:
        raise BadModelFile(
            f"{path.name} is one of {count} parts of a model, and its name does not say which", hint=_HINT
        )
    if missing := next((part.name for part in parts if not part.is_file()), None):
        raise BadModelFile(f"{missing} is missing, one of the {count} parts of a model", hint=_HINT)
    return joined(path, [header_of_part(part) for part in parts])


def header_of_part(path: Path) -> Header:
    """The header of one file, parsed once per process while the file does not change. Raises BadModelFile."""
    try:
        now = path.stat()
        return _parsed(path, now.st_size, now.st_mtime_ns)
    except (OSError, ValueError) as error:  # ValueError: a name with NUL
        why = (isinstance(error, OSError) and error.strerror) or error
        raise BadModelFile(
            f"{path} cannot be read: {why}", hint="check the path and its permissions"
        ) from error


@lru_cache(maxsize=32)
def _parsed(path: Path, _size: int, _mtime_ns: int) -> Header:
    with path.open("rb", buffering=0) as file:

        def read(offset: int, length: int) -> bytes:
            file.seek(offset)
            return file.read(length)

        return read_header(read, file.seek(0, 2), label=str(path), chunk=1 << 18)


def read_header(read: ReadRange, file_bytes: int, *, label: str, chunk: int = 1 << 19) -> Header:
    """Parse a header through a function that reads ranges, at least `chunk` bytes at a time.

    Raises BadModelFile naming `label` and the first thing that is wrong.
    """
    cursor = _Cursor(read, file_bytes, label, chunk)
    tensor_count, entry_count = _preamble(cursor)
    entries, vocabulary = _entries(cursor, entry_count)
    alignment = _alignment(cursor, entries)
    tensors = _tensors(cursor, tensor_count, alignment)
    data_offset = padded(cursor.position, alignment)
    if tensors:
        needed = data_offset + tensors[-1].offset + tensors[-1].bytes
        if needed > file_bytes:
            raise cursor.bad(f"is cut short: its tensors end at byte {needed:,}, the file at {file_bytes:,}")
    return Header(entries, vocabulary, tensors, alignment, data_offset, file_bytes)


class _Cursor:
    """A position in the header; what was read of it stays in memory."""

    def __init__(self, read: ReadRange, size: int, label: str, chunk: int) -> None:
        self._read, self.size, self.label, self._chunk = read, size, label, chunk
        self.buffer, self.at, self._skipped = bytearray(), 0, 0

    @property
    def position(self) -> int:
        return self.at + self._skipped

    @property
    def left(self) -> int:
        return self.size - self.position

    def bad(self, what: str) -> BadModelFile:
        return BadModelFile(f"{self.label} {printable(what, 200)}", hint=ANOTHER_COPY)

    def need(self, count: int, expected: int = 0) -> None:
        """Have `count` bytes in the buffer from `at` on; `expected` more will be read soon."""
        if (lacking := self.at + count - len(self.buffer)) <= 0:
            return
        if self.position + count > _MAX_HEADER:
            raise self.bad(f"has a header of more than {_MAX_HEADER >> 20} MiB")
        if count <= self.left:
            length = min(max(lacking, expected, self._chunk), max(lacking, 4 << 20))
            start = len(self.buffer) + self._skipped
            self.buffer += self._read(start, min(length, self.size - start))
        if len(self.buffer) < self.at + count:
            raise self.bad("ends in the middle of its header")

    def take(self, count: int) -> bytearray:
        self.need(count)
        self.at += count
        return self.buffer[self.at - count : self.at]

    def skip(self, count: int) -> None:
        """Go beyond `count` bytes; those that are not in the buffer are never read."""
        end = self.at + count
        self.at = min(end, len(self.buffer))
        self._skipped += end - self.at

    def number(self, code: str) -> int | float | bool:
        value: int | float | bool
        (value,) = struct.unpack("<" + code, self.take(struct.calcsize(code)))
        return value

    def whole(self, code: str) -> int:
        return int(self.number(code))

    def string(self, what: str, limit: int = _MAX_STRING) -> str:
        length = self.whole("Q")
        if length > min(limit, self.left):
            raise self.bad(f"is damaged: it says that {what} is {length:,} bytes long")
        return self.take(length).decode("utf-8", "replace")


def _preamble(cursor: _Cursor) -> tuple[int, int]:
    """The numbers of tensors and of entries."""
    if cursor.size < 24 or cursor.take(4) != b"GGUF":
        raise cursor.bad("is not a GGUF file")
    version = cursor.whole("I")
    if version & 0xFFFF == 0 and version:
        raise cursor.bad("is a big-endian GGUF, which llama.cpp cannot load on this machine")
    if version not in (2, 3):
        raise cursor.bad(f"is GGUF version {version}, and only versions 2 and 3 are in use")
    tensors, entries = cursor.whole("Q"), cursor.whole("Q")
    if entries > min(_MAX_KEYS, cursor.left // _SMALLEST_ENTRY):
        raise cursor.bad(f"is damaged: it says that it has {entries:,} metadata keys")
    if tensors > min(_MAX_TENSORS, cursor.left // _SMALLEST_TENSOR):
        raise cursor.bad(f"is damaged: it says that it has {tensors:,} tensors")
    return tensors, entries


def _entries(cursor: _Cursor, count: int) -> tuple[dict[str, Entry], HeaderVocabulary | None]:
    entries: dict[str, Entry] = {}
    vocabulary = None
    kept = elements = 0
    for _ in range(count):
        key = cursor.string("a key", 65_535)
        if not key or key in entries:
            raise cursor.bad(f"has the key {key!r} twice" if key else "has an empty key")
        kind = cursor.whole("I")
        if kind != ARRAY:
            if kind not in (STRING, *SCALARS):
                raise cursor.bad(f"gives {key} the type {kind}, which does not exist")
            value = cursor.string(key) if kind == STRING else cursor.number(SCALARS[kind])
            entries[key] = Entry(kind, value)
        else:
            element, length = cursor.whole("I"), cursor.whole("Q")
            elements += length if element == STRING else 0
            if elements > _MAX_ELEMENTS:
                raise cursor.bad(f"is damaged: it says that {key} has {length:,} elements")
            if key == TOKENS and element == STRING:
                vocabulary = HeaderVocabulary(length, _strings(cursor, key, length))
                if len(vocabulary.raw) > _MAX_VOCABULARY:
                    raise cursor.bad("has more token text than any vocabulary needs")
                entries[key] = Entry(ARRAY, None, element, length)
            else:
                entries[key] = Entry(ARRAY, _array(cursor, key, element, length), element, length)
        kept += _kept_bytes(entries[key].value)
        if kept > _MAX_KEPT:
            raise cursor.bad("has more metadata than any model needs")
    return entries, vocabulary


def _array(cursor: _Cursor, key: str, element: int, length: int) -> Value | None:
    if element != STRING and element not in SCALARS:
        raise cursor.bad(f"gives the elements of {key} the type {element}, which cannot be in an array")
    smallest = 8 if element == STRING else struct.calcsize(SCALARS[element])
    if length * smallest > cursor.left:
        raise cursor.bad(f"is damaged: it says that {key} has {length:,} elements")
    if length <= _KEPT_ARRAY:
        if element == STRING:
            return tuple(cursor.string(key) for _ in range(length))
        code = f"<{length}{SCALARS[element]}"
        return struct.unpack(code, cursor.take(struct.calcsize(code)))
    if element == STRING:
        _strings(cursor, key, length)
    else:
        cursor.skip(length * smallest)
    return None


def _strings(cursor: _Cursor, key: str, length: int) -> bytes:
    """The bytes of a string array, lengths included."""
    start, left = cursor.at, length
    if left * 8 > cursor.left:
        raise cursor.bad(f"is damaged: it says that {key} has {length:,} elements")
    while left:
        cursor.need(8, expected=left * 8)
        buffer, position, end = cursor.buffer, cursor.at, len(cursor.buffer)
        while left and position + 8 <= end:
            following = position + 8 + int.from_bytes(buffer[position : position + 8], "little")
            if following > end:
                break
            position, left = following, left - 1
        if position == cursor.at:  # the string ends beyond the buffer
            size = int.from_bytes(buffer[position : position + 8], "little")
            if size > min(_MAX_STRING, cursor.left):
                raise cursor.bad(f"is damaged: it says that an element of {key} is {size:,} bytes long")
            cursor.need(8 + size)
        cursor.at = position
    return bytes(cursor.buffer[start : cursor.at])


def _kept_bytes(value: Value | None) -> int:
    """The approximate memory of a value."""
    elements = value if isinstance(value, tuple) else (value,)
    return sum(_OBJECT + (len(element) if isinstance(element, str) else 0) for element in elements)


def _alignment(cursor: _Cursor, entries: Mapping[str, Entry]) -> int:
    entry = entries.get("general.alignment")
    if entry is None:
        return 32
    if entry.type != 4 or not isinstance(entry.value, int) or entry.value.bit_count() != 1:
        raise cursor.bad(f"has the alignment {entry.value!r}, which is not a power of two")
    return entry.value


def _tensors(cursor: _Cursor, count: int, alignment: int) -> tuple[TensorInfo, ...]:
    tensors: list[TensorInfo] = []
    names: set[str] = set()
    offset = 0
    for _ in range(count):
        tensor = _tensor(cursor, offset)
        if tensor.name in names:
            raise cursor.bad(f"has the tensor {tensor.name} twice")
        names.add(tensor.name)
        tensors.append(tensor)
        offset = padded(offset + tensor.bytes, alignment)
    return tuple(tensors)


def _tensor(cursor: _Cursor, expected_offset: int) -> TensorInfo:
    name = cursor.string("a tensor name", 63)
    dimensions = cursor.whole("I")
    if dimensions > 4:
        raise cursor.bad(f"gives the tensor {name} {dimensions:,} dimensions")
    shape = tuple(cursor.whole("Q") for _ in range(dimensions))
    kind, offset = cursor.whole("I"), cursor.whole("Q")
    if kind not in BLOCKS:
        raise cursor.bad(f"gives the tensor {name} the type {kind}, which does not exist")
    _, elements, block_bytes = BLOCKS[kind]
    total = math.prod(shape)
    if any(extent >= 1 << 63 for extent in shape) or total >= 1 << 63:
        raise cursor.bad(f"gives the tensor {name} the impossible shape {shape}")
    if (shape[0] if shape else 1) % elements:
        raise cursor.bad(f"gives the tensor {name} rows that its type cannot be cut into")
    if offset != expected_offset:
        raise cursor.bad(f"puts the tensor {name} at {offset:,}, where {expected_offset:,} is due")
    return TensorInfo(name, shape, kind, offset, total // elements * block_bytes)


def padded(count: int, alignment: int) -> int:
    return (count + alignment - 1) // alignment * alignment


_PART = re.compile(r"(.+)-\d{5}-of-(\d{5})\.gguf")
_AnyPath = TypeVar("_AnyPath", bound=PurePath)
_HINT = "put all parts into one folder, under the names that they were given"


def parts_of(path: _AnyPath) -> tuple[_AnyPath, ...]:
    """All files of a model, by the name of one of them."""
    found = _PART.fullmatch(path.name)
    if found is None:
        return (path,)
    return tuple(path.with_name(f"{found[1]}-{i:05}-of-{found[2]}.gguf") for i in range(1, int(found[2]) + 1))


def joined(path: Path, headers: Sequence[Header]) -> Header:
    """One header for the parts of a model, in their order. Raises BadModelFile if they do not go together."""
    first = headers[0]
    tensors: list[TensorInfo] = []
    offset = 0
    for number, header in enumerate(headers):
        if (header.number("split.no"), header.number("split.count")) != (number, len(headers)):
            raise BadModelFile(
                f"{parts_of(path)[number].name} is not part {number + 1} of {len(headers)} of a model",
                hint=_HINT,
            )
        for tensor in header.tensors:
            tensors.append(replace(tensor, offset=offset))
            offset = padded(offset + tensor.bytes, first.alignment)
    return replace(
        first,
        entries={key: entry for key, entry in first.entries.items() if not key.startswith("split.")},
        tensors=tuple(tensors),
        file_bytes=sum(header.file_bytes for header in headers),
    )
