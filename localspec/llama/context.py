"""A model's cache and the decoding on it: feed tokens, get rows, step back."""

import ctypes
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from time import perf_counter, process_time
from typing import Any

import numpy as np

from localspec.errors import BadModelFile, BadSetting, ContextFull, RollbackUnsupported
from localspec.gguf.trimmed import TokenTable
from localspec.health.stopping import Closing, Held, Stop, Stopped, heeded, interruptible
from localspec.llama.batch import Batch, EmbeddingBatch, TrimmedRows
from localspec.llama.failures import context_failure, decode_failure
from localspec.llama.library import forget_log_errors, last_log_errors, lib
from localspec.llama.model import Model
from localspec.llama.rows import FullRows, HiddenReader, TopK, TopRows
from localspec.llama.states import LEAST, Checkpoints, Companion, Disk, SavedTexts, restore_state
from localspec.llama.threads import NARROW, Threads, thread_count
from localspec.llama.watch import LOADING_SECONDS, Pace, waiting_for
from localspec.sampler.passes import HiddenRows, Pass, Row, standing

_LONGEST = 2**25  # tokens: above every model; llama.cpp would fill the memory with its cell table first
TOP_K = 128  # logits of a row: top-k 40 with penalties over 64 tokens needs 104
# Tokens. On a CPU a chunk can take seconds and cannot be cancelled; smaller ones are 3 to 5 % slower.
_GPU_CHUNK, _CPU_CHUNK = 512, 128
# Chunks in one call where several GPUs share the layers: as many as llama.cpp has copies of buffers.
_IN_PIPELINE = 4
_SHORT = 4 * NARROW  # tokens: a prompt that takes no long pass
# Bytes of weights times tokens: about a tenth of a second on two cores. Beside it the thread costs nothing.
_LONG_PASS = 1e10
_KV_TYPES = {
    "f32": lib.GGML_TYPE_F32,
    "f16": lib.GGML_TYPE_F16,
    "bf16": 30,  # GGML_TYPE_BF16, which llama_cpp leaves out
    "q8_0": lib.GGML_TYPE_Q8_0,
    "q5_1": lib.GGML_TYPE_Q5_1,
    "q5_0": lib.GGML_TYPE_Q5_0,
    "q4_1": lib.GGML_TYPE_Q4_1,
    "q4_0": lib.GGML_TYPE_Q4_0,
    "iq4_nl": lib.GGML_TYPE_IQ4_NL,
}
_FLASH_ATTENTION = {
    "auto": lib.LLAMA_FLASH_ATTN_TYPE_AUTO,
    "on": lib.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "off": lib.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}

# llama.cpp asks after every node of a graph: a function of C, as Python would take a microsecond and the GIL.
_asked = ctypes.cast(
    ctypes.CDLL("msvcrt" if sys.platform == "win32" else None).strlen, lib.ggml_abort_callback
)


class Cache(Closing):
    """A context of llama.cpp, whose calls are timed: not for two threads at once."""

    def __init__(self, model: Model, params: Any, *held: object) -> None:  # noqa: ANN401  a C struct
        """`held` and the model live as long as the context, so that garbage collection cannot free them first."""
        forget_log_errors()
        with Held(), waiting_for(model.remote, LOADING_SECONDS):
            pointer = lib.llama_init_from_model(model.pointer, params)
        if not pointer:
            raise context_failure(model.name, params.n_ctx, last_log_errors())
        self.model = model
        self.busy_seconds = 0.0  # inside llama.cpp, until its results were there
        self.capacity: int = lib.llama_n_ctx(pointer)
        self.chunk: int = lib.llama_n_batch(pointer)
        self.threads = Threads(params.n_threads)
        self._context, self._memory = pointer, lib.llama_get_memory(pointer)
        self._pace = Pace() if model.remote else None
        self._finalizer = weakref.finalize(self, _free, pointer, model, held)
        model.contexts.add(self)

    @property
    def handle(self) -> Any:  # noqa: ANN401  a C pointer, for this package only
        assert self._finalizer.alive, "the context is closed"
        return self._context

    def close(self) -> None:
        """Free the cache and the buffers of its rows; idempotent."""
        self._finalizer()

    def run(self, call: Callable[[Any, Any], int], batch: Any, count: int) -> None:  # noqa: ANN401  a C struct
        """One call over `count` rows, timed until its results are there. Raises as Context.decode does."""
        pointer = self.handle
        self.threads.choose(pointer, count)
        forget_log_errors()
        began, given = perf_counter(), process_time()
        stop, seconds = heeded(), self._pace.limit(count) if self._pace else 0.0
        if stop:  # on a CPU the pass ends when this thread should stop
            lib.llama_set_abort_callback(pointer, _asked, stop.address)
        try:
            # A CPU logs nothing while it decodes.
            with Held() if self.model.gpus else nullcontext(), waiting_for(self.model.remote, seconds):
                code = call(pointer, batch)
                lib.llama_synchronize(pointer)
        finally:
            if stop:
                lib.llama_set_abort_callback(pointer, lib.ggml_abort_callback(), None)
        seconds, given = perf_counter() - began, process_time() - given
        self.busy_seconds += seconds
        if self._pace:
            self._pace.saw(count, seconds)
        if code:
            raise decode_failure(code, last_log_errors())
        self.threads.learn(count, seconds, given)


