"""The chat templates that llama.cpp carries (see README.md)."""

import tarfile
from functools import cache
from pathlib import Path

import pytest

from localspec.prompt.template import ChatTemplate

with tarfile.open(Path(__file__).with_name("templates.tar.xz")) as _archive:
    _files = {member.name: _archive.extractfile(member).read().decode() for member in _archive}
TEMPLATES = {name.removesuffix(".jinja"): text for name, text in _files.items()}

# One of each family that writes its calls or turns in another way; the nightly tier reads all.
QUICK = {
    "Qwen-Qwen2.5-7B-Instruct", "meta-llama-Llama-3.2-3B-Instruct", "mistralai-Mistral-Nemo-Instruct-2407",
    "google-gemma-2-2b-it", "microsoft-Phi-3.5-mini-instruct", "openai-gpt-oss-120b", "MiniMax-M2",
    "Qwen-Qwen3-0.6B", "deepseek-ai-DeepSeek-V3.1",
}  # fmt: skip

# These render no list of tools of their own.
WITHOUT_TOOLS = {
    "CohereForAI-c4ai-command-r-plus-tool_use", "HuggingFaceTB-SmolLM3-3B", "deepseek-ai-DeepSeek-V3.1",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "google-gemma-2-2b-it",
    "llama-cpp-rwkv-world", "microsoft-Phi-3.5-mini-instruct",
}  # fmt: skip
# These write no calls, refuse every list of tools, or write calls in a way that no other family has.
NO_FORM = {
    "CohereForAI-c4ai-command-r-plus-tool_use", "HuggingFaceTB-SmolLM3-3B", "MiniMax-M3", "google-gemma-2-2b-it",
    "llama-cpp-rwkv-world", "meetkai-functionary-medium-v3.2", "microsoft-Phi-3.5-mini-instruct",
}  # fmt: skip


@cache
def ready(name):
    """A carried template, read when a test first needs it: all of them take 8 seconds."""
    return ChatTemplate(TEMPLATES[name], bos_text="<s>", eos_text="</s>")


def tiered(names):
    """Names of templates as parameters: a few for the quick tier, the others for the nightly one."""
    return [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.nightly) for name in sorted(names)
    ]
