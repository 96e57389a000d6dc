"""The header reader: right about real files, bounded about hostile ones, and warned of llama.cpp's aborts."""

import contextlib
import struct
import tracemalloc
from dataclasses import replace

import gguf
import pytest

from localspec.errors import BadModelFile
from localspec.gguf.facts import first_known_crash
from localspec.gguf.header import BLOCKS, header_at, read_header
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
        found = ours.name, [*ours.shape], ours.type, ours.bytes
        assert found == (theirs.name, [*theirs.shape], theirs.tensor_type, theirs.n_bytes)
        assert header.data_offset + ours.offset == theirs.data_offset


def test_a_token_that_the_vocabulary_lacks_is_none(tiny_gguf):
    header = header_at(tiny_gguf(vocab_size=400))
    assert [header.token("nothing", default) for default in (11, 399, 400)] == [11, 399, -1]


def test_knows_every_tensor_type_with_its_size():
    import ctypes

    from localspec.llama.library import symbol

    block = symbol("ggml_blck_size", ctypes.c_int64, [ctypes.c_int])
    size = symbol("ggml_type_size", ctypes.c_size_t, [ctypes.c_int])
    kinds = [kind for kind in range(43) if block(kind)]
    assert {kind: (block(kind), size(kind)) for kind in kinds} == {kind: BLOCKS[kind][1:] for kind in BLOCKS}
    assert {kind.name for kind in gguf.GGMLQuantizationType} <= {name for name, _, _ in BLOCKS.values()}


def read_in_chunks(path, chunk):
    content, asked = path.read_bytes(), []

    def read(offset, length):
        asked.append((offset, length))
        return content[offset : offset + length]

    return read_header(read, len(content), label="x", chunk=chunk), asked


def test_reads_in_small_steps_and_no_further_than_the_header(tiny_gguf):
    path = tiny_gguf(vocab_size=2000, layers=8)
    header, asked = read_in_chunks(path, 1000)
    assert header == header_at(path)
    assert max(offset + length for offset, length in asked) < header.data_offset + 1000


def test_jumps_over_long_arrays_of_numbers(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "long.gguf", "llama")
    writer.add_array("long", [1.5] * 200_000)
    writer.add_string("after", "here")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    header, asked = read_in_chunks(tmp_path / "long.gguf", 4096)
    assert header.get("after") == "here"
    assert header.get("long") is None
    assert header.entries["long"].count == 200_000
    assert sum(length for _, length in asked) < 20_000


@pytest.fixture
def raw(tiny_gguf):
    return taken_apart(tiny_gguf(vocab_size=400, layers=1))


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


@pytest.mark.parametrize("part", ["entries", "tensors"])
def test_refuses_a_key_and_a_tensor_that_come_twice(raw, part):
    found = getattr(raw, part)
    with pytest.raises(BadModelFile, match=r"twice|instead of"):
        header_of_bytes(replace(raw, **{part: found + found[:1]}).written())


def bounded(content: bytes) -> None:
    """Read a header, whatever it says: a header or one sentence, and never more memory than promised."""
    tracemalloc.start()
    try:
        with contextlib.suppress(BadModelFile):
            header_of_bytes(content)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST_BYTES


@pytest.mark.process
def test_is_bounded_on_every_change_of_meaning(raw):
    for mutation in by_meaning(raw):
        bounded(mutation.written())


@pytest.mark.process
def test_is_bounded_on_changes_of_bytes(tiny_gguf):
    path = tiny_gguf(vocab_size=400, layers=1)
    for content in by_bytes(path.read_bytes(), header_at(path).data_offset, 500, seed=1):
        bounded(content)


@pytest.mark.nightly
def test_lies_that_a_large_file_backs_end_at_a_limit():
    for name, content in largest_lies():
        if "allowed" in name:
            header_of_bytes(content)
        else:
            with pytest.raises(BadModelFile, match=r"more|its header gives"):
                header_of_bytes(content)


def test_a_string_longer_than_any_chunk_is_read(raw):
    long = struct.pack("<I", 8) + text(b"t" * 2_000_000)
    header = header_of_bytes(replace(raw, entries=(*raw.entries, (b"long", long))).written())
    assert len(header.text("long")) == 2_000_000


@pytest.mark.parametrize(
    ("part", "what", "says"),
    [
        ("block_count", " 0", "0 layers"),
        ("block_count", "65536", "65536 layers"),
        ("context_length", " 1", "a context of 1 tokens"),
        ("layer_norm_rms_epsilon", "nan", "nan as llama.attention.layer_norm_rms_epsilon"),
        ("layer_norm_rms_epsilon", "-1.0", "-1.0 as llama.attention.layer_norm_rms_epsilon"),
        ("ffn_down", "of type 25", "stores the weight blk.0.ffn_down.weight as I16"),
        ("tokenizer.ggml.tokens", "all the same", "same token twice"),
    ],
)
def test_known_hazards_are_seen_in_the_header(raw, part, what, says):
    mutation = next(m for m in by_meaning(raw) if part in m.note and m.note.endswith(what))
    assert says in first_known_crash(header_of_bytes(mutation.written()))


def test_the_reader_or_the_hazards_stop_nearly_all_that_is_bad_before_llama_cpp_sees_it(raw):
    def stops(content):
        try:
            return first_known_crash(header_of_bytes(content)) is not None
        except BadModelFile:
            return True

    stopped = [stops(mutation.written()) for mutation in by_meaning(raw)]
    assert sum(stopped) > len(stopped) / 2
    assert not stops(raw.written())
    assert not stops(replace(raw, version=2).written())
