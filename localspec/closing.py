"""What is freed by `close`, and at the end of a `with` block."""

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """Its own context manager."""

    @abstractmethod
    def close(self) -> None:
        """Free it; saying it twice is saying it once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
