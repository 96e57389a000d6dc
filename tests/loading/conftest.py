"""The homes and the Hub of tests/models."""

from tests.models.conftest import hub, impatient, own_home, served

__all__ = ["hub", "impatient", "own_home", "served"]
