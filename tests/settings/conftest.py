"""A home and a cache of its own for every test."""

import pytest

from tests.pairs.conftest import own_home

__all__ = ["own_home"]


@pytest.fixture(autouse=True)
def own_cache(cache_of_its_own):
    """What is found out about one home is not known in another."""
