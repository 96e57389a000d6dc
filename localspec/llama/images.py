"""The projector of a model: it turns an image into rows that the model reads in place of tokens.

llama.cpp's library libmtmd does the work. An image becomes text tokens and one chunk of rows, or a chunk for each tile
of a large image. To compute the rows of a chunk (`encode`) takes seconds on a CPU and cannot be interrupted.
"""

import atexit
import ctypes
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from hashlib import sha256, shake_128
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from localspec.algorithm.images import ImageRow
from localspec.errors import BackendFailure, BadModelFile, BadSetting
from localspec.llama.layouts import use_layout
from localspec.llama.library import forget_log_errors, lib, log_nothing, log_to_python, reason
from localspec.llama.lifetimes import free_with
from localspec.llama.model import Model
from localspec.stopping import Closing, DelayedInterrupt, current_stop

_RECENT = 16  # number of latest images whose rows stay in memory: 2 to 20 MB each
_LARGE = 4096  # width and height of an image for which a model needs the most rows
_SMALLER = "send a smaller image"
_PUBLISHED = "use the projector that was published with the model: --mmproj FILE"


class Projector(Closing):
    def __init__(self, path: Path, model: Model, identity: str, *, threads: int) -> None:
        """`identity`: a key of the file's content. Raises BadModelFile."""
        try:  # imported late, because most models have no projector
            from llama_cpp import mtmd_cpp
        except (ImportError, OSError, RuntimeError, AttributeError) as error:
            what = f"this llama.cpp reads no images, because its library libmtmd is missing: {error}"
            raise BackendFailure(what, hint="load the model without a projector: --mmproj none") from error
        defaults = {"mtmd_context_params": "mtmd_context_params_default"}
        use_layout(mtmd_cpp, mtmd_cpp._libmtmd, defaults)
        self.mtmd: Any = mtmd_cpp
        mtmd_cpp.mtmd_helper_log_set(log_to_python, None)
        atexit.register(mtmd_cpp.mtmd_helper_log_set, log_nothing, None)
        params = mtmd_cpp.mtmd_context_params_default()
        params.use_gpu, params.n_threads, params.print_timings = bool(model.gpus), threads, False
        params.warmup = False
        forget_log_errors()
        with DelayedInterrupt():
            pointer = mtmd_cpp.mtmd_init_from_file(str(path).encode(), model.pointer, params)
        if not pointer:
            raise BadModelFile(f"{path.name} does not fit {model.name}: {reason()}", hint=_PUBLISHED)
        self._pointer, self._finalizer = pointer, free_with(self, _free, mtmd_cpp, pointer, model)
        self.identity, self._columns = identity, lib.llama_model_n_embd_inp(model.pointer)
        self.placeholder = model.vocab.tokenize("image", parse_special=False)[-1]
        # A chunk that llama.cpp decodes without causal attention must fit into one batch.
        self.most_rows = 0
        if mtmd_cpp.mtmd_decode_use_non_causal(pointer, None):
            with self._parts(None) as parts:
                self.most_rows = max(map(mtmd_cpp.mtmd_input_chunk_get_n_tokens, parts))
        self._reading, self._encoding = Lock(), Lock()  # keep two threads from taking each other's rows
        # Keep the latest images, because clients send all images of a conversation with each message.
        self._known = lru_cache(_RECENT)(self._read)

    def close(self) -> None:
        self._finalizer()

    @property
    def handle(self) -> Any:
        assert self._finalizer.alive, "the projector is closed"
        return self._pointer

    def tokens(self, data: bytes) -> list[int]:
        """Return the tokens of an image in a prompt: its ImageRows, and the model's marks around them."""
        with self._reading:
            return self._known(data)

    def _read(self, data: bytes) -> list[int]:
        rows, image, count = list[int](), sha256(data).hexdigest(), ctypes.c_size_t()
        with self._parts(data) as parts:
            for number, part in enumerate(parts):
                if self.mtmd.mtmd_input_chunk_get_type(part) == self.mtmd.MTMD_INPUT_CHUNK_TYPE_TEXT:
                    ids = self.mtmd.mtmd_input_chunk_get_tokens_text(part, ctypes.byref(count))
                    rows += ids[: count.value]
                    if min(rows) < 0:
                        raise BadSetting("the projector uses tokens that the model lacks", hint=_PUBLISHED)
                else:
                    rows += Chunk(self, part, data, image, number).rows
        return rows

    def encode(self, chunk: "Chunk") -> np.ndarray:
        """Return the rows of a chunk, float32 [rows, columns]. Raises BackendFailure."""
        with self._encoding:
            if chunk.values is None:  # another thread may have just encoded the chunk
                with self._parts(chunk.data) as parts, DelayedInterrupt():
                    if self.mtmd.mtmd_encode_chunk(self.handle, parts[chunk.number]):
                        raise BackendFailure(f"llama.cpp cannot encode the image: {reason()}", hint=_SMALLER)
                    values = self.mtmd.mtmd_get_output_embd(self.handle)
                    chunk.values = np.ctypeslib.as_array(values, (chunk.count, self._columns)).copy()
            return chunk.values

    @contextmanager
    def _parts(self, data: bytes | None) -> Iterator[Sequence[Any]]:
        """Yield the chunks of text and rows of an image. `data` is None for a large image without pixels."""
        mtmd, handle = self.mtmd, self.handle
        forget_log_errors()
        if data is None:
            bitmap = mtmd.mtmd_bitmap_init(_LARGE, _LARGE, None)
        else:
            raw = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
            bitmap = mtmd.mtmd_helper_bitmap_init_from_buf(handle, raw, len(data), False)
        if not bitmap:
            raise BadSetting(
                "llama.cpp cannot read the image: it is damaged, or of another format",
                hint="send an undamaged PNG or JPEG",
            )
        with ExitStack() as held:
            held.callback(mtmd.mtmd_bitmap_free, bitmap)
            held.callback(mtmd.mtmd_input_chunks_free, chunks := mtmd.mtmd_input_chunks_init())
            part = ctypes.pointer(mtmd.mtmd_input_part(text=None, bitmap=bitmap))
            parts = (ctypes.POINTER(mtmd.mtmd_input_part) * 1)(part)
            if mtmd.mtmd_tokenize_from_parts(handle, chunks, parts, 1, False):
                raise BadSetting(f"the model cannot use the image: {reason()}", hint=_SMALLER)
            yield [mtmd.mtmd_input_chunks_get(chunks, n) for n in range(mtmd.mtmd_input_chunks_size(chunks))]


