"""All errors that a user can meet, each with a message and a hint."""

from collections.abc import Mapping
from types import MappingProxyType

ANOTHER_COPY = "get another copy of the file, or use another file"  # the hint for damaged model files
REPORT = "the conversation is safe; report this error in localspec's repository with the output of `localspec doctor`"


class LocalspecError(Exception):
    """The base of all errors: str() says what is wrong, `hint` what to do; a traceback shows both."""

    def __init__(self, what: str, *, hint: str = "") -> None:
        super().__init__(what)
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")


class BadSetting(LocalspecError):
    """An invalid value, option or combination of options."""


class UnknownPair(LocalspecError):
    """A name that belongs to no pair, repository or file."""


class NotOnDisk(LocalspecError):
    """A known pair whose files have not been fetched."""


class DownloadFailed(LocalspecError):
    """A failed download, or a downloaded file whose hash is not the pinned one."""


class BadModelFile(LocalspecError):
    """A model file that is missing, unreadable, damaged, not a GGUF, or of an unknown architecture."""


class IncompatiblePair(LocalspecError):
    """A target and a draft that cannot work together, for example because their vocabularies differ."""


class NotEnoughMemory(LocalspecError):
    """Models, caches and buffers that do not fit into memory, or a failed allocation."""


class ContextFull(LocalspecError):
    """A prompt or conversation longer than the context; `numbers` has both lengths if they are known."""

    numbers: Mapping[str, int] = MappingProxyType({})

    @classmethod
    def of(
        cls, what: str, prompt_tokens: int, context_length: int, *, more: bool = False, hint: str
    ) -> "ContextFull":
        """Return an error worded as in llama.cpp's server. `more`: whether `prompt_tokens` is only a lower bound."""
        count = f"{'more than ' if more else ''}{prompt_tokens:,} tokens"
        size = f"the available context size of {context_length:,}"
        error = cls(f"the {what} has {count}, which exceeds {size}", hint=hint)
        error.numbers = {"n_prompt_tokens": prompt_tokens, "n_ctx": context_length}
        return error


class RollbackUnsupported(LocalspecError):
    """A model whose state cannot roll back, so rejected draft tokens cannot be removed."""


class BackendFailure(LocalspecError):
    """An error that llama.cpp reported, an abort of llama.cpp, or logits with NaN or infinity."""


class BadTemplate(LocalspecError):
    """A chat template that fails on the messages of a prompt."""


class EngineDied(LocalspecError):
    """An unexpected end of the engine process."""
