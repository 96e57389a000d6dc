"""The homes and the Hub of tests/models."""

from tests.models.conftest import hub, impatient, known, own_home, served

__all__ = ["hub", "impatient", "known", "own_home", "served"]
