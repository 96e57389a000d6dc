"""Every error that a user can meet, as one small tree: what happened, and a hint."""

ANOTHER_COPY = "get another copy of it, or use another file"  # the hint about a damaged file


class LocalspecError(Exception):
    """What happened, in one sentence; `hint`, which a traceback shows too, says what to do about it."""

    def __init__(self, what: str, *, hint: str = "") -> None:
        super().__init__(what)
        self.hint = hint
        if hint:
            self.add_note(f"hint: {hint}")


class BadSetting(LocalspecError):
    """A value, option or combination of them that cannot be used."""


class UnknownPair(LocalspecError):
    """No pair, repository or file of that name."""


class NotOnDisk(LocalspecError):
    """The pair is known, but its files have not been fetched."""


class DownloadFailed(LocalspecError):
    """A file could not be fetched, or is not the pinned one."""


class BadModelFile(LocalspecError):
    """A file that is missing, unreadable, not a GGUF, damaged, or of an architecture llama.cpp does not know."""


class IncompatiblePair(LocalspecError):
    """Target and draft cannot work together, for example because their vocabularies differ."""


class NotEnoughMemory(LocalspecError):
    """The models, caches and buffers do not fit, or an allocation failed."""


class ContextFull(LocalspecError):
    """The prompt or the conversation does not fit into the context."""


class RollbackUnsupported(LocalspecError):
    """The model's state cannot step back, so drafts cannot be rejected on it."""


class BackendFailure(LocalspecError):
    """llama.cpp reported an error, aborted, or produced rows that are not finite."""


class BadTemplate(LocalspecError):
    """The chat template in the model file cannot be used on these messages."""


class EngineDied(LocalspecError):
    """The engine process ended unexpectedly."""
