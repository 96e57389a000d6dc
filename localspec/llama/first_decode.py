"""The child process of a smoke test: it reads a `SmokeTest` from its argument, and prints {} or an error."""

import json
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.errors import BackendFailure, LocalspecError
from localspec.llama.check import Health, SmokeTest, assume
from localspec.machine.children import end_with_stdin, limit_this_process

if TYPE_CHECKING:
    from localspec.llama.model import Model


def encode(path: Path, model: "Model") -> None:
    """Encode a small black image."""
    from localspec.algorithm.images import chunks_of
    from localspec.llama.images import Projector

    with Projector(path, model, "", threads=1) as projector:
        for _, chunk in chunks_of(projector.tokens(b"P6 64 64 255\n" + bytes(3 * 64 * 64))):
            chunk.encode()


def main() -> None:
    limit_this_process()
    threading.Thread(target=end_with_stdin, daemon=True).start()  # ends this process if its parent is killed
    smoke_test = SmokeTest(**json.loads(sys.argv[1]))
    assume(Health(smoke_test.extra_buffers))  # without this, the imports below would start another smoke test
    answer = {}
    try:
        from localspec.llama.context import Context
        from localspec.llama.devices import add_servers
        from localspec.llama.model import Model

        add_servers(smoke_test.servers)
        # Use one thread, because several threads of this small model would mostly wait for each other.
        options: dict[str, Any] = {
            "length": 128,
            "threads": 1,
            "flash_attn": smoke_test.flash_attn,
            "rows_max": 9,
        }
        with Model(Path(smoke_test.path), **smoke_test.place) as model:
            if smoke_test.projector:
                encode(Path(smoke_test.projector), model)
                smoke_test = replace(smoke_test, kv_types=())
            for number, kv_type in enumerate(smoke_test.kv_types):
                more: dict[str, Any] = {"kv_type_k": kv_type, "kv_type_v": kv_type, "top_k": number > 0}
                try:
                    context = Context(model, **options, **more)
                except BackendFailure:
                    if not number:
                        raise
                    continue  # not an error, because the memory plan rejects a draft with this KV cache type
                with context:
                    for width in smoke_test.widths:
                        context.decode(list(range(width)), min(width, context.rows_max))
    except LocalspecError as error:
        answer = {"kind": type(error).__name__, "error": str(error), "hint": error.hint}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
