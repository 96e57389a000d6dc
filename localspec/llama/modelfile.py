"""What can be said about a model file before llama.cpp sees it."""

from pathlib import Path

from localspec.errors import BadModelFile

_HEADER_BYTES = 24  # magic, version, number of tensors, number of key-values


def check_model_file(path: Path) -> None:
    """Raise BadModelFile unless the path names a readable file that begins like a GGUF."""
    try:
        if path.is_dir():
            raise BadModelFile(f"{path} is a directory", hint="name the .gguf file inside it")
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except FileNotFoundError:
        raise BadModelFile(
            f"no file called {path}", hint="check the path; `localspec list` shows what is there"
        ) from None
    except PermissionError:
        raise BadModelFile(
            f"no permission to read {path}", hint="change the file's permissions or its owner"
        ) from None
    except OSError as error:
        raise BadModelFile(
            f"{path} cannot be read: {error.strerror}", hint="check the disk and the path"
        ) from error
    if header[:4] != b"GGUF"[: len(header)] or not header:
        raise BadModelFile(
            f"{path.name} is not a GGUF file",
            hint="localspec runs GGUF files; look for a GGUF version of the model",
        )
    if len(header) < _HEADER_BYTES:
        raise BadModelFile(f"{path.name} is cut off after {len(header)} bytes", hint="fetch the file again")
