"""Loads the demo and decodes its first tokens: a child process, because a bad build or driver can end it.

    python -m localspec.llama.first_decode JSON        the fields of localspec.health.trial.Trial

Prints one JSON object: {} on success, else the error. Ends with its stdin, because its parent may be killed.
"""

import json
import os
import sys
import threading
from pathlib import Path

from localspec.errors import BackendFailure, LocalspecError
from localspec.health.check import Health, assume
from localspec.health.trial import Trial, limit_this_process

_LENGTH = 128  # tokens of context
_ROWS_MAX = 9


def first_decode(trial: Trial) -> None:
    """Raises what loading and decoding raise."""
    from localspec.llama.context import Context
    from localspec.llama.devices import add_servers
    from localspec.llama.model import Model
    from localspec.llama.watch import tell_lost_by

    tell_lost_by(lambda what, hint: answer(BackendFailure(what, hint=hint)))
    add_servers(trial.servers)
    with Model(Path(trial.path), **trial.place) as model:
        for number, kv_type in enumerate(trial.kv_types):
            try:
                context = Context(
                    model,
                    length=_LENGTH,
                    threads=1,  # those of a small model mostly wait for each other
                    flash_attn=trial.flash_attn,
                    kv_type_k=kv_type,
                    kv_type_v=kv_type,
                    top_k=number > 0,
                    rows_max=_ROWS_MAX,
                )
            except BackendFailure:
                if not number:
                    raise
                continue  # the memory plan is refused this cache type as well
            with context:
                for width in trial.widths:
                    context.decode(list(range(width)), min(width, _ROWS_MAX))


def answer(error: LocalspecError | None) -> None:
    told = {"kind": type(error).__name__, "error": str(error), "hint": error.hint} if error else {}
    print(json.dumps(told), flush=True)


def end_with_stdin() -> None:
    """Runs beside native calls, which release the GIL; os.read holds no lock of sys.stdin at the regular end."""
    while os.read(0, 1024):
        pass
    os._exit(1)


def main() -> None:
    limit_this_process()
    threading.Thread(target=end_with_stdin, daemon=True).start()
    trial = Trial(**json.loads(sys.argv[1]))
    assume(Health(trial.extra_buffers))  # this process finds out whether it is so
    try:
        first_decode(trial)
        answer(None)
    except LocalspecError as error:
        answer(error)


if __name__ == "__main__":
    main()