def _free(mtmd: Any, pointer: Any, _model: Model) -> None:
    with DelayedInterrupt():
        mtmd.mtmd_free(pointer)


class Chunk:
    """The rows of an image, or of one of its tiles; an `ImageChunk`."""

    def __init__(self, projector: Projector, part: Any, data: bytes, image: str, number: int) -> None:
        """`part`: llama.cpp's chunk; `number`: its index among the parts of the image."""
        mtmd, self._projector = projector.mtmd, projector
        self.data, self.number, self.placeholder = data, number, projector.placeholder
        self.count: int = mtmd.mtmd_input_chunk_get_n_tokens(part)
        self.positions: int = mtmd.mtmd_input_chunk_get_n_pos(part)
        self._pointer = mtmd.mtmd_input_chunk_get_placeholder(part)  # a copy of the chunk without pixels
        free_with(self, mtmd.mtmd_input_chunk_free, self._pointer)
        ids = shake_128(repr((image, number, self.count, projector.identity)).encode()).digest(4 * self.count)
        self._ids: list[int] = np.frombuffer(ids, np.uint32).tolist()
        self.values: np.ndarray | None = None  # float32 [rows, columns]; None before `encode`

    @property
    def rows(self) -> tuple[ImageRow, ...]:
        return ImageRow.of(self, self._ids)

    @property
    def is_encoded(self) -> bool:
        return self.values is not None

    def encode(self) -> np.ndarray:
        return self._projector.encode(self) if self.values is None else self.values

    def decode(self, context: object, position: int, sequence: int) -> int:
        mtmd, values = self._projector.mtmd, self.encode().ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        place, after, no_call = (position, sequence), lib.llama_pos(), mtmd.mtmd_helper_post_decode_callback()
        batch, handle = lib.llama_n_batch(context), self._projector.handle
        code = mtmd.mtmd_helper_decode_image_chunk(
            handle, context, self._pointer, values, *place, batch, ctypes.byref(after), no_call, None
        )
        return 2 if code and current_stop().asked else int(code)
