"""GGUF files that are wrong on purpose: by meaning, key by key and tensor by tensor, and by plain bytes."""

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from localspec.gguf.header import ARRAY as _ARRAY
from localspec.gguf.header import SCALARS as _CODES
from localspec.gguf.header import STRING as _STRING
from localspec.gguf.header import Header, header_at, read_header

_FLOATS, _UNSIGNED = (6, 12), (0, 2, 4, 10)


@dataclass(frozen=True)
class RawTensor:
    name: bytes
    shape: tuple[int, ...]
    type: int
    offset: int


@dataclass(frozen=True)
class RawFile:
    """A GGUF taken apart, so that any part can be replaced by nonsense."""

    entries: tuple[tuple[bytes, bytes], ...]  # key, and its type and value as bytes
    tensors: tuple[RawTensor, ...]
    data: bytes
    magic: bytes = b"GGUF"
    version: int = 3
    counts: tuple[int, int] | None = None  # tensors, entries: None is the truth
    alignment: int = 32
    note: str = field(default="", compare=False)

    def written(self) -> bytes:
        tensors, entries = self.counts or (len(self.tensors), len(self.entries))
        head = self.magic + struct.pack("<IQQ", self.version, tensors, entries)
        head += b"".join(text(key) + value for key, value in self.entries)
        for tensor in self.tensors:
            head += text(tensor.name) + struct.pack("<I", len(tensor.shape))
            head += b"".join(struct.pack("<Q", extent % 2**64) for extent in tensor.shape)
            head += struct.pack("<IQ", tensor.type, tensor.offset)
        return head + bytes(-len(head) % self.alignment) + self.data


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def header_of_bytes(data: bytes) -> Header:
    return read_header(lambda offset, length: data[offset : offset + length], len(data), label="the file")


def taken_apart(path: Path) -> RawFile:
    header = header_at(path)
    content = path.read_bytes()
    tensors = tuple(RawTensor(t.name.encode(), t.shape, t.type, t.offset) for t in header.tensors)
    return RawFile(tuple(_raw_entries(content, header)), tensors, content[header.data_offset :])


def _raw_entries(content: bytes, header: Header) -> Iterator[tuple[bytes, bytes]]:
    position = 24
    for _ in header.entries:
        key, position = _string(content, position)
        start = position
        position = _after_value(content, position)
        yield key, content[start:position]


def _string(content: bytes, position: int) -> tuple[bytes, int]:
    (length,) = struct.unpack_from("<Q", content, position)
    return content[position + 8 : position + 8 + length], position + 8 + length


def _after_value(content: bytes, position: int) -> int:
    (kind,) = struct.unpack_from("<I", content, position)
    position += 4
    if kind != _ARRAY:
        return _after_element(content, position, kind)
    element, count = struct.unpack_from("<IQ", content, position)
    position += 12
    for _ in range(count):
        position = _after_element(content, position, element)
    return position


def _after_element(content: bytes, position: int, kind: int) -> int:
    return _string(content, position)[1] if kind == _STRING else position + struct.calcsize(_CODES[kind])


