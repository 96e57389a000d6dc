"""A context of llama.cpp that several lanes share: one pass over the weights for the tokens of all of them.

Each lane has a stream of the cache to itself, so its rows are those that it would get alone. llama.cpp reads streams
in one pass only where they bring equally many tokens: shorter ones are padded, and forget the padding before they
decode again. Prompts have passes of their own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from threading import RLock
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from localspec.algorithm.batcher import Batcher, Part
from localspec.errors import BackendFailure, BadModelFile, LocalspecError
from localspec.gguf.trimmed import TokenTable
from localspec.health.stopping import Stop, heeding
from localspec.llama.batch import Batch, EmbeddingBatch, Stretch, TrimmedRows
from localspec.llama.cache import WIDEST, Cache, make_room, params_of, pipelines
from localspec.llama.library import lib
from localspec.llama.model import Model
from localspec.llama.rows import FullRows, HiddenReader, TopK, TopRows, check_finite
from localspec.llama.states import SavedText
from localspec.llama.threads import Threads
from localspec.sampler.passes import Candidates, HiddenRows, Pass, Row

CUT = 1  # the sequence whose rows hold no more than these
TOP_K = 128  # logits of a row: top-k 40 with penalties over 64 tokens needs 104
# Tokens. On a CPU a chunk can take seconds and cannot be cancelled; smaller ones are 3 to 5 % slower.
_GPU_CHUNK, _CPU_CHUNK = 512, 128
# Chunks in one call where several GPUs share the layers: as many as llama.cpp has copies of buffers.
_IN_PIPELINE = 4


class Reader(Protocol):
    """A lane as its context sees it."""

    sequence: int
    threads: Threads
    stop: Stop | None  # that ends a pass which is the lane's alone

    @property
    def length(self) -> int: ...
    def forget_padding(self) -> None: ...
    def took(self, tokens: Sequence[int], padding: int, seconds: float, threads: int) -> None: ...
    def recover(self, length: int) -> Sequence[int]: ...
    def lends(self, tokens: Sequence[int]) -> int: ...
    def copied(self, tokens: Sequence[int], at_least: int) -> SavedText | None: ...


Wanted = tuple[Reader, Sequence[int], int]  # the tokens of a lane, and how many rows of the last ones


class SharedContext(Cache):
    """The context of several lanes: for one of them at a time, which decodes for all."""

    def __init__(
        self,
        model: Model,
        *,
        lanes: int,
        length: int,  # tokens
        batch_size: int | None = None,  # tokens in one call into llama.cpp, so the chunks of a prompt
        rows_max: int = 9,  # the most rows that one decode may ask for, so depth + 1
        snapshots: int = 0,  # for recurrent models: tokens that can be taken back; each costs a whole state
        # For recurrent drafts: the newest checkpoint stays on the device, which costs one state
        steps_back: bool = False,
        # For a draft: the target's tokens, some more or fewer than its own. Rows have those of both, and a token
        # that it lacks is read as its last one.
        vocabulary: int | None = None,
        # Rows hold their `TOP_K` largest logits alone where a GPU can choose them: for drafts, any will do
        top_k: bool = False,
        cuts: bool = False,  # rows may do so where `cut_rows` says that they suffice: for targets
        table: TokenTable | None = None,  # of a trimmed model, which speaks in tokens of the whole vocabulary
        **settings: Any,  # noqa: ANN401  threads, kv_type_k, kv_type_v and flash_attn, as in params_of
    ) -> None:
        if not model.generates_text:
            raise BadModelFile(f"{model.name} does not generate text", hint="use a model with a decoder only")
        params = params_of(model, length, **settings)
        usual = _GPU_CHUNK if model.gpus else _CPU_CHUNK
        make_room(params, batch_size or usual, rows_max, _IN_PIPELINE if pipelines(model) else 1, lanes=lanes)
        params.n_rs_seq = snapshots  # llama.cpp makes it 0 for architectures that cannot
        self.spare = 1 if steps_back and lanes == 1 and not model.can_roll_back else 0
        window: int = 0 if params.swa_full else lib.llama_model_n_swa(model.pointer)
        cuts = cuts and not window and lanes == 1 and can_cut(model)
        if self.spare or cuts:  # unified, so that both sequences share what they have in common
            params.n_seq_max, params.kv_unified = 2, True
            params.n_outputs_max = max(rows_max, 2)  # llama.cpp plans a row for each sequence
        known = table.count if table else model.vocab.size
        self._vocabulary, self._shared = vocabulary or known, min(vocabulary or known, known)
        output_tokens = table.output_tokens(self._shared) if table else self._shared
        sampler, size = None, model.vocab.size
        # On the CPU llama.cpp takes 1.5 ms for a row of 128,256 logits and numpy 0.3.
        if (top_k and model.output_on_gpu) or cuts:
            # As many more as may belong to tokens that no row holds.
            most = min(TOP_K + size - output_tokens, size)
            sampler = TopK(most, params, [CUT] if cuts else range(lanes))
        super().__init__(model, params, sampler)
        self.calling = RLock()  # held around calls into llama.cpp
        self.batcher = Batcher(self) if lanes > 1 else None
        self.lanes: Sequence[Reader] = ()  # that the context has
        self.capacity //= lanes
        self.rows_max = rows_max
        self.snapshots: int = 0 if model.can_roll_back else lib.llama_n_rs_seq(self.handle)
        self.window, size = window, self.chunk
        self._batch = EmbeddingBatch(size, table, lanes) if table else Batch(size, sequences=2 * lanes)
        chooses = sampler is not None and sampler.installed_on(self.handle)
        self.cut_to = TOP_K if cuts and chooses else 0  # logits of a row on the sequence CUT; 0: it has none
        # llama.cpp keeps room for tokens, logits and probabilities of each row beside the row.
        self.cut_bytes = 12 * model.vocab.size * rows_max if self.cut_to else 0
        shape = model.vocab.size, output_tokens  # the first elements of a row are tokens
        self._cut_rows = TopRows(*shape)
        read = self._cut_rows if chooses and not cuts else FullRows(*shape)
        self._rows = TrimmedRows(read, table.token_ids, TOP_K) if table else read
        self._hidden: HiddenReader | None = None  # until somebody wants hidden rows
        model.use_adapters(self.handle)

    def keep(self, sequence: int) -> None:
        """Keep the present state of a lane, as the spare sequence: where it parts from the lane, on the device."""
        lib.llama_memory_seq_rm(self._memory, self.spare, -1, -1)
        lib.llama_memory_seq_cp(self._memory, sequence, self.spare, -1, -1)

    def bring_back(self, sequence: int) -> None:
        """The lane becomes what was kept of it."""
        lib.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        lib.llama_memory_seq_cp(self._memory, self.spare, sequence, -1, -1)

    @property
    def memory(self) -> Any:  # noqa: ANN401  a C pointer
        return self._memory

    def most_tokens(self, lane: int | None) -> int:
        """How many tokens the next call may have, of a lane if other replies wait for it."""
        most = self._pace.tokens(self.chunk) if self._pace else self.chunk
        return most if lane is None or self.batcher is None else self.batcher.prompt_chunk(lane, most)

    def extract(self, wants: HiddenRows) -> None:
        """Give these hidden rows with every pass; called once, before the first decode."""
        assert not self._hidden, "a pass has one set of hidden rows"
        self._hidden = HiddenReader(self.handle, self.model.pointer, wants)

    def forget(self, sequence: int) -> None:
        """Forget all tokens of a lane."""
        if self.batcher is None:
            lib.llama_memory_clear(self._memory, True)
        else:
            lib.llama_memory_seq_rm(self._memory, sequence, -1, -1)

    def decode(self, parts: Sequence[Part]) -> Sequence[Pass]:
        """As `SharedDecoder.decode`."""
        numbers = sorted(part.lane for part in parts if part.rows)
        if not self.model.can_roll_back and numbers and numbers[-1] - numbers[0] >= len(numbers):
            # llama.cpp would mix up the recurrent states of lanes in a gap; the parts come again one by one.
            raise BackendFailure("these lanes cannot share a pass", hint="decode them one after the other")
        held = [self.lanes[part.lane].length for part in parts]
        with self.calling:
            try:
                return self._decode(parts)
            except BaseException as failure:
                lanes = [self.lanes[part.lane] for part in parts]
                lost = [lane.recover(length) for lane, length in zip(lanes, held, strict=True)]
                if len(parts) > 1 and isinstance(failure, LocalspecError):  # each is tried again alone
                    for lane, tokens in zip(lanes, lost, strict=True):
                        for start in range(0, len(tokens), self.chunk):
                            with heeding(None):
                                self.read_one(lane, tokens[start : start + self.chunk], 0)
                raise

    def _decode(self, parts: Sequence[Part]) -> Sequence[Pass]:
        """Prompts first, one after the other, because a pass overwrites the rows of the pass before."""
        found, joint, began = dict[int, Pass](), list[Wanted](), perf_counter()
        for part in parts:
            lane, most = self.lanes[part.lane], max(part.rows, WIDEST) if part.rows else 0
            lead = max(len(part.tokens) - most, 0) if len(parts) > 1 else 0
            if lead or not part.rows:
                lead = lead or len(part.tokens)
                with heeding(lane.stop):
                    (found[part.lane],) = self.read([(lane, part.tokens[:lead], 0)])
            if part.rows:
                joint.append((lane, part.tokens[lead:], part.rows))
        waited = perf_counter() - began if found else 0.0
        joint.sort(key=lambda wanted: wanted[0].sequence)  # in another order llama.cpp reads in more passes
        with heeding(joint[0][0].stop if len(joint) == 1 else None):
            together = self.read(joint) if joint else ()
        for (lane, _, _), of_lane in zip(joint, together, strict=True):
            before = found.get(lane.sequence)
            of_lane = replace(of_lane, waited_seconds=waited)
            found[lane.sequence] = joined([before, of_lane]) if before else of_lane
        return [found[part.lane] for part in parts]

    def read(self, wanted: Sequence[Wanted]) -> list[Pass]:
        """One pass over the tokens of these lanes. After a failure they may have read some of them."""
        if len(wanted) == 1:
            return [self.read_one(*wanted[0])]
        width, starts = max(len(tokens) for _, tokens, _ in wanted), [lane.length for lane, _, _ in wanted]
        # A recurrent state takes back no more than its snapshots; llama.cpp then reads in several passes.
        pads = self.model.can_roll_back or width - 1 <= self.snapshots
        stretches, paddings = list[Stretch](), list[int]()
        for (lane, tokens, rows), start in zip(wanted, starts, strict=True):
            lane.forget_padding()
            padding = (min(width, self.capacity - start) if pads else len(tokens)) - len(tokens)
            padded = [*self._readable(tokens), *[0] * padding]
            outputs = [0] * (len(tokens) - rows) + [1] * rows + [0] * padding
            stretches.append(Stretch(lane.sequence, start, padded, outputs))
            paddings.append(padding)
        seconds = self._timed(self._batch.fill_all(stretches), wanted[0][0].threads)
        for (lane, tokens, _), padding in zip(wanted, paddings, strict=True):
            lane.took(tokens, padding, seconds, wanted[0][0].threads.now)
        return list(self._shares(wanted, starts, paddings))

    def read_one(
        self,
        lane: Reader,
        tokens: Sequence[int],
        rows: int,
        whole: Callable[[int], np.ndarray] | None = None,
    ) -> Pass:
        """The same for one lane. `whole`: rows are cut, and this gives one of them as a whole."""
        # Over RPC llama.cpp waits for rows alone: the time of a pass without any would count in the next one.
        asked = rows or int(bool(self.model.remote))
        start, outputs = lane.length, [0] * (len(tokens) - asked) + [1] * asked
        lane.forget_padding()
        batch = self._batch.fill_all([Stretch(lane.sequence, start, self._readable(tokens), outputs)])
        lane.took(tokens, 0, self._timed(batch, lane.threads), lane.threads.now)
        hidden = self._hidden.read(len(tokens)) if self._hidden else None
        found: Sequence[Row] = ()
        if rows:
            read = self._rows.read
            found = self._cut_rows.read(self.handle, rows, whole) if whole else read(self.handle, rows)
        return Pass(start, tokens, found, hidden)

    def _timed(self, batch: Any, threads: Threads) -> float:  # noqa: ANN401  a C struct
        """Decode it; returns the seconds inside llama.cpp."""
        busy = self.busy_seconds
        self.run(lib.llama_decode, batch, batch.n_tokens, threads=threads)
        return self.busy_seconds - busy

    def _shares(
        self, wanted: Sequence[Wanted], starts: Sequence[int], paddings: Sequence[int]
    ) -> Iterator[Pass]:
        """The lanes' parts of a pass that they shared."""
        width, row, token = sum(len(tokens) for _, tokens, _ in wanted) + sum(paddings), 0, 0
        hidden = self._hidden.read(width) if self._hidden else None
        every = self._rows.read(self.handle, sum(rows for _, _, rows in wanted))
        for (_, tokens, rows), start, padding in zip(wanted, starts, paddings, strict=True):
            own = every[row : row + rows]
            check_finite(last.logits if isinstance(last := own[-1], Candidates) else last)
            shown = None if hidden is None else hidden[token : token + len(tokens)]
            yield Pass(start, tokens, own, shown, pass_width=width)
            row, token = row + rows, token + len(tokens) + padding

    def _readable(self, tokens: Sequence[int]) -> Sequence[int]:
        """The tokens, with others for those that only the target has, control tokens or padding."""
        if self._vocabulary == self._shared:
            return tokens
        return [min(token, self._shared - 1) for token in tokens]


def can_cut(model: Model) -> bool:
    """Whether a device can choose logits for one of two sequences; models on several GPUs were never tried."""
    return model.output_on_gpu and model.can_roll_back and len(model.gpus) < 2


def joined(passes: Sequence[Pass]) -> Pass:
    """One pass in place of several in a row, with the rows of the last."""
    if len(passes) == 1:
        return passes[0]
    tokens = [token for each in passes for token in each.tokens]
    hidden = [each.hidden for each in passes if each.hidden is not None]
    whole = np.concatenate(hidden) if hidden else None
    return replace(passes[-1], start=passes[0].start, tokens=tokens, hidden=whole)
