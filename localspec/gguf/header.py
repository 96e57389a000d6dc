"""The one GGUF header reader: strict, streaming, and bounded in time and memory whatever the file says.

Follows ggml/src/gguf.cpp, little-endian versions 2 and 3. Every count and length is checked against what is
left of the file before anything is allocated; nested arrays, duplicates and gaps are refused, as there.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import BadModelFile
from localspec.gguf.ggml_types import BLOCKS
from localspec.units import printable

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
_TOKENS = "tokenizer.ggml.tokens"

_STRING, _ARRAY = 8, 9
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
    type: int  # see ggml_types.BLOCKS
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

    version: int
    entries: Mapping[str, Entry]
    vocabulary: HeaderVocabulary | None
    tensors: tuple[TensorInfo, ...]
    alignment: int
    data_offset: int  # bytes: where the weights begin
    file_bytes: int

    @property
    def weight_bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.tensors)

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


def header_of_file(path: Path) -> Header:
    """The header of a file on this machine. Raises BadModelFile."""
    try:
        with path.open("rb", buffering=0) as file:
            size = file.seek(0, 2)

            def read(offset: int, length: int) -> bytes:
                file.seek(offset)
                return file.read(length)

            return read_header(read, size, label=str(path), chunk=1 << 18)
    except (OSError, ValueError) as error:  # ValueError: a name with NUL
        why = (isinstance(error, OSError) and error.strerror) or error
        raise BadModelFile(
            f"{path} cannot be read: {why}", hint="check the path and its permissions"
        ) from error


def read_header(read: ReadRange, file_bytes: int, *, label: str, chunk: int = 1 << 19) -> Header:
    """Parse a header through a function that reads ranges, at least `chunk` bytes at a time.

    Raises BadModelFile naming `label` and the first thing that is wrong.
    """
    cursor = _Cursor(read, file_bytes, label, chunk)
    version, tensor_count, entry_count = _preamble(cursor)
    entries, vocabulary = _entries(cursor, entry_count)
    alignment = _alignment(cursor, entries)
    tensors = _tensors(cursor, tensor_count, alignment)
    data_offset = _padded(cursor.position, alignment)
    if tensors:
        needed = data_offset + tensors[-1].offset + tensors[-1].bytes
        if needed > file_bytes:
            raise cursor.bad(f"is cut short: its tensors end at byte {needed:,}, the file at {file_bytes:,}")
    return Header(version, entries, vocabulary, tensors, alignment, data_offset, file_bytes)


class _Cursor:
    """A position in the file, and the bytes around it that were read last."""

    def __init__(self, read: ReadRange, size: int, label: str, chunk: int) -> None:
        self._read, self.size, self.label, self._chunk = read, size, label, chunk
        self.buffer, self.at, self._start = b"", 0, 0  # `at` counts from the start of the buffer

    @property
    def position(self) -> int:
        return self._start + self.at

    @property
    def left(self) -> int:
        return self.size - self.position

    def bad(self, what: str) -> BadModelFile:
        return BadModelFile(
            f"{self.label} {printable(what, 200)}", hint="fetch it again, or choose another file"
        )

    def need(self, count: int, expected: int = 0) -> None:
        """Have `count` bytes in the buffer at `at`; `expected` more are sure to be read soon."""
        if len(self.buffer) - self.at >= count:
            return
        if count > self.left:
            raise self.bad("ends in the middle of its header")
        if self.position + count > _MAX_HEADER:
            raise self.bad(f"has a header of more than {_MAX_HEADER >> 20} MiB")
        rest = self.buffer[self.at :]
        start = self.position
        length = min(max(count, expected, self._chunk), max(count, 4 << 20), self.left) - len(rest)
        data = self._read(start + len(rest), length)
        if len(rest) + len(data) < count:
            raise self.bad("ends in the middle of its header")
        self.buffer, self.at, self._start = rest + data, 0, start

    def take(self, count: int) -> bytes:
        self.need(count)
        self.at += count
        return self.buffer[self.at - count : self.at]

    def skip(self, count: int) -> None:
        """Go past bytes without reading those that are not in the buffer yet."""
        if count > self.left:
            raise self.bad("ends in the middle of its header")
        if self.at + count <= len(self.buffer):
            self.at += count
        else:
            self._start, self.buffer, self.at = self.position + count, b"", 0

    def number(self, code: str) -> int | float | bool:
        value: int | float | bool
        (value,) = struct.unpack("<" + code, self.take(struct.calcsize(code)))
        return value

    def whole(self, code: str) -> int:
        return int(self.number(code))

    def string(self, what: str, limit: int = _MAX_STRING) -> str:
        length = self.whole("Q")
        if length > min(limit, self.left):
            raise self.bad(f"says that {what} is {length:,} bytes long")
        return self.take(length).decode("utf-8", "replace")


def _preamble(cursor: _Cursor) -> tuple[int, int, int]:
    if cursor.size < 24 or cursor.take(4) != b"GGUF":
        raise cursor.bad("is not a GGUF file")
    version = cursor.whole("I")
    if version & 0xFFFF == 0 and version:
        raise cursor.bad("is a big-endian GGUF, which llama.cpp cannot load on this machine")
    if version not in (2, 3):
        raise cursor.bad(f"is GGUF version {version}, and only versions 2 and 3 are in use")
    tensors, entries = cursor.whole("Q"), cursor.whole("Q")
    if entries > min(_MAX_KEYS, cursor.left // _SMALLEST_ENTRY):
        raise cursor.bad(f"says that it has {entries:,} metadata keys")
    if tensors > min(_MAX_TENSORS, cursor.left // _SMALLEST_TENSOR):
        raise cursor.bad(f"says that it has {tensors:,} tensors")
    return version, tensors, entries


def _entries(cursor: _Cursor, count: int) -> tuple[dict[str, Entry], HeaderVocabulary | None]:
    entries: dict[str, Entry] = {}
    vocabulary = None
    kept = elements = 0
    for _ in range(count):
        key = cursor.string("a key", 65_535)
        if not key or key in entries:
            raise cursor.bad(f"has the key {key!r} twice" if key else "has an empty key")
        kind = cursor.whole("I")
        if kind != _ARRAY:
            entries[key] = Entry(kind, _scalar(cursor, key, kind))
        else:
            element, length = cursor.whole("I"), cursor.whole("Q")
            elements += length if element == _STRING else 0
            if elements > _MAX_ELEMENTS:
                raise cursor.bad(f"says that {key} has {length:,} elements")
            if key == _TOKENS and element == _STRING:
                vocabulary = _vocabulary(cursor, length)
                entries[key] = Entry(_ARRAY, None, element, length)
            else:
                entries[key] = Entry(_ARRAY, _array(cursor, key, element, length), element, length)
        kept += _kept_bytes(entries[key].value)
        if kept > _MAX_KEPT:
            raise cursor.bad("has more metadata than any model needs")
    return entries, vocabulary


def _scalar(cursor: _Cursor, key: str, kind: int) -> int | float | bool | str:
    if kind == _STRING:
        return cursor.string(key)
    code = SCALARS.get(kind)
    if code is None:
        raise cursor.bad(f"gives {key} the type {kind}, which does not exist")
    return cursor.number(code)


def _array(cursor: _Cursor, key: str, element: int, length: int) -> Value | None:
    if element != _STRING and element not in SCALARS:
        raise cursor.bad(f"gives the elements of {key} the type {element}, which cannot be in an array")
    smallest = 8 if element == _STRING else struct.calcsize(SCALARS[element])
    if length * smallest > cursor.left:
        raise cursor.bad(f"says that {key} has {length:,} elements")
    if length <= _KEPT_ARRAY:
        if element == _STRING:
            return tuple(cursor.string(key) for _ in range(length))
        code = f"<{length}{SCALARS[element]}"
        return struct.unpack(code, cursor.take(struct.calcsize(code)))
    if element != _STRING:
        cursor.skip(length * smallest)
    else:
        for _ in _string_blocks(cursor, key, length):
            pass
    return None


def _vocabulary(cursor: _Cursor, length: int) -> HeaderVocabulary:
    if length * 8 > cursor.left:
        raise cursor.bad(f"says that {_TOKENS} has {length:,} elements")
    blocks: list[bytes] = []
    total = 0
    for block in _string_blocks(cursor, _TOKENS, length):
        total += len(block)
        if total > _MAX_VOCABULARY:
            raise cursor.bad("has more token text than any vocabulary needs")
        blocks.append(block)
    return HeaderVocabulary(length, b"".join(blocks))


def _string_blocks(cursor: _Cursor, key: str, length: int) -> Iterator[bytes]:
    """The bytes of a string array, lengths included, in blocks that end between two strings."""
    done = 0
    while done < length:
        cursor.need(8, expected=(length - done) * 8)
        buffer, start, position, end = cursor.buffer, cursor.at, cursor.at, len(cursor.buffer)
        while done < length and position + 8 <= end:
            following = position + 8 + int.from_bytes(buffer[position : position + 8], "little")
            if following > end:
                break
            position = following
            done += 1
        if position == start:  # one string is longer than what is in the buffer
            size = int.from_bytes(buffer[position : position + 8], "little")
            if size > min(_MAX_STRING, cursor.left):
                raise cursor.bad(f"says that an element of {key} is {size:,} bytes long")
            cursor.need(8 + size)
            continue
        cursor.at = position
        yield buffer[start:position]


def _kept_bytes(value: Value | None) -> int:
    """About what a value takes in memory."""
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
        offset = _padded(offset + tensor.bytes, alignment)
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
    total = 1
    for extent in shape:
        total *= extent
    if any(extent >= 1 << 63 for extent in shape) or total >= 1 << 63:
        raise cursor.bad(f"gives the tensor {name} the impossible shape {shape}")
    if (shape[0] if shape else 1) % elements:
        raise cursor.bad(f"gives the tensor {name} rows that its type cannot be cut into")
    if offset != expected_offset:
        raise cursor.bad(f"puts the tensor {name} at {offset:,}, where {expected_offset:,} is due")
    return TensorInfo(name, shape, kind, offset, total // elements * block_bytes)


def _padded(count: int, alignment: int) -> int:
    return (count + alignment - 1) // alignment * alignment
