"""Greets an RPC server: a child process, because a wrong or silent one ends or hangs it.

    python -m localspec.llama.rpc_hello HEALTH HOST:PORT

Prints "ready" once llama.cpp is loaded, then one JSON object: {} when the server answered, else the error.
"""

import json
import sys

from localspec.errors import LocalspecError
from localspec.health.check import Health, assume


def main() -> None:
    found, address = sys.argv[1:]
    assume(Health(**json.loads(found)))
    try:
        from localspec.llama.rpc import add_servers

        print("ready", flush=True)
        add_servers([address])
    except LocalspecError as error:
        print(json.dumps({"kind": type(error).__name__, "error": str(error), "hint": error.hint}))
    else:
        print("{}")


if __name__ == "__main__":
    main()
