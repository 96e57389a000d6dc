"""Read GGUF headers by the rules of ggml/src/gguf.cpp, as a stream, in bounded time and memory.

Every count and length is checked against the rest of the file before anything is allocated.
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

ReadRange = Callable[[int, int], bytes]  # (offset, length) -> bytes, fewer than `length` if the file ends
Value = int | float | bool | str | tuple[int | float | bool | str, ...]

# From ggml-common.h, for each number of a tensor type: its name, and the values and bytes of a block.
BLOCKS: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
    42: ("Q2_0", 64, 18),
}
INTEGERS = frozenset({24, 25, 26, 27})  # llama.cpp aborts if a weight has one of these types

_MAX_HEADER = 64 << 20  # maximum bytes of a header
_MAX_KEYS = 4096
_MAX_TENSORS = 32_768
_MAX_STRING = 4 << 20  # maximum bytes of a string; chat templates are the longest strings
_MAX_KEPT = 8 << 20  # maximum bytes of memory for all values that are kept
_MAX_ELEMENTS = 3_000_000  # maximum number of strings in all arrays together
_MAX_VOCABULARY = 24 << 20  # maximum bytes of all token texts together
_OBJECT = 32  # approximate bytes of the smallest Python object
_KEPT_ARRAY = 4096  # maximum elements of an array that is kept: enough for one value per layer
TOKENS = "tokenizer.ggml.tokens"

STRING, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_SMALLEST_ENTRY, _SMALLEST_TENSOR = 8 + 1 + 4 + 1, 8 + 4 + 4 + 8  # minimum bytes in a file's header


@dataclass(frozen=True, slots=True)
class Entry:
    """A metadata value with its GGUF type. `value` is None for a long array, whose values are not kept."""

    type: int
    value: Value | None
    element_type: int | None = None  # GGUF type of an array's elements
    count: int = 1


@dataclass(frozen=True, slots=True)
class TensorInfo:
    name: str
    shape: tuple[int, ...]  # innermost dimension first, as in the file
    type: int  # a key of header.BLOCKS
    offset: int  # in bytes, from Header.data_offset on
    bytes: int


@dataclass(frozen=True, slots=True)
class HeaderVocabulary:
    """The token texts as bytes of the file: the length of each text in 64 bits, then the text."""

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
    entries: Mapping[str, Entry]
    vocabulary: HeaderVocabulary | None
    tensors: tuple[TensorInfo, ...]
    alignment: int
    data_offset: int  # position of the weights in the file, in bytes
    file_bytes: int

    def get(self, key: str) -> Value | None:
        entry = self.entries.get(key)
        return None if entry is None else entry.value

    def text(self, key: str) -> str:
        """Return the text under `key`; "" if there is no key or no text."""
        value = self.get(key)
        return value if isinstance(value, str) else ""

    def number(self, key: str) -> int | None:
        """Return the integer under `key`; None if there is no key or no integer."""
        value = self.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key)
        return value if isinstance(value, bool) else default

    def token(self, key: str, default: int) -> int:
        """Return the token under `key`, or `default`; -1 if the vocabulary does not have the token."""
        value, count = self.number(key), self.vocabulary.count if self.vocabulary else 0
        if value is not None and 0 <= value < count:
            return value
        return default if default < count else -1

    @property
    def architecture(self) -> str:
        return self.text("general.architecture")

    def of_model(self, key: str) -> int:
        """Return the integer under ARCHITECTURE.KEY, for example `llama.block_count`; 0 without this key."""
        return self.number(f"{self.architecture}.{key}") or 0


def header_at(path: Path) -> Header:
    """Return the header of a model on this machine, joined from all its parts. Raises BadModelFile."""
    header, parts = header_of_part(path), parts_of(path)
    if (count := header.number("split.count") or 1) == 1:
        return header
    if len(parts) != count:
        raise BadModelFile(
            f"{path.name} is one of {count} parts of a model, but its name lacks the number", hint=_HINT
        )
    if missing := next((part.name for part in parts if not part.is_file()), None):
        raise BadModelFile(f"{missing} is missing, one of the {count} parts of a model", hint=_HINT)
    return joined(path, [header_of_part(part) for part in parts])


def header_of_part(path: Path) -> Header:
    """Return the header of one file, parsed again only if the file has changed. Raises BadModelFile."""
    try:
        now = path.stat()
        return _parsed(path, now.st_size, now.st_mtime_ns)
    except (OSError, ValueError) as error:  # ValueError: the path contains NUL
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
    """Parse a header, reading `chunk` bytes or more at once. Raises BadModelFile about the file `label`."""
    cursor = _Cursor(read, file_bytes, label, chunk)
    if cursor.size < 24 or cursor.take(4) != b"GGUF":
        raise cursor.bad("is not a GGUF file")
    version = cursor.whole("I")
    if version & 0xFFFF == 0 and version:
        raise cursor.bad("is a big-endian GGUF, which llama.cpp cannot load on this machine")
    if version not in (2, 3):
        raise cursor.bad(f"is GGUF version {version}, and only versions 2 and 3 are in use")
    tensor_count, entry_count = cursor.whole("Q"), cursor.whole("Q")
    if entry_count > min(_MAX_KEYS, cursor.left // _SMALLEST_ENTRY):
        raise cursor.bad(
            f"is damaged: its header gives an impossible number of metadata keys, {entry_count:,}"
        )
    if tensor_count > min(_MAX_TENSORS, cursor.left // _SMALLEST_TENSOR):
        raise cursor.bad(f"is damaged: its header gives an impossible number of tensors, {tensor_count:,}")
    entries, vocabulary = _entries(cursor, entry_count)
    alignment = 32
    if stated := entries.get("general.alignment"):
        if stated.type != 4 or not isinstance(stated.value, int) or stated.value.bit_count() != 1:
            raise cursor.bad(f"has the alignment {stated.value!r}, which is not a power of two")
        alignment = stated.value
    tensors = _tensors(cursor, tensor_count, alignment)
    data_offset = padded(cursor.position, alignment)
    if tensors:
        needed = data_offset + tensors[-1].offset + tensors[-1].bytes
        if needed > file_bytes:
            raise cursor.bad(f"is cut short: its tensors end at byte {needed:,}, the file at {file_bytes:,}")
    return Header(entries, vocabulary, tensors, alignment, data_offset, file_bytes)


class _Cursor:
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
        """Read until the buffer has `count` bytes from `at` on. `expected`: bytes that the next calls need."""
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
        """Skip `count` bytes of the file. Bytes that are not in the buffer yet are never read."""
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
            raise self.bad(f"is damaged: its header gives {what} an impossible length of {length:,} bytes")
        return self.take(length).decode("utf-8", "replace")


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
            if element != STRING and element not in SCALARS:
                raise cursor.bad(
                    f"gives the elements of {key} the type {element}, which cannot be in an array"
                )
            elements += length if element == STRING else 0
            smallest = 8 if element == STRING else struct.calcsize(SCALARS[element])
            if elements > _MAX_ELEMENTS or length * smallest > cursor.left:
                raise cursor.bad(
                    f"is damaged: its header gives {key} an impossible number of elements, {length:,}"
                )
            if key == TOKENS and element == STRING:
                vocabulary = HeaderVocabulary(length, _strings(cursor, key, length))
                if len(vocabulary.raw) > _MAX_VOCABULARY:
                    raise cursor.bad("has more token text than any vocabulary needs")
                entries[key] = Entry(ARRAY, None, element, length)
            else:
                entries[key] = Entry(ARRAY, _array(cursor, key, element, length), element, length)
        found = entries[key].value
        parts = found if isinstance(found, tuple) else (found,)
        kept += sum(_OBJECT + (len(part) if isinstance(part, str) else 0) for part in parts)
        if kept > _MAX_KEPT:
            raise cursor.bad("has more metadata than any model needs")
    return entries, vocabulary


def _array(cursor: _Cursor, key: str, element: int, length: int) -> Value | None:
    if element == STRING and length <= _KEPT_ARRAY:
        return tuple(cursor.string(key) for _ in range(length))
    if element == STRING:
        _strings(cursor, key, length)
        return None
    code = f"<{length}{SCALARS[element]}"
    if length <= _KEPT_ARRAY:
        return struct.unpack(code, cursor.take(struct.calcsize(code)))
    cursor.skip(struct.calcsize(code))
    return None


def _strings(cursor: _Cursor, key: str, length: int) -> bytes:
    start, left = cursor.at, length
    while left:
        cursor.need(8, expected=left * 8)
        buffer, position, end = cursor.buffer, cursor.at, len(cursor.buffer)
        while left and position + 8 <= end:
            following = position + 8 + int.from_bytes(buffer[position : position + 8], "little")
            if following > end:
                break
            position, left = following, left - 1
        if position == cursor.at:  # the buffer does not have the whole next string
            size = int.from_bytes(buffer[position : position + 8], "little")
            if size > min(_MAX_STRING, cursor.left):
                raise cursor.bad(
                    f"is damaged: its header gives an element of {key} an impossible length of {size:,} bytes"
                )
            cursor.need(8 + size)
        cursor.at = position
    return bytes(cursor.buffer[start : cursor.at])


def _tensors(cursor: _Cursor, count: int, alignment: int) -> tuple[TensorInfo, ...]:
    tensors: dict[str, TensorInfo] = {}
    offset = 0
    for _ in range(count):
        tensor = _tensor(cursor, offset)
        if tensor.name in tensors:
            raise cursor.bad(f"has the tensor {tensor.name} twice")
        tensors[tensor.name] = tensor
        offset = padded(offset + tensor.bytes, alignment)
    return tuple(tensors.values())


def _tensor(cursor: _Cursor, expected_offset: int) -> TensorInfo:
    name = cursor.string("a tensor name", 63)
    dimensions = cursor.whole("I")
    if dimensions > 4:
        raise cursor.bad(f"gives the tensor {name} {dimensions:,} dimensions, more than 4")
    shape = tuple(cursor.whole("Q") for _ in range(dimensions))
    kind, offset = cursor.whole("I"), cursor.whole("Q")
    if kind not in BLOCKS:
        raise cursor.bad(f"gives the tensor {name} the type {kind}, which does not exist")
    _, elements, block_bytes = BLOCKS[kind]
    total = math.prod(shape)
    if any(extent >= 1 << 63 for extent in shape) or total >= 1 << 63:
        raise cursor.bad(f"gives the tensor {name} the impossible shape {shape}")
    if (shape[0] if shape else 1) % elements:
        raise cursor.bad(f"gives the tensor {name} rows that are not whole blocks of {elements} values")
    if offset != expected_offset:
        raise cursor.bad(f"puts the tensor {name} at byte {offset:,} instead of {expected_offset:,}")
    return TensorInfo(name, shape, kind, offset, total // elements * block_bytes)


def padded(count: int, alignment: int) -> int:
    return (count + alignment - 1) // alignment * alignment


_PART = re.compile(r"(.+)-\d{5}-of-(\d{5})\.gguf")
_AnyPath = TypeVar("_AnyPath", bound=PurePath)
_HINT = "put all parts into one folder, under their original names"


def parts_of(path: _AnyPath) -> tuple[_AnyPath, ...]:
    """Return the paths of all parts if `path` is a part of a split model; if not, only `path`."""
    found = _PART.fullmatch(path.name)
    if found is None:
        return (path,)
    return tuple(path.with_name(f"{found[1]}-{i:05}-of-{found[2]}.gguf") for i in range(1, int(found[2]) + 1))


def joined(path: Path, headers: Sequence[Header]) -> Header:
    """Join the headers of all parts of a model, in their order. Raises BadModelFile for a wrong part."""
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
