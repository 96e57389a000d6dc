"""A cache of its own for every test."""

import pytest


@pytest.fixture(autouse=True)
def own_cache(cache_of_its_own):
    """What a check found once is not known to the next test."""
