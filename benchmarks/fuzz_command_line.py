"""Sends random command lines, environments and files through the command line and prints how badly it ends.

    python benchmarks/fuzz_command_line.py [--cases 20000] [--first 0] [--seed 1]

A case fails by a traceback, a report of a mistake of localspec's own, an unknown exit code, a death or a hang.
They run in one forked process (POSIX); see tests/cli/fuzz.py. Exits with 1 where a case failed.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

from tests.cli.fuzz import failures, world


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cache", type=Path, help="of a home in which llama.cpp was found to work")
    arguments = parser.parse_args()
    began, found, codes = time.monotonic(), 0, Counter[object]()
    numbers = range(arguments.first, arguments.first + arguments.cases)

    def count(number: int, code: object) -> None:
        codes[code] += 1
        if codes.total() % 500 == 0:
            print(f"{codes.total()} cases, {time.monotonic() - began:.0f} s", flush=True)

    with tempfile.TemporaryDirectory() as folder, world(Path(folder), arguments.cache) as shared:
        for failure in failures(numbers, arguments.seed, shared, count):
            found += 1
            print(failure, end="\n\n", flush=True)
    ended = ", ".join(f"{count} with {code}" for code, count in codes.most_common())
    print(f"{codes.total()} cases in {time.monotonic() - began:.0f} s ended {ended}; {found} failed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