def _free(pointer: Any, model: Model, held: Sequence[object]) -> None:  # noqa: ANN401  a C pointer
    with Held(), waiting_for(model.remote):
        lib.llama_free(pointer)
    for sampler in (one for one in held if isinstance(one, TopK)):
        sampler.free()


class Context(Cache):
    """One sequence of tokens in a model's cache: a Decoder for the loop."""

    _hidden: HiddenReader | None = None  # until somebody wants hidden rows
    _companion: Companion | None = None

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
        checkpoint_bytes: int = 0,
        saved_bytes: int = 0,
        vocabulary: int | None = None,
        top_k: bool = False,
        table: TokenTable | None = None,
    ) -> None:
        """Room for `length` tokens; raises BadModelFile, BadSetting, NotEnoughMemory or BackendFailure.

        threads: on the CPU; None is the physical cores.
        batch_size: tokens in one call into llama.cpp, so the chunks of a prompt; see `_GPU_CHUNK`.
        flash_attn: on, off or auto, which is on where every layer's device can do it.
        rows_max: the most rows that one decode may ask for, so depth + 1.
        snapshots: for recurrent models, how many tokens can be taken back; each costs a whole state.
        checkpoint_bytes, saved_bytes: of the computer's memory, where the cache cannot step back, and for `recall`.
        vocabulary: for a draft, the target's tokens, some more or fewer than its own: rows have those of both, and
            a token that it lacks is read as its last one.
        top_k: rows hold their `TOP_K` largest logits alone where a GPU can choose them: for drafts, any will do.
        table: of a trimmed model, which reads and speaks in the tokens of the whole vocabulary by it.
        """
        if not model.generates_text:
            raise BadModelFile(f"{model.name} does not generate text", hint="use a model with a decoder only")
        params = params_of(model, length, threads, kv_type_k, kv_type_v, flash_attn)
        usual = _GPU_CHUNK if model.gpus else _CPU_CHUNK
        make_room(params, batch_size or usual, rows_max, _IN_PIPELINE if pipelines(model) else 1)
        params.n_rs_seq = snapshots  # llama.cpp makes it 0 for architectures that cannot
        known = table.count if table else model.vocab.size
        self._vocabulary, self._shared = vocabulary or known, min(vocabulary or known, known)
        output_tokens = table.output_tokens(self._shared) if table else self._shared
        sampler = None
        # On the CPU llama.cpp takes 1.5 ms for a row of 128,256 logits and numpy 0.3.
        if top_k and model.output_on_gpu:
            # As many more as may belong to tokens that no row holds.
            size = model.vocab.size
            sampler = TopK(min(TOP_K + size - output_tokens, size), params)
        super().__init__(model, params, sampler)
        self.tokens: list[int] = []  # tokens in the cache, in order, read-only
        self.rows_max = rows_max
        self._batch = EmbeddingBatch(self.chunk, table) if table else Batch(self.chunk)
        self._snapshots: int = 0 if model.can_roll_back else lib.llama_n_rs_seq(self.handle)
        self._window: int = 0 if params.swa_full else lib.llama_model_n_swa(model.pointer)
        self._checkpoints = Checkpoints(checkpoint_bytes)
        self._saved = SavedTexts(0 if model.remote else saved_bytes)  # too far away to copy states
        self._last_width = 0  # tokens in the last batch, the only ones a recurrent state has snapshots of
        rows = TopRows if sampler and sampler.installed_on(self.handle) else FullRows
        read = rows(model.vocab.size, output_tokens)  # the first elements of a row are tokens
        self._rows = TrimmedRows(read, table.token_ids, TOP_K) if table else read
        model.use_adapters(self.handle)

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def rollback_limit(self) -> int | None:
        """How many tokens of the last batch can be taken back: None is all of them, 0 is none."""
        return None if self.model.can_roll_back else self._snapshots

    @property
    def needs_checkpoints(self) -> bool:
        return bool(self._window) or not self.model.can_roll_back

    def decode(self, tokens: Sequence[int], rows: int) -> Pass:
        """Append tokens to the cache; rows for the last `rows` of them, float32 [vocab] or candidates.

        The rows are read-only views of llama.cpp's buffer, valid until the next decode. Raises ContextFull,
        NotEnoughMemory or BackendFailure; the cache is then what it was, or rewound where that is impossible.
        """
        assert 0 <= rows <= min(len(tokens), self.rows_max), f"{rows} rows of {len(tokens)} tokens"
        before, rest = self.length, tokens
        self._require_room(len(tokens))
        try:
            hidden: list[np.ndarray] = []
            while len(rest) > max(most := self._most_tokens(), rows):
                head = min(most, len(rest) - rows)
                self._decode_chunk(rest[:head], 0)
                if self._hidden:
                    hidden.append(np.array(self._hidden.read(head)))
                rest = rest[head:]
            found = self._decode_chunk(rest, rows) if rest else ()
            last = self._hidden.read(len(rest)) if self._hidden and rest else None
            whole = last if last is None or not hidden else np.concatenate([*hidden, last])
            return Pass(before, tokens, found, whole)
        except BaseException:  # Ctrl-C may come after llama.cpp took the tokens and before they were counted
            self._recover(before)
            raise

    def extract(self, wants: HiddenRows) -> None:
        """Give these hidden rows with every pass; called once, before the first decode."""
        assert not self._hidden, "a pass has one set of hidden rows"
        self._hidden = HiddenReader(self.handle, self.model.pointer, wants)

    def prefill(self, tokens: Sequence[int], cancelled: Callable[[], bool] = lambda: False) -> Iterator[Pass]:
        """Append tokens chunk by chunk without rows: stop iterating to cancel.

        `cancelled` ends it, on a CPU even inside a chunk. The cache then holds exactly the decoded chunks. Raises as
        `decode` does.
        """
        self._require_room(len(tokens))
        # A wide pass with too many threads can take a minute, so a narrow one tells first. No clock decides that:
        # the chunks of a prompt move its rows.
        leads = self.threads.contention is not None and len(tokens) > _SHORT
        done = 0
        with suppress(Stopped):
            while chunk := tokens[done : done + (NARROW if leads and not done else self._most_tokens())]:
                read = partial(self.decode, chunk, 0)
                is_long = len(chunk) * self.model.size_bytes >= _LONG_PASS
                busy = self.busy_seconds
                found = interruptible(read, Stop(), cancelled=cancelled) if is_long else read()
                self._saved.measured(len(chunk), self.busy_seconds - busy)
                yield found
                done += len(chunk)

    def rollback(self, keep: int) -> None:
        assert 0 <= keep <= self.length, f"cannot keep {keep} of {self.length} tokens"
        dropped = self.tokens[keep:]
        self._checkpoints.forget_after(keep)
        if not keep or self._can_step_back(keep, len(dropped)):
            # Before llama.cpp's own: if Ctrl-C comes between, the next rollback removes the rest.
            del self.tokens[keep:]
            if lib.llama_memory_seq_rm(self._memory, 0, keep, -1):
                return
            self.tokens += dropped
        raise RollbackUnsupported(
            f"{self.model.name} cannot step back from {self.length} to {keep} tokens",
            hint="run it without a draft model (--no-draft)",
        )

    def rewind(self, keep: int) -> int:
        """A cache that cannot step back that far returns to the newest earlier checkpoint, or to nothing."""
        try:
            self.rollback(keep)
        except RollbackUnsupported:
            self._return_to_checkpoint()
        return self.length

    def accompany(self, companion: Companion) -> None:
        """Save and bring back this companion's state together with the cache's."""
        self._companion = companion

    def keep_on(self, disk: Disk) -> None:
        """Store texts on this disk as well, and bring them back."""
        self._saved.disk = disk

    def recall(self, tokens: Sequence[int], *, save: bool = True) -> float:
        began, shared = perf_counter(), standing(self.tokens, 0, tokens)
        found, was_stored = self._saved.take(tokens, shared)
        if save and self.length - shared >= LEAST:
            self._saved.save(self.handle, self.tokens, self._checkpoints, self._companion)
        if not found:
            return 0.0
        self._clear()
        try:
            if not restore_state(self.handle, found.state):
                self._clear()
                return 0.0
            self.tokens += found.tokens
            self._checkpoints.become(found.checkpoints)
            if self._companion and found.companion:
                self._companion.restore(found.companion)
        except BaseException:  # Ctrl-C
            self._clear()
            raise
        return perf_counter() - began if was_stored else 0.0

    def wants_storing(self) -> bool:
        return self._saved.wants(self.handle, self.tokens, resting=False)

    def store(self, *, resting: bool) -> None:
        self._saved.store(self.handle, self.tokens, self._checkpoints, self._companion, resting=resting)

    def checkpoint(self, *, lasting: bool) -> None:
        """Over drafts only a recurrent state cannot step back by itself."""
        if self.length and (self.needs_checkpoints if lasting else not self.model.can_roll_back):
            self._checkpoints.take(self.handle, self.length, lasting=lasting)

    def _decode_chunk(self, tokens: Sequence[int], rows: int) -> Sequence[Row]:
        """One call into llama.cpp, timed until its results are there."""
        readable = tokens
        if self._vocabulary != self._shared:  # for those that only the target has, control tokens or padding
            readable = [min(token, self._shared - 1) for token in tokens]
        batch = self._batch.fill(readable, self.length, rows)
        self.run(lib.llama_decode, batch, len(tokens))
        self.tokens.extend(tokens)
        self._last_width = len(tokens)
        return self._rows.read(self.handle, rows) if rows else ()

    def _most_tokens(self) -> int:
        """How many tokens the next call may have."""
        return self._pace.tokens(self.chunk) if self._pace else self.chunk

    def _require_room(self, count: int) -> None:
        if self.length + count > self.capacity:
            raise ContextFull(
                f"{self.length + count} tokens do not fit into a context of {self.capacity}",
                hint="shorten the prompt or use a longer context (--context)",
            )

    def _can_step_back(self, keep: int, dropped: int) -> bool:
        """Whether C's cache can forget all but `keep` tokens, `dropped` ones."""
        if not self.model.can_roll_back:
            # llama.cpp does not check that its snapshots are of the last batch; older ones are of other tokens.
            return dropped <= max(0, min(self._snapshots, self._last_width - 1))
        # The next token has to find all that its window holds.
        return not self._window or (
            lib.llama_memory_seq_pos_min(self._memory, 0) <= max(0, keep + 1 - self._window)
        )

    def _return_to_checkpoint(self) -> None:
        """Back to the newest checkpoint, or to nothing."""
        try:
            length = self._checkpoints.restore_newest(self.handle)
            self._last_width = 0  # its snapshots are of a state that is no more
            if not (length and lib.llama_memory_seq_rm(self._memory, 0, length, -1)):
                self._clear()
            del self.tokens[length:]
        except BaseException:  # Ctrl-C
            self._clear()
            raise

    def _recover(self, length: int) -> None:
        """After a failed decode: step back to the earlier cache, or as near as possible."""
        lib.llama_synchronize(self.handle)
        held = lib.llama_memory_seq_pos_max(self._memory, 0) + 1
        del self.tokens[length:]
        # Snapshots reach back to the first token of a batch, not before it.
        self._last_width = 0
        possible = not length or self._can_step_back(length, abs(held - length))
        if not (possible and lib.llama_memory_seq_rm(self._memory, 0, length, -1)):
            self._return_to_checkpoint()

    def _clear(self) -> None:
        lib.llama_memory_clear(self._memory, True)
        self._last_width = 0
        self._checkpoints.forget_after(0)
        self.tokens.clear()


