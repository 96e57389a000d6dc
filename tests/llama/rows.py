"""Rows of real contexts, to compare with."""

import numpy as np

from localspec.llama.library import lib
from localspec.sampler.passes import Candidates
from tests.raw_passes import moved

# What rounding may change in logits of exact models (tests/test_ground.py finds 1e-5 to 1e-4); a wrong token in a cache
# among 400 changes 0.03 and more.
NEAR = 1e-3


def row_after(context, tokens) -> np.ndarray:
    """The row after the tokens, on an empty cache."""
    context.rollback(0)
    return logits_of(context.decode(tokens, 1).rows[0])


def logits_of(row) -> np.ndarray:
    """A copy of a row's logits: of all tokens, or of the likeliest where a GPU chose them."""
    return np.array(row.logits if isinstance(row, Candidates) else row)


def near(kind, model) -> float:
    """The tolerance for rows of a kind of cache in tests/llama/test_prompt_states.py."""
    if kind != "quantised":
        return NEAR
    text = np.random.default_rng(0).integers(3, 250, 200).tolist()
    quantised = {"kv_type": lib.GGML_TYPE_Q8_0, "flash": lib.LLAMA_FLASH_ATTN_TYPE_AUTO}
    return max(NEAR, 2 * moved(model, text, **quantised))  # some processors round all widths alike
