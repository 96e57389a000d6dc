"""Writes tiny GGUFs that llama.cpp loads: for every test that needs a real model file."""

from tests.gguf.models import Shape, write_adapter, write_gguf
from tests.gguf.vocabularies import CHATML

__all__ = ["CHATML", "Shape", "write_adapter", "write_gguf"]
