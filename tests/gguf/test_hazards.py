"""What llama.cpp would abort on is seen in the header."""

from dataclasses import replace

import pytest

from localspec.errors import BadModelFile
from localspec.gguf.facts import first_hazard
from tests.gguf.mutations import by_meaning, header_of_bytes, taken_apart


@pytest.fixture
def raw(tiny_gguf):
    return taken_apart(tiny_gguf(vocab_size=400, layers=1))


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
    assert says in first_hazard(header_of_bytes(mutation.written()))


def test_the_reader_or_the_hazards_stop_nearly_all_that_is_bad_before_llama_cpp_sees_it(raw):
    stopped = 0
    mutations = list(by_meaning(raw))
    for mutation in mutations:
        try:
            stopped += first_hazard(header_of_bytes(mutation.written())) is not None
        except BadModelFile:
            stopped += 1
    assert stopped > len(mutations) / 2


def test_untouched_files_have_no_hazard(raw):
    assert first_hazard(header_of_bytes(raw.written())) is None
    assert first_hazard(header_of_bytes(replace(raw, version=2).written())) is None
