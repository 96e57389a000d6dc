"""A context of llama.cpp with several slots: one forward pass decodes the tokens of all slots.

Each slot has its own stream of the KV cache, so its rows are the same as in a pass of this slot alone. llama.cpp
decodes streams together only if they have equally many tokens in the batch. So shorter streams get padding tokens,
which are removed before the next decode.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from localspec.algorithm.batcher import Batcher
from localspec.algorithm.images import ImageRow, next_piece
from localspec.algorithm.pass_order import Part
from localspec.errors import BackendFailure, BadModelFile, LocalspecError
from localspec.llama.batch import Batch, EmbeddingBatch, Stretch, TrimmedRows
from localspec.llama.cache import Cache, params_of, size_context
from localspec.llama.cached_text import CachedText
from localspec.llama.library import lib
from localspec.llama.load import Load
from localspec.llama.model import Model
from localspec.llama.rows import FullRows, HiddenReader, TopK, TopRows, check_finite
from localspec.sampler.passes import Candidates, ForwardPass, HiddenRows, LateRows, Row
from localspec.stopping import stopping_at

CUT = 1  # id of the sequence for rows of only top-k logits
TOP_K = 128  # number of top-k logits in a row; enough for top_k=40 with penalties over 64 tokens
# Maximum tokens in a chunk of a prompt. A CPU gets smaller chunks, because each can take it seconds.
_GPU_CHUNK, _CPU_CHUNK = 512, 128


Wanted = tuple[CachedText, Sequence[int], int]  # a slot, its new tokens, the number of last tokens with rows


def _sequence(wanted: Wanted) -> int:
    return wanted[0].sequence


class SharedContext(Cache):
    """A context that several slots share; one thread at a time decodes for all slots."""

    def __init__(self, model: Model, load: Load, batcher: Batcher | None = None) -> None:
        """`batcher`: for a draft with several slots, the Batcher of its target."""
        if not model.generates_text:
            raise BadModelFile(f"{model.name} does not generate text", hint="choose a model for chat or text")
        slots, table, size = load.slots, load.table, model.vocab.size
        params = params_of(model, load)
        self.rows_max = int(min(load.rows_max, model.rows_in_place))
        chunk = load.batch_size or (_GPU_CHUNK if model.gpus else _CPU_CHUNK)
        size_context(params, chunk, self.rows_max, slots)
        usual = params.n_ubatch  # maximum tokens of a pass without an image
        params.n_ubatch = params.n_batch = max(usual, min(load.image_rows, params.n_ctx))
        params.n_rs_seq = load.snapshots  # llama.cpp sets 0 for architectures without snapshots
        self.spare = 1 if load.steps_back and slots == 1 and not model.can_roll_back else 0
        window = lib.llama_model_n_swa(model.pointer)
        # Top-k logits are off with several GPUs, because they are not tested there.
        can_keep_top_k = model.output_on_gpu and model.can_roll_back and len(model.gpus) < 2
        top_k_rows = load.top_k_rows and not 0 < window < params.n_ctx and slots == 1 and can_keep_top_k
        if self.spare or top_k_rows:  # in a unified KV cache the two sequences share cells
            params.n_seq_max, params.kv_unified = 2, True
            params.n_outputs_max = max(self.rows_max, 2)  # llama.cpp needs at least one row for each sequence
        known = table.count if table else size
        self._vocabulary = load.vocabulary or known
        self._shared = min(self._vocabulary, known)
        output_tokens = table.output_tokens(self._shared) if table else self._shared
        sampler = None
        # On a CPU numpy chooses the top-k logits, because llama.cpp takes five times as long.
        if (load.top_k and model.output_on_gpu) or top_k_rows:
            # Request one more logit for each token that is not shared, because these logits may be among the largest.
            most = min(TOP_K + size - output_tokens, size)
            sampler = TopK(most, params, [CUT] if top_k_rows else range(slots))
        super().__init__(model, params, sampler)
        self.widest, self.chunk = self.chunk, usual
        self.slot_count = slots
        self.batcher = (batcher or Batcher(self, self.calling)) if slots > 1 else None
        if self.batcher:
            self.calling = self.batcher.calling
        self.slots: Sequence[CachedText] = ()
        self.capacity //= slots
        # llama.cpp rounds lengths up. A window of the whole length counts as none, because no token is before it.
        self.window: int = window if window < self.capacity else 0
        self.snapshots: int = 0 if model.can_roll_back else lib.llama_n_rs_seq(self.handle)
        batch = partial(EmbeddingBatch, table=table) if table else Batch
        self._batch = batch(self.chunk, sequences=2 * slots)
        chooses = sampler is not None and sampler.installed_on(self.handle)
        self.cut_to = TOP_K if top_k_rows and chooses else 0  # logits in a row of the sequence CUT; 0: all
        # For each row llama.cpp also reserves tokens, logits and probabilities: 12 bytes for each token.
        self.top_k_bytes = 12 * size * self.rows_max if self.cut_to else 0
        # Rows may be longer than the vocabulary: only their first elements are logits of tokens.
        self._top_k_rows = TopRows(size, output_tokens)
        read = self._top_k_rows if chooses and not top_k_rows else FullRows(size, output_tokens)
        self._rows = TrimmedRows(read, table.token_ids, TOP_K) if table else read
        self._hidden: HiddenReader | None = None  # None until `extract` is called
        model.use_adapters(self.handle)

    def extract(self, wants: HiddenRows) -> None:
        """Let every pass return the hidden rows that `wants` describes. Call it once, before the first decode."""
        assert not self._hidden, "a pass has one set of hidden rows"
        self._hidden = HiddenReader(self.handle, self.model.pointer, wants)

    def decode(self, parts: Sequence[Part]) -> Sequence[ForwardPass]:
        numbers = sorted(part.slot for part in parts if part.rows)
        if not self.model.can_roll_back and numbers and numbers[-1] - numbers[0] >= len(numbers):
            # If the slots of a batch are not consecutive, llama.cpp mixes up their recurrent states.
            what = "llama.cpp cannot write these replies at the same time"
            raise BackendFailure(what, hint="run one at a time: --parallel 1")
        slots = [self.slots[part.slot] for part in parts]
        lengths = [slot.length for slot in slots]
        for slot in slots:
            if error := slot.failure:
                slot.failure = error if len(parts) > 1 else None  # keep the error for this slot's own try
                raise error
        # Sort the slots, because in another order llama.cpp needs more passes.
        wanted = sorted(((self.slots[part.slot], part.tokens, part.rows) for part in parts), key=_sequence)
        with self.calling:
            try:
                with stopping_at(slots[0].stop if len(parts) == 1 else None):
                    found = dict(zip(map(_sequence, wanted), self.read(wanted), strict=True))
                return [found[part.slot] for part in parts]
            except BaseException as failure:
                lost = [slot.recover(length) for slot, length in zip(slots, lengths, strict=True)]
                if len(parts) > 1 and isinstance(failure, LocalspecError):  # each part is tried alone next
                    self._read_again(dict(zip(slots, lost, strict=True)), failure)
                raise

    def _read_again(self, lost: Mapping[CachedText, Sequence[int]], failure: LocalspecError) -> None:
        """Append the tokens that slots lost in a failed pass. If this fails for a slot, its next decode fails."""
        for slot, tokens in lost.items():
            slot.failure = failure if tokens else None
        for slot, tokens in lost.items():
            try:
                while piece := next_piece(tokens, self.chunk):
                    with stopping_at(None):
                        self.read([(slot, piece, 0)])
                    tokens = tokens[len(piece) :]
                slot.failure = None
            except LocalspecError as error:
                slot.failure = error

    def read(
        self, wanted: Sequence[Wanted], whole: Callable[[int], np.ndarray] | None = None
    ) -> list[ForwardPass]:
        """Run one pass for these slots; after a failure the cache may have some of the tokens.

        `whole`: for a single slot with top-k logits, a function that returns a whole row by its index.
        """
        if isinstance(first := wanted[0][1][0], ImageRow):
            return [self._read_image(wanted[0][0], wanted[0][1], first)]
        width, starts = max(len(tokens) for _, tokens, _ in wanted), [slot.length for slot, _, _ in wanted]
        # Do not pad if a recurrent state could not roll back the padding: llama.cpp then runs several passes.
        pads = self.model.can_roll_back or width - 1 <= self.snapshots
        stretches, paddings = list[Stretch](), list[int]()
        for (slot, tokens, rows), start in zip(wanted, starts, strict=True):
            slot.forget_padding()
            padding = (min(width, self.capacity - start) if pads else len(tokens)) - len(tokens)
            # Over RPC, request at least one row, because llama.cpp does not wait for the end of a pass without rows.
            outputs = rows or int(bool(self.model.remote))
            flags = [0] * (len(tokens) - outputs) + [1] * outputs + [0] * padding
            readable = tokens
            if self._vocabulary != self._shared:  # replace special tokens of the target that the draft lacks
                readable = [min(token, self._shared - 1) for token in tokens]
            at = slot.position(start)
            stretches.append(Stretch(slot.sequence, at, [*readable, *[0] * padding], flags))
            paddings.append(padding)
        before, batch = self.busy_seconds, self._batch.fill_all(stretches)
        late = wanted[0][2] > 0 and wanted[0][0].late and self.computes_late
        self.run(lib.llama_decode, batch, total := batch.n_tokens, threads=wanted[0][0].threads, late=late)
        for (slot, tokens, _), padding in zip(wanted, paddings, strict=True):
            slot.took(tokens, padding, self.busy_seconds - before)
        if late:
            return [ForwardPass(starts[0], wanted[0][1], self._late_rows(wanted[0], whole))]
        hidden, row, token = self._hidden.read(total) if self._hidden else None, 0, 0
        every = self._read_rows(sum(rows for _, _, rows in wanted), whole)
        passes = list[ForwardPass]()
        for (_, tokens, rows), start, padding in zip(wanted, starts, paddings, strict=True):
            own = every[row : row + rows]
            if own and len(wanted) > 1:  # the reader has checked only the pass's last row
                check_finite(last.logits if isinstance(last := own[-1], Candidates) else last)
            shown = None if hidden is None else hidden[token : token + len(tokens)]
            shared = total if len(wanted) > 1 else 0
            passes.append(ForwardPass(start, tokens, own, shown, pass_width=shared))
            row, token = row + rows, token + len(tokens) + padding
        return passes

    def _read_image(self, slot: CachedText, tokens: Sequence[int], first: ImageRow) -> ForwardPass:
        start, before, count = slot.length, self.busy_seconds, len(tokens)
        slot.forget_padding()
        position, sequence = slot.position(start), slot.sequence

        def decode(context: object, _batch: object) -> int:
            return first.chunk.decode(context, position, sequence)

        self.run(decode, None, count, threads=slot.threads)
        slot.took(tokens, 0, self.busy_seconds - before)
        last = (count - 1) % self.widest + 1  # tokens of the last batch, whose hidden rows llama.cpp keeps
        hidden = self._hidden.read(last) if self._hidden else None
        return ForwardPass(start, tokens, (), hidden)

    @property
    def computes_late(self) -> bool:
        """Whether a device computes passes while Python continues."""
        return self.model.all_on_gpu and self.slot_count == 1 and self._hidden is None

    def _late_rows(self, wanted: Wanted, whole: Callable[[int], np.ndarray] | None) -> LateRows:
        slot, _, count = wanted

        def read() -> Sequence[Row]:
            slot.busy_seconds += self.settle()
            return self._read_rows(count, whole)

        return LateRows(count, read)

    def _read_rows(self, count: int, whole: Callable[[int], np.ndarray] | None) -> Sequence[Row]:
        if not count:
            return ()
        if whole:
            return self._top_k_rows.read(self.handle, count, whole)
        return self._rows.read(self.handle, count)


def joined(passes: Sequence[ForwardPass]) -> ForwardPass:
    if len(passes) == 1:
        return passes[0]
    tokens = [token for each in passes for token in each.tokens]
    hidden = [each.hidden for each in passes if each.hidden is not None]
    whole = np.concatenate(hidden) if hidden else None
    return passes[-1]._replace(start=passes[0].start, tokens=tokens, hidden=whole)
