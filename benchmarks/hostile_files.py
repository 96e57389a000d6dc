"""Sends damaged and hostile GGUF files through `localspec run` and counts how it ends.

    python benchmarks/hostile_files.py [--files 500] [--seed 1] [--workers 2]

Every mutation by meaning of a tiny model (see tests/gguf/mutations.py), sampled. A run may succeed or end
with exit code 1 and sentences; a signal, a traceback or a hang is a failure and is printed with the mutation.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from tests.gguf import Shape, write_gguf  # noqa: E402
from tests.gguf.mutations import RawFile, by_meaning, taken_apart  # noqa: E402

_SECONDS = 180


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = write_gguf(Path(folder) / "model.gguf", Shape(vocab_size=400, layers=2, context_length=256))
        mutations = list(by_meaning(taken_apart(path)))
        chosen = random.Random(arguments.seed).sample(mutations, min(arguments.files, len(mutations)))
        with ThreadPoolExecutor(arguments.workers) as pool:
            numbered = enumerate(chosen)
            endings = Counter(pool.map(lambda item: ending(Path(folder), *item), numbered))
    print(f"{len(chosen)} of {len(mutations)} mutations: {dict(endings)}")


def ending(folder: Path, number: int, mutation: RawFile) -> str:
    """How `localspec run` ends on one file: answered, refused, or a failure."""
    path = folder / f"{number}.gguf"
    path.write_bytes(mutation.written())
    command = [sys.executable, "-m", "localspec", "run", "--target", str(path), "--max-tokens", "2", "hello"]
    environment = os.environ | {"LOCALSPEC_HOME": str(folder / "home")}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        print(f"HANGS: {mutation.note}", flush=True)
        return "hangs"
    finally:
        path.unlink(missing_ok=True)
    if done.returncode == 0:
        return "answered"
    if done.returncode == 1 and "Traceback" not in done.stderr and "error: " in done.stderr:
        if "llama.cpp aborted" in done.stderr:
            print(f"ABORTS: {mutation.note}: {done.stderr[-200:]}", flush=True)
            return "aborted in the user's process"
        return "refused"
    print(f"FAILS ({done.returncode}): {mutation.note}: {done.stderr[-300:]}", flush=True)
    return "failed"


if __name__ == "__main__":
    main()
