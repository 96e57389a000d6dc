"""Loads a model and decodes its first tokens: a child process, because a bad file can end it.

    python -m localspec.llama.first_decode FILE [GPU_LAYERS]

Prints one JSON object: {} when all went well, else the error. Ends when its stdin does, as its starter may be killed.
"""

import json
import os
import sys
import threading
from pathlib import Path

import numpy as np

from localspec.errors import BadModelFile, LocalspecError
from localspec.llama.context import Context
from localspec.llama.model import Model

_LENGTH = 64  # tokens of context
_BATCH = 16  # tokens: batches go through other kernels than single tokens


def first_decode(path: Path, gpu_layers: int | None) -> None:
    """Raises what loading and decoding raise, and BadModelFile for rows that are not finite."""
    with Model(path, gpu_layers=gpu_layers) as model, Context(model, length=_LENGTH) as context:
        last = model.vocab.size - 1
        for tokens in ([0], [min(token, last) for token in range(_BATCH)]):
            rows = context.decode(tokens, 1)
            if not np.isfinite(rows[0]).all():
                raise BadModelFile(
                    f"{path.name} computes values that are not numbers",
                    hint="fetch it again, or use another file",
                )


def end_with_stdin() -> None:
    """Runs beside native calls, which release the GIL; os.read holds no lock of sys.stdin at the regular end."""
    while os.read(0, 1024):
        pass
    os._exit(1)


def main() -> None:
    threading.Thread(target=end_with_stdin, daemon=True).start()
    path, *layers = sys.argv[1:]
    try:
        first_decode(Path(path), int(layers[0]) if layers else None)
    except LocalspecError as error:
        print(json.dumps({"kind": type(error).__name__, "error": str(error), "hint": error.hint}))
    else:
        print("{}")


if __name__ == "__main__":
    main()
