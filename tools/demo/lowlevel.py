"""The few llama.cpp calls that the tools need: load, cut text into tokens, read logits, decode greedily."""

import ctypes
from pathlib import Path

import llama_cpp as lib
import numpy as np


@lib.llama_log_callback
def _quiet(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    """Drop llama.cpp's log."""


class Model:
    """One model with one context on the CPU; `exact` keeps its cache in single precision."""

    def __init__(self, path: Path, context: int = 1024, threads: int = 1, exact: bool = False) -> None:
        lib.llama_log_set(_quiet, ctypes.c_void_p(0))
        lib.llama_backend_init()
        params = lib.llama_model_default_params()
        params.n_gpu_layers = 0
        # Repacked weights round otherwise, and some builds die of them (localspec/health).
        params.use_extra_bufts = False
        self._model = lib.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise OSError(f"llama.cpp cannot load {path}")
        settings = lib.llama_context_default_params()
        settings.n_ctx = settings.n_batch = settings.n_ubatch = context
        settings.n_threads = settings.n_threads_batch = threads
        if exact:
            settings.type_k = settings.type_v = lib.GGML_TYPE_F32
            settings.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._context = lib.llama_init_from_model(self._model, settings)
        self._vocab = lib.llama_model_get_vocab(self._model)
        self.vocabulary = lib.llama_vocab_n_tokens(self._vocab)

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: object) -> None:
        lib.llama_free(self._context)
        lib.llama_model_free(self._model)

    def tokens(self, text: str, special: bool = True) -> list[int]:
        """Cut text as llama.cpp does."""
        data = text.encode()
        room = (lib.llama_token * (len(data) + 8))()
        count = lib.llama_tokenize(self._vocab, data, len(data), room, len(room), False, special)
        return list(room[:count])

    def piece(self, token: int) -> bytes:
        """The bytes of one token."""
        room = ctypes.create_string_buffer(256)
        count = lib.llama_token_to_piece(self._vocab, token, room, len(room), 0, True)
        return room.raw[:count]

    def ends(self, token: int) -> bool:
        """Whether the token ends a reply."""
        return lib.llama_vocab_is_eog(self._vocab, token)

    def reset(self) -> None:
        """Forget everything read so far."""
        lib.llama_memory_clear(lib.llama_get_memory(self._context), True)

    def logits(self, tokens: list[int], position: int = 0) -> np.ndarray:
        """Read the tokens and return a row of logits for each."""
        batch = lib.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position + i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, True
        status = lib.llama_decode(self._context, batch)
        lib.llama_batch_free(batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")
        rows = lib.llama_get_logits(self._context)
        return np.ctypeslib.as_array(rows, (len(tokens), self.vocabulary)).copy()

    def greedy(self, prompt: str, limit: int = 200) -> list[int]:
        """The most likely continuation of a prompt, token by token."""
        self.reset()
        tokens = self.tokens(prompt)
        row, position, found = self.logits(tokens)[-1], len(tokens), []
        while len(found) < limit and not self.ends(token := int(row.argmax())):
            found.append(token)
            row = self.logits([token], position)[-1]
            position += 1
        return found

    def text(self, tokens: list[int]) -> str:
        """Tokens as text."""
        return b"".join(map(self.piece, tokens)).decode(errors="replace")
