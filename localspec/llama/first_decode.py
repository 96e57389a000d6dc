"""Loads a model and decodes its first tokens: a child process, because a bad file or a bad build can end it.

    python -m localspec.llama.first_decode JSON        the fields of localspec.health.trial.Trial

Prints one JSON object: {} when all went well, else the error. Ends when its stdin does, as its starter may be killed.
"""

import json
import os
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.errors import BackendFailure, BadModelFile, LocalspecError
from localspec.health.check import Health, assume
from localspec.health.trial import HeadTrial, Trial
from localspec.llama.child_limits import limit_this_process

if TYPE_CHECKING:
    import numpy as np

    from localspec.llama.block import BlockContext
    from localspec.llama.context import Context
    from localspec.llama.head import HeadContext

_LENGTH = 64  # tokens of context
_SMALL_BYTES = 32_000_000  # threads of smaller models mostly wait for each other
_WIDTHS = (16, 2, 1)  # tokens: each goes through other kernels; a prompt comes first in replies as well


def first_decode(trial: Trial) -> None:
    """Raises what loading and decoding raise, and BadModelFile for rows that are not finite."""
    import numpy as np

    from localspec.llama.context import Context
    from localspec.llama.model import Model
    from localspec.llama.rpc import add_servers
    from localspec.llama.watch import tell_lost_by

    tell_lost_by(lambda what, hint: answer(BackendFailure(what, hint=hint)))
    add_servers(trial.servers)
    path = Path(trial.path)
    with (
        Model(path, **trial.place, lora=[(Path(name), scale) for name, scale in trial.lora]) as model,
        Context(model, length=_LENGTH, threads=1 if model.size_bytes < _SMALL_BYTES else None) as context,
        ExitStack() as opened,
    ):
        head = _open_head(trial.head, context, opened) if trial.head else None
        last = model.vocab.size - 1
        for width in _WIDTHS:
            passed = context.decode([min(token, last) for token in range(width)], 1)
            if not np.isfinite(np.asarray(passed.rows[-1])).all():
                raise BadModelFile(
                    f"{path.name} computes values that are not numbers",
                    hint="fetch it again, or use another file",
                )
            if head and passed.hidden is not None:
                _guess(head, passed.hidden[-1:], last, context.length)


def _open_head(trial: HeadTrial, target: "Context", opened: ExitStack) -> "HeadContext | BlockContext":
    from localspec.llama.block import BlockContext
    from localspec.llama.head import HeadContext
    from localspec.llama.model import Model
    from localspec.passes import HiddenRows

    file = opened.enter_context(Model(Path(trial.path), **trial.place)) if trial.path else target.model
    head: HeadContext | BlockContext
    if trial.kind == "dflash":
        head = BlockContext(file, target, layers=len(trial.layers), anchored=trial.anchored, length=_LENGTH)
    else:
        head = HeadContext(file, target, encodes=trial.kind == "eagle3", length=_LENGTH)
    opened.callback(head.close)
    target.extract(HiddenRows(trial.layers, trial.output))
    return head


def _guess(head: "HeadContext | BlockContext", hidden: "np.ndarray", token: int, position: int) -> None:
    from localspec.llama.head import HeadContext

    head.cut(0)
    if isinstance(head, HeadContext):
        head.predict([token], head.features(hidden), position)
    else:
        head.read(hidden, position - 1)
        head.guess(token, 1, position).row(0, None)


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
    fields = json.loads(sys.argv[1])
    trial = Trial(**{**fields, "head": HeadTrial.from_json(fields["head"])})
    assume(Health(trial.extra_buffers))  # this process finds out whether it is so
    try:
        first_decode(trial)
    except LocalspecError as error:
        answer(error)
    else:
        answer(None)


if __name__ == "__main__":
    main()
