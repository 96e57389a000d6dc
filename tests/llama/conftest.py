"""Loaded models, shared because loading is the slow part."""

from contextlib import ExitStack

import numpy as np
import pytest

from localspec.llama.context import Context
from localspec.llama.model import Model


@pytest.fixture(scope="session")
def load(tiny_gguf):
    """load(vocab_size=300) is a loaded model of that shape; equal arguments give the same model."""
    models = {}
    with ExitStack() as stack:

        def get(**shape) -> Model:
            path = tiny_gguf(**shape)
            if path not in models:
                models[path] = stack.enter_context(Model(path))
            return models[path]

        yield get


@pytest.fixture
def context(load):
    """context({"batch_size": 16}, vocab_size=300): a fresh context of 512 tokens on a model of that shape."""
    with ExitStack() as stack:

        def make(settings=None, **shape) -> Context:
            wanted = {"length": 512, "threads": 1} | (settings or {})
            return stack.enter_context(Context(load(**shape), **wanted))

        yield make


@pytest.fixture(scope="session")
def tokens():
    """tokens(n) are n tokens that every test vocabulary has."""
    return lambda count, seed=0: np.random.default_rng(seed).integers(3, 250, count).tolist()
