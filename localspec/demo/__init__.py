"""The demo pair, which is part of localspec: the first command needs no download."""

from pathlib import Path


def target_path() -> Path:
    return Path(__file__).with_name("demo-target.gguf")


def draft_path() -> Path:
    return Path(__file__).with_name("demo-draft.gguf")
