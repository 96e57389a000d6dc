"""The header reader: right about real files, and bounded about hostile ones."""

import contextlib
import struct
import tracemalloc
from dataclasses import replace

import gguf
import pytest

from localspec.errors import BadModelFile
from localspec.gguf.header import header_at, read_header
from localspec.gguf.tensor_types import BLOCKS
from tests.gguf.mutations import by_bytes, by_meaning, header_of_bytes, largest_lies, taken_apart, text

MOST_BYTES = 64 << 20


def test_reads_what_the_gguf_package_reads(tiny_gguf):
    path = tiny_gguf(vocab_size=700, weights="Q8_0")
    header, reader = header_at(path), gguf.GGUFReader(path)
    expected = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert set(header.entries) == set(expected)
    for key, value in expected.items():
        if key == "tokenizer.ggml.tokens":
            assert [token.decode() for token in header.vocabulary.texts()] == value
        else:
            found = header.get(key)
            assert (list(found) if isinstance(found, tuple) else found) == value, key
    for ours, theirs in zip(header.tensors, reader.tensors, strict=True):
        assert (ours.name, list(ours.shape), ours.type) == (
            theirs.name,
            list(theirs.shape),
            theirs.tensor_type,
        )
        assert ours.bytes == theirs.n_bytes
        assert header.data_offset + ours.offset == theirs.data_offset


def test_knows_every_tensor_type_with_its_size():
    import ctypes

    from localspec.llama.library import symbol

    block = symbol("ggml_blck_size", ctypes.c_int64, [ctypes.c_int])
    size = symbol("ggml_type_size", ctypes.c_size_t, [ctypes.c_int])
    kinds = [kind for kind in range(43) if block(kind)]
    assert {kind: (block(kind), size(kind)) for kind in kinds} == {kind: BLOCKS[kind][1:] for kind in BLOCKS}
    assert {kind.name for kind in gguf.GGMLQuantizationType} <= {name for name, _, _ in BLOCKS.values()}


def test_reads_in_small_steps_and_no_further_than_the_header(tiny_gguf):
    path = tiny_gguf(vocab_size=2000, layers=8)
    content, asked = path.read_bytes(), []

    def read(offset, length):
        asked.append((offset, length))
        return content[offset : offset + length]

    header = read_header(read, len(content), label="x", chunk=1000)
    assert header == header_at(path)
    assert max(offset + length for offset, length in asked) < header.data_offset + 1000


def test_jumps_over_long_arrays_of_numbers(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "long.gguf", "llama")
    writer.add_array("long", [1.5] * 200_000)
    writer.add_string("after", "here")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    content, asked = (tmp_path / "long.gguf").read_bytes(), []

    def read(offset, length):
        asked.append(length)
        return content[offset : offset + length]

    header = read_header(read, len(content), label="x", chunk=4096)
    assert header.get("after") == "here"
    assert header.get("long") is None
    assert header.entries["long"].count == 200_000
    assert sum(asked) < 20_000


@pytest.fixture
def raw(tiny_gguf):
    return taken_apart(tiny_gguf(vocab_size=400, layers=1))


def test_taking_apart_and_writing_gives_the_same_file(raw, tiny_gguf):
    assert raw.written() == tiny_gguf(vocab_size=400, layers=1).read_bytes()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"magic": b"GGML"}, "not a GGUF"),
        ({"version": 1}, "version 1"),
        ({"version": 3 << 24}, "big-endian"),
        ({"counts": (2**40, 1)}, "tensors"),
        ({"counts": (1, 2**40)}, "metadata keys"),
        ({"data": b""}, "cut short"),
    ],
)
def test_names_what_is_wrong(raw, change, says):
    with pytest.raises(BadModelFile, match=says):
        header_of_bytes(replace(raw, **change).written())


def test_refuses_a_key_and_a_tensor_that_come_twice(raw):
    with pytest.raises(BadModelFile, match="twice"):
        header_of_bytes(replace(raw, entries=raw.entries + raw.entries[:1]).written())
    with pytest.raises(BadModelFile, match=r"twice|is due"):
        header_of_bytes(replace(raw, tensors=raw.tensors + raw.tensors[:1]).written())


def bounded(content: bytes) -> None:
    """Read a header, whatever it says: a header or one sentence, and never more memory than promised."""
    tracemalloc.start()
    try:
        judge(content)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST_BYTES


def judge(content: bytes) -> None:
    with contextlib.suppress(BadModelFile):
        header_of_bytes(content)


def test_is_bounded_on_every_change_of_meaning(raw):
    for mutation in by_meaning(raw):
        bounded(mutation.written())


def test_is_bounded_on_changes_of_bytes(tiny_gguf):
    path = tiny_gguf(vocab_size=400, layers=1)
    for content in by_bytes(path.read_bytes(), header_at(path).data_offset, 500, seed=1):
        bounded(content)


def test_lies_that_a_large_file_backs_end_at_a_limit():
    for name, content in largest_lies():
        if "allowed" in name:
            header_of_bytes(content)
        else:
            with pytest.raises(BadModelFile, match=r"more|says that"):
                header_of_bytes(content)


def test_a_string_longer_than_any_chunk_is_read(tiny_gguf):
    raw = taken_apart(tiny_gguf(vocab_size=400, layers=1))
    long = struct.pack("<I", 8) + text(b"t" * 2_000_000)
    header = header_of_bytes(replace(raw, entries=(*raw.entries, (b"long", long))).written())
    assert len(header.text("long")) == 2_000_000
