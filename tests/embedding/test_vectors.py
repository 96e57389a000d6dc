"""Norms, lengths of vectors, and the texts of a pass."""

import numpy as np
import pytest

from localspec.embedding.vectors import fitting, normalised, shortened
from localspec.errors import BadSetting

ROWS = np.array([[3, -4], [0, 0]], np.float32)


@pytest.mark.parametrize(
    ("norm", "expected"),
    [
        (2, [0.6, -0.8]),
        (1, [3 / 7, -4 / 7]),
        (0, [24570, -32760]),
        (-1, [3, -4]),
        (3, [3 / 91 ** (1 / 3), -4 / 91 ** (1 / 3)]),
    ],
)
def test_norms_are_llama_servers_and_zeros_stay(norm, expected):
    found = normalised(ROWS, norm)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [expected, [0, 0]], rtol=1e-6)


def test_vectors_are_shortened_to_no_more_than_they_have():
    assert shortened(ROWS, 1).tolist() == [[3], [0]]
    for wrong in (0, 3, -1):
        with pytest.raises(BadSetting, match=f"dimensions cannot be {wrong}"):
            shortened(ROWS, wrong)


@pytest.mark.parametrize(
    ("lengths", "budget", "count"), [([5, 5, 5], 10, 2), ([50, 1], 10, 1), ([1], 10, 1), ([1, 1], 9, 2)]
)
def test_a_pass_has_the_first_texts_that_fit_and_at_least_one(lengths, budget, count):
    assert fitting(lengths, budget) == count
