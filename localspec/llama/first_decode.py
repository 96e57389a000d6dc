"""Loads a model and decodes its first tokens: a child process, because a bad file or a bad build can end it.

    python -m localspec.llama.first_decode JSON        the fields of localspec.health.trial.Trial

Prints one JSON object: {} when all went well, else the error. Ends when its stdin does, as its starter may be killed.
"""

import json
import os
import sys
import threading
from pathlib import Path

from localspec.errors import BadModelFile, LocalspecError
from localspec.health.check import Health, assume
from localspec.health.trial import Trial

_LENGTH = 64  # tokens of context
_WIDTHS = (1, 2, 9, 33)  # tokens: batches go through other kernels than single tokens


def first_decode(trial: Trial) -> None:
    """Raises what loading and decoding raise, and BadModelFile for rows that are not finite."""
    import numpy as np

    from localspec.llama.context import Context
    from localspec.llama.model import Model

    path = Path(trial.path)
    with Model(path, gpu_layers=trial.gpu_layers) as model, Context(model, length=_LENGTH) as context:
        last = model.vocab.size - 1
        for width in _WIDTHS:
            (row,) = context.decode([min(token, last) for token in range(width)], 1).rows
            if not np.isfinite(np.asarray(row)).all():
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
    trial = Trial(**json.loads(sys.argv[1]))
    assume(Health(trial.extra_buffers))  # this process finds out whether it is so
    try:
        first_decode(trial)
    except LocalspecError as error:
        print(json.dumps({"kind": type(error).__name__, "error": str(error), "hint": error.hint}))
    else:
        print("{}")


if __name__ == "__main__":
    main()
