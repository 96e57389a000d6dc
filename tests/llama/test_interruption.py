"""A decode that fails or is interrupted leaves a cache that is what it says."""

import sys

import numpy as np
import pytest

from localspec.errors import BackendFailure
from localspec.llama.context import Context
from tests.llama.rows import NEAR, row_after


@pytest.mark.parametrize("architecture", ["llama", "mamba"])
def test_after_a_failed_decode_the_cache_is_what_it_says(context, tokens, architecture):
    decoder, fresh = (
        context({"batch_size": 16}, architecture=architecture),
        context(architecture=architecture),
    )
    decoder.decode(tokens(10), 0)
    with pytest.raises(BackendFailure, match="cannot process the given tokens"):
        decoder.decode([*tokens(20), 1_000_000], 1)  # the first chunk is decoded, the second holds no token
    assert decoder.tokens == (tokens(10) if architecture == "llama" else [])
    got = decoder.decode([9], 1).rows[0]
    assert np.abs(got - row_after(fresh, [*decoder.tokens])).max() < NEAR


WINDOW = {"architecture": "gemma2", "window": 8, "layers": 4}


def interrupted(work, line):
    """Do the work, with Ctrl-C just before the given line of context.py; whether that line was reached."""
    reached = 0

    def trace(frame, event, _):
        nonlocal reached
        if frame.f_code.co_filename != Context.decode.__code__.co_filename:
            return None
        if event == "line":
            reached += 1
            if reached == line:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("shape", [{}, {"architecture": "lfm2"}, WINDOW], ids=str)
def test_after_ctrl_c_at_any_line_the_cache_is_what_it_says(context, tokens, shape):
    settings = {"batch_size": 16, "snapshots": 5, "checkpoint_bytes": 1_000_000}
    decoder, fresh = context(settings, **shape), context(**shape)

    def work():
        """What a reply does: read a prompt, verify a batch, reject two tokens of it."""
        list(decoder.prefill(tokens(30)))
        decoder.checkpoint(lasting=True)
        list(decoder.prefill(tokens(40)[30:]))
        decoder.decode([7, 8, 9, 10], 4)
        if decoder.rollback_limit != 0:
            decoder.rollback(42)
        decoder.rewind(33)

    line = 0
    while interrupted(work, line := line + 1):
        decoder.rewind(decoder.length)  # as every reply begins
        held = [*decoder.tokens]
        row = np.array(decoder.decode([11], 1).rows[0])
        assert np.abs(row - row_after(fresh, [*held, 11])).max() < NEAR, f"line {line}, {len(held)} tokens"
        decoder.rollback(0)
    assert line > 40
