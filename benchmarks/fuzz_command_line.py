"""Sends random command lines, environments and files through the command line and prints how badly it ends.

    python benchmarks/fuzz_command_line.py [--cases 20000] [--first 0] [--seed 1]

A case fails by a traceback, a report of a mistake of localspec's own, an unknown exit code, a death or a hang.
They run in one forked process as long as that lives; it needs POSIX. See tests/cli/fuzz.py.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

from tests.cli.fuzz import failures, settle, world


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    began, found = time.monotonic(), 0
    numbers = range(arguments.first, arguments.first + arguments.cases)

    def show(number: int) -> None:
        if number % 500 == 0:
            print(f"{number - arguments.first} cases, {time.monotonic() - began:.0f} s", flush=True)

    with tempfile.TemporaryDirectory() as folder, world(Path(folder)) as shared:
        settle(shared)
        for failure in failures(numbers, arguments.seed, shared, show):
            found += 1
            print(failure, end="\n\n", flush=True)
    print(f"{arguments.cases} cases in {time.monotonic() - began:.0f} s, {found} failed")


if __name__ == "__main__":
    main()