def pipelines(model: Model) -> bool:
    """Whether a GPU can read one part of a prompt while the next GPU reads the part before it."""
    return len(model.gpus) > 1 and model.all_on_gpu and not model.remote


def make_room(params: Any, chunk: int, rows: int, chunks: int = 1) -> None:  # noqa: ANN401  a C struct
    """Set room for `chunk` tokens in a chunk, for `chunks` of these in one call, and for the rows of one."""
    params.n_ubatch = min(max(chunk, rows), params.n_ctx)
    params.n_batch = min(params.n_ubatch * chunks, params.n_ctx)
    params.n_outputs_max = params.n_outputs_max_per_seq = rows


def params_of(
    model: Model,
    length: int,
    threads: int | None,
    kv_type_k: str = "f16",
    kv_type_v: str = "f16",
    flash_attn: str = "auto",
) -> Any:  # noqa: ANN401  a C struct
    """Context parameters from checked settings."""
    if not 1 <= length <= _LONGEST:
        raise BadSetting(f"a context cannot have {length} tokens", hint=f"use 1 to {_LONGEST}")
    for name in (kv_type_k, kv_type_v):
        if name not in _KV_TYPES:
            raise BadSetting(f"no KV cache type called {name!r}", hint=f"there are: {', '.join(_KV_TYPES)}")
    if flash_attn not in _FLASH_ATTENTION:
        raise BadSetting(
            f"flash attention cannot be {flash_attn!r}", hint=f"it is one of {', '.join(_FLASH_ATTENTION)}"
        )
    params = lib.llama_context_default_params()
    params.n_ctx = length
    params.flash_attn_type = _FLASH_ATTENTION[flash_attn]
    params.type_k, params.type_v = _KV_TYPES[kv_type_k], _KV_TYPES[kv_type_v]
    # Where a cache of the window's size would spare little.
    params.swa_full = 2 * lib.llama_model_n_swa(model.pointer) >= length
    params.n_threads = params.n_threads_batch = thread_count(threads)
    params.no_perf = True
    return params
