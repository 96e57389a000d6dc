"""A context of llama.cpp as its owner has it: the first of its lanes, with all of them."""

from localspec.gguf.trimmed import TokenTable
from localspec.llama.lane import Lane
from localspec.llama.model import Model
from localspec.llama.shared import SharedContext
from localspec.llama.states import SavedTexts


class Context(Lane):
    """The first lane of a context of llama.cpp, which lives and ends with it."""

    def __init__(
        self,
        model: Model,
        *,
        length: int,
        threads: int | None = None,
        batch_size: int | None = None,
        rows_max: int = 9,
        kv_type_k: str = "f16",
        kv_type_v: str = "f16",
        flash_attn: str = "auto",
        snapshots: int = 0,
        steps_back: bool = False,
        checkpoint_bytes: int = 0,
        saved_bytes: int = 0,
        vocabulary: int | None = None,
        top_k: bool = False,
        cuts: bool = False,
        table: TokenTable | None = None,
        lanes: int = 1,
    ) -> None:
        """Room for `length` tokens in each lane; raises BadModelFile, BadSetting, NotEnoughMemory or BackendFailure.

        threads: on the CPU; None is the physical cores.
        batch_size: tokens in one call into llama.cpp, so the chunks of a prompt; see `shared.py`.
        flash_attn: on, off or auto, which is on where every layer's device can do it.
        rows_max: the most rows that one decode may ask for, so depth + 1.
        snapshots: for recurrent models, how many tokens can be taken back; each costs a whole state.
        steps_back: for recurrent drafts, whose newest checkpoint then stays on the device, which costs one state.
        checkpoint_bytes, saved_bytes: of the computer's memory, where the cache cannot step back, and for `recall`.
        vocabulary: for a draft, the target's tokens, some more or fewer than its own: rows have those of both, and
            a token that it lacks is read as its last one.
        top_k: rows hold their `TOP_K` largest logits alone where a GPU can choose them: for drafts, any will do.
        cuts: rows may do so where `cut_rows` says that they suffice: for targets, whose rows can still be whole.
        table: of a trimmed model, which reads and speaks in the tokens of the whole vocabulary by it.
        lanes: texts at once.
        """
        shared = SharedContext(
            model,
            lanes=lanes,
            length=length,
            threads=threads,
            batch_size=batch_size,
            rows_max=rows_max,
            kv_type_k=kv_type_k,
            kv_type_v=kv_type_v,
            flash_attn=flash_attn,
            snapshots=snapshots,
            steps_back=steps_back,
            vocabulary=vocabulary,
            top_k=top_k,
            cuts=cuts,
            table=table,
        )
        saved = SavedTexts(0 if model.remote else saved_bytes)  # too far away to copy states
        super().__init__(shared, 0, checkpoint_bytes // lanes, saved)
        others = (Lane(shared, number, checkpoint_bytes // lanes, saved) for number in range(1, lanes))
        self.lanes: tuple[Lane, ...] = (self, *others)
        shared.lanes = self.lanes
