"""Sends odd bodies to a running `localspec serve` and prints those that are not answered as they should be.

localspec serve demo --port 8080 &
python benchmarks/fuzz_endpoint.py --url http://127.0.0.1:8080 --cases 5000
"""

import argparse
import random
import sys
import time
from pathlib import Path

import httpx

sys.path.append(str(Path(__file__).resolve().parent.parent))

from tests.serve.bodies import body, verdict


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    wrong, slowest, by_status = 0, 0.0, {}
    with httpx.Client(base_url=arguments.url, timeout=60) as client:
        for case in range(arguments.first, arguments.first + arguments.cases):
            path, raw = body(random.Random(case))
            began = time.monotonic()
            answer = client.post(path, content=raw)
            slowest = max(slowest, time.monotonic() - began)
            by_status[answer.status_code] = by_status.get(answer.status_code, 0) + 1
            if found := verdict(path, answer):
                wrong += 1
                print(f"case {case}: {path} {raw[:300]!r}: {found} {answer.text[:300]}")
        restarts = client.get("/props").json()["localspec"]["engine_restarts"]
    print(
        f"{arguments.cases} bodies, {wrong} wrong; by status {by_status}; slowest {slowest:.1f} s; {restarts} restarts"
    )
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
