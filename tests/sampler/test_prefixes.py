"""Comparing texts: whole slices are compared, with the result of comparing token by token."""

from hypothesis import given
from hypothesis import strategies as st

from localspec.sampler import passes
from localspec.sampler.passes import Continued, begins_alike, common_prefix_length

TEXTS = st.lists(st.integers(0, 1), max_size=12)


@given(
    TEXTS,
    st.integers(0, 12),
    TEXTS,
    st.sampled_from([list, tuple, lambda text: Continued(text[:3], text[3:])]),
)
def test_slices_find_what_single_tokens_find(held, start, tokens, kind):
    end = min(len(held), start + len(tokens))
    first = next((at for at in range(start, end) if held[at] != tokens[at - start]), end)
    before, passes._COMPARED = passes._COMPARED, 3
    try:
        assert common_prefix_length(kind(held), start, tokens) == first
    finally:
        passes._COMPARED = before


@given(TEXTS, TEXTS, st.integers(0, 12))
def test_two_texts_begin_alike_if_their_common_prefix_is_that_long(one, other, count):
    assert begins_alike(one, tuple(other), count) == (common_prefix_length(one, 0, other) >= count)