def by_meaning(raw: RawFile) -> Iterator[RawFile]:
    """Every key, dimension, type and token in turn: zero, huge, negative, NaN, wrong type, twice, missing."""
    for i, (key, value) in enumerate(raw.entries):
        others = (raw.entries[:i], raw.entries[i + 1 :])
        yield replace(raw, entries=others[0] + others[1], note=f"{key!r} missing")
        yield replace(raw, entries=(*raw.entries, (key, value)), note=f"{key!r} twice")
        for what, changed in _values(value):
            yield replace(raw, entries=(*others[0], (key, changed), *others[1]), note=f"{key!r} {what}")
    for i, tensor in enumerate(raw.tensors):
        for what, changed in _tensors(tensor):
            tensors = (*raw.tensors[:i], *changed, *raw.tensors[i + 1 :])
            yield replace(raw, tensors=tensors, note=f"{tensor.name!r} {what}")
    yield replace(raw, data=raw.data[: len(raw.data) // 2], note="half of the weights")
    yield replace(raw, data=b"\xff" * len(raw.data), note="weights of ones")
    yield replace(raw, version=2**31, note="version")
    yield replace(raw, version=3 << 24, note="big-endian")
    for counts in ((0, 0), (2**63, 1), (1, 2**63), (len(raw.tensors) + 1, len(raw.entries))):
        yield replace(raw, counts=counts, note=f"counts {counts}")


def _values(value: bytes) -> Iterator[tuple[str, bytes]]:
    (kind,) = struct.unpack_from("<I", value)
    yield "as text", struct.pack("<I", _STRING) + text(b"nonsense")
    yield "as number", struct.pack("<IQ", 10, 7)
    yield "of no type", struct.pack("<I", 99) + value[4:]
    if kind == _STRING:
        yield "empty", struct.pack("<I", _STRING) + text(b"")
        yield "garbage", struct.pack("<I", _STRING) + text(b"\xff\xfe\0{{" * 9)
        yield "endless", struct.pack("<IQ", _STRING, 2**62)
    elif kind == _ARRAY:
        yield from _arrays(value)
    elif kind in _FLOATS:
        for number in (0.0, float("nan"), float("inf"), -1.0, 1e38):
            yield str(number), struct.pack("<I", kind) + struct.pack("<" + _CODES[kind], number)
    elif kind != 7:
        top = 2 ** (8 * struct.calcsize(_CODES[kind]) - (kind not in _UNSIGNED)) - 1
        for number in (0, 1, 3, 65_536, top):
            yield str(number), struct.pack("<I", kind) + struct.pack("<" + _CODES[kind], min(number, top))


def _arrays(value: bytes) -> Iterator[tuple[str, bytes]]:
    _, element, count = struct.unpack_from("<IIQ", value)
    yield "empty", struct.pack("<IIQ", _ARRAY, element, 0)
    yield "endless", struct.pack("<IIQ", _ARRAY, element, 2**61) + value[16:]
    yield "one short", struct.pack("<IIQ", _ARRAY, element, max(count - 1, 0)) + value[16:]
    yield "nested", struct.pack("<IIQ", _ARRAY, _ARRAY, 1) + struct.pack("<IQ", element, 0)
    if element == _STRING:
        same = text(b"same") * count
        yield "all the same", struct.pack("<IIQ", _ARRAY, element, count) + same
        odd = b"".join(text(b"\xff\xf0%d" % i) for i in range(count))
        yield "not UTF-8", struct.pack("<IIQ", _ARRAY, element, count) + odd
        yield "empty texts", struct.pack("<IIQ", _ARRAY, element, count) + text(b"") * count
        ten = text(b"a") + b"".join(text(b"%d" % i) for i in range(9))
        yield "shorter", struct.pack("<IIQ", _ARRAY, element, 10) + ten


def _tensors(tensor: RawTensor) -> Iterator[tuple[str, tuple[RawTensor, ...]]]:
    yield "missing", ()
    yield "twice", (tensor, tensor)
    yield "renamed", (replace(tensor, name=b"blk.9999.weight"),)
    yield "named too long", (replace(tensor, name=b"x" * 200),)
    for kind in (0, 1, 24, 25, 26, 27, 28, 30, 4, 99):
        yield f"of type {kind}", (replace(tensor, type=kind),)
    for extent in (0, 1, 2**40, -1, 2**63):
        yield f"with rows of {extent}", (replace(tensor, shape=(extent, *tensor.shape[1:])),)
    yield "turned", (replace(tensor, shape=tensor.shape[::-1]),)
    yield "flat", (replace(tensor, shape=()),)
    yield "with five dimensions", (replace(tensor, shape=(*tensor.shape, 1, 1, 1, 1)[:5]),)
    yield "elsewhere", (replace(tensor, offset=tensor.offset + 32),)
    yield "far away", (replace(tensor, offset=2**63),)


def by_bytes(content: bytes, header_bytes: int, count: int, seed: int) -> Iterator[bytes]:
    chance = random.Random(seed)
    for _ in range(count):
        changed = bytearray(content)
        for _ in range(chance.choice((1, 1, 2, 8))):
            byte = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            changed[chance.randrange(header_bytes)] = byte
        at = chance.randrange(header_bytes)
        match chance.randrange(4):
            case 0:
                del changed[at:]
            case 1:
                changed[at:at] = chance.randbytes(chance.choice((1, 8, 4096)))
        yield bytes(changed)


def largest_lies() -> Iterator[tuple[str, bytes]]:
    """Headers as large as the limits allow, and larger: the worst that a reader can be made to do."""
    allowed, many = 2_900_000, 3_100_000
    for key in (b"tokenizer.ggml.tokens", b"tokenizer.ggml.merges"):
        for count, name in ((allowed, "allowed"), (many, "too many")):
            array = struct.pack("<IIQ", _ARRAY, _STRING, count) + text(b"") * count
            yield f"{key.decode()} {name}", _one_key(key, array)
    array = struct.pack("<IIQ", _ARRAY, _STRING, allowed) + text(b"xyz") * allowed
    yield "token text", _one_key(b"tokenizer.ggml.tokens", array)
    array = struct.pack("<IIQ", _ARRAY, _STRING, 700) + text(b"") * 700
    arrays = (text(b"%d" % i) + array for i in range(4096))
    yield "short arrays", b"GGUF" + struct.pack("<IQQ", 3, 0, 4096) + b"".join(arrays)
    tensors = b"".join(text(b"%d" % i) + struct.pack("<IIQ", 0, 0, 32 * i) for i in range(32_768))
    yield "tensors, allowed", b"GGUF" + struct.pack("<IQQ", 3, 32_768, 0) + tensors + bytes(32 * 32_768 + 32)
    yield "tensors, too many", b"GGUF" + struct.pack("<IQQ", 3, 32_769, 0) + tensors + bytes(32 * 32_768 + 32)


def _one_key(key: bytes, value: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text(key) + value
