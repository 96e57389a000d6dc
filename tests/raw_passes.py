"""What llama.cpp itself computes, without localspec's contexts: the tolerance of what only rounding may change."""

import llama_cpp
import numpy as np

# Numbers of tokens in a pass, whose rows are compared with those of single tokens: llama.cpp adds up in another order.
WIDTHS = (2, 4, 9, 32)


class RawPasses:
    """Passes over one text in a context of one thread; by default with an F32 cache and without flash attention."""

    def __init__(
        self, model, kv_type=llama_cpp.GGML_TYPE_F32, flash=llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    ):
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_outputs_max = 512, 64, 64, 64
        params.type_k = params.type_v = kv_type
        params.flash_attn_type, params.swa_full = flash, True
        params.n_threads = params.n_threads_batch = 1
        self.size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model.pointer))
        self.context = llama_cpp.llama_init_from_model(model.pointer, params)
        self.batch, self.length = llama_cpp.llama_batch_init(64, 0, 1), 0

    def close(self):
        llama_cpp.llama_batch_free(self.batch)
        llama_cpp.llama_free(self.context)

    def read(self, tokens):
        self.batch.n_tokens = len(tokens)
        for at, token in enumerate(tokens):
            self.batch.token[at], self.batch.pos[at] = token, self.length + at
            self.batch.n_seq_id[at], self.batch.seq_id[at][0], self.batch.logits[at] = 1, 0, True
        assert llama_cpp.llama_decode(self.context, self.batch) == 0
        self.length += len(tokens)
        rows = (llama_cpp.llama_get_logits_ith(self.context, at) for at in range(len(tokens)))
        return [np.ctypeslib.as_array(row, (self.size,)).copy() for row in rows]

    def all_rows(self, text, width):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        self.length = 0
        parts = [text[at : at + width] for at in range(0, len(text), width)]
        return np.stack([row for part in parts for row in self.read(part)])


def moved(model, text, **options):
    """Return the largest difference of a logit between passes of one token and wider ones."""
    passes = RawPasses(model, **options)
    one = passes.all_rows(text, 1)
    found = max(np.abs(passes.all_rows(text, width) - one).max() for width in WIDTHS)
    passes.close()
    return float(found)
