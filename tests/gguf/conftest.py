"""A home of its own for every test."""

from tests.models.conftest import own_home

__all__ = ["own_home"]
