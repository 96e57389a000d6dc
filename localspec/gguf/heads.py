"""What kind of drafter a file holds, by its header."""

from enum import StrEnum


class DraftKind(StrEnum):
    """How a file drafts."""

    MODEL = "model"  # a whole model, which decodes by itself
