"""The embedded demo pair, so that the first command answers without a download."""

from pathlib import Path


def target_path() -> Path:
    """The demo's target model."""
    return Path(__file__).with_name("demo-target.gguf")


def draft_path() -> Path:
    """The demo's draft model."""
    return Path(__file__).with_name("demo-draft.gguf")
