"""A context of llama.cpp as its owner has it: the first of its lanes, with all of them."""

from typing import Any

from localspec.llama.lane import Lane
from localspec.llama.model import Model
from localspec.llama.shared import SharedContext
from localspec.llama.stored_texts import SavedTexts


class Context(Lane):
    """The first lane of a context of llama.cpp, which lives and ends with it."""

    def __init__(
        self,
        model: Model,
        *,
        lanes: int = 1,
        checkpoint_bytes: int = 0,
        saved_bytes: int = 0,
        **options: Any,  # noqa: ANN401
    ) -> None:
        """Room for `length` tokens in each lane; raises BadModelFile, BadSetting, NotEnoughMemory or BackendFailure.

        lanes: texts at once; options: those of SharedContext.
        checkpoint_bytes, saved_bytes: of the computer's memory, where the cache cannot step back, and for `recall`.
        """
        shared = SharedContext(model, lanes=lanes, **options)
        saved = SavedTexts(0 if model.remote else saved_bytes)  # too far away to copy states
        super().__init__(shared, 0, checkpoint_bytes // lanes, saved)
        others = (Lane(shared, number, checkpoint_bytes // lanes, saved) for number in range(1, lanes))
        self.lanes: tuple[Lane, ...] = (self, *others)
        shared.lanes = self.lanes
