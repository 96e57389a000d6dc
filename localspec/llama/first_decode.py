"""The child process of a smoke test: it reads a `SmokeTest` from its argument, and prints {} or an error."""

import json
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec import demo
from localspec.errors import BackendFailure, LocalspecError
from localspec.llama.check import Health, SmokeTest, assume
from localspec.machine.children import end_with_stdin, limit_this_process

if TYPE_CHECKING:
    from localspec.llama.context import Context
    from localspec.llama.model import Model

# Expected logits of every _STEP-th token of the vocabulary after a text of the tokens 0 to 15. Builds differ by 0.1.
_STEP, _TOLERANCE = 233, 0.5
_LOGITS = {
    demo.target_path(): (-4.9, -7.0, -1.5, -5.6, 0.4, 1.1, -1.1, -0.3, -1.3, -4.0, -2.1),
    demo.draft_path(): (-0.1, -8.0, 0.3, -5.5, 0.0, 4.5, -5.9, -1.7, -2.0, -4.5, -3.0),
}


def encode(path: Path, model: "Model") -> None:
    """Encode a small black image."""
    from localspec.algorithm.images import chunks_of
    from localspec.llama.images import Projector

    with Projector(path, model, "", threads=1) as projector:
        for _, chunk in chunks_of(projector.tokens(b"P6 64 64 255\n" + bytes(3 * 64 * 64))):
            chunk.encode()


def decode(smoke_test: SmokeTest) -> None:
    """Run the passes of a smoke test. Raises LocalspecError."""
    from localspec.llama.context import Context
    from localspec.llama.load import Load
    from localspec.llama.model import Model

    # Use one thread, because several threads of this small model would mostly wait for each other.
    load = Load(128, flash_attn=smoke_test.flash_attn, threads=1)
    with Model(Path(smoke_test.path), **smoke_test.place) as model:
        if smoke_test.projector:
            encode(Path(smoke_test.projector), model)
            smoke_test = replace(smoke_test, kv_types=())
        for number, kv_type in enumerate(smoke_test.kv_types):
            try:
                context = Context(model, load, kv_type=kv_type, top_k=number > 0)
            except BackendFailure:
                if not number:
                    raise
                continue  # no error, because the memory plan then gives drafts no KV cache of this type
            with context:
                if model.path in _LOGITS and not number:
                    compare(context, _LOGITS[model.path])
                for width in smoke_test.widths:
                    context.decode(list(range(width)), min(width, context.rows_max))


def compare(context: "Context", known: Sequence[float]) -> None:
    """Raise BackendFailure unless the demo's logits are close to those in `known`."""
    row: Any = context.decode(list(range(16)), 1).rows[0]
    context.rollback(0)
    near = (abs(float(value) - right) < _TOLERANCE for value, right in zip(row[::_STEP], known, strict=True))
    if not all(near):
        what = "llama.cpp computes wrong values: its results for the demo model are not those of other builds"
        raise BackendFailure(what, hint="use another build of llama.cpp, or update the driver of the GPU")


def main() -> None:
    limit_this_process()
    threading.Thread(target=end_with_stdin, daemon=True).start()  # end this process if its parent is killed
    smoke_test = SmokeTest(**json.loads(sys.argv[1]))
    assume(Health(smoke_test.extra_buffers))  # without this line, the imports below would start a smoke test
    answer = {}
    try:
        from localspec.llama.devices import add_servers

        add_servers(smoke_test.servers)
        decode(smoke_test)
        if smoke_test.path == str(demo.target_path()):
            decode(replace(smoke_test, path=str(demo.draft_path()), kv_types=("f16",), widths=()))
    except LocalspecError as error:
        answer = {"kind": type(error).__name__, "error": str(error), "hint": error.hint}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
