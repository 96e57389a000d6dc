"""Many clients at once against one server: python -m benchmarks.crowd_endpoint --requests 500 --clients 8 --lanes 4.

Each prompt asks for a word of its own. Some clients leave early, and the engine is killed.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from tests.serve.conftest import start, stop
from tests.serve.crowd import crowd


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        endpoint = start(Path(home), "demo", "--parallel", str(arguments.lanes))
        try:
            began = time.monotonic()
            work = crowd(
                endpoint.url,
                arguments.requests,
                arguments.clients,
                kills=arguments.kills,
                seed=arguments.seed,
            )
            outcome = asyncio.run(work)
            seconds = time.monotonic() - began
        finally:
            stop(endpoint)
    print(f"{seconds:.0f} s, {outcome.most_at_once} replies at once, {dict(outcome.counts)}")
    for wrong in outcome.wrong:
        print(wrong)


if __name__ == "__main__":
    main()
