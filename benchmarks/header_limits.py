"""How long and how much memory the header reader takes on hostile files and on real vocabularies.

    python benchmarks/header_limits.py [SDIST]

2,000 headers with changed bytes, every change of meaning, and headers as large as the limits allow; each in
process time and, in a second pass, in traced memory. SDIST: an unpacked llama-cpp-python source distribution.
"""

import contextlib
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent))

from localspec.errors import BadModelFile
from localspec.gguf.header import header_at
from tests.gguf import Shape, write_gguf
from tests.gguf.mutations import by_bytes, by_meaning, header_of_bytes, largest_lies, taken_apart


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write_gguf(Path(folder) / "model.gguf", Shape(vocab_size=4000))
        header_bytes = header_at(path).data_offset
        measure("2,000 changes of bytes", by_bytes(path.read_bytes(), header_bytes, 2000, seed=2))
        measure("changes of meaning", (raw.written() for raw in by_meaning(taken_apart(path))))
    for name, content in largest_lies():
        measure(name, [content])
    for source in sys.argv[1:]:
        for path in sorted(Path(source, "vendor/llama.cpp/models").glob("ggml-vocab-*.gguf")):
            measure(path.name, [path.read_bytes()])


def measure(name: str, contents: Iterable[bytes]) -> None:
    slowest = largest = 0.0
    count = 0
    for content in contents:
        slowest = max(slowest, seconds(content))
        if len(content) < 4_000_000:  # tracing memory slows the reader down thirtyfold
            largest = max(largest, traced(content))
        count += 1
    memory = f"{largest / 2**20:6.1f} MiB" if largest else "  not traced"
    print(f"{name:<42} {count:5} files  slowest {slowest:6.3f} s  most memory {memory}", flush=True)


def seconds(content: bytes) -> float:
    began = time.process_time()
    read(content)
    return time.process_time() - began


def traced(content: bytes) -> float:
    tracemalloc.start()
    read(content)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def read(content: bytes) -> None:
    with contextlib.suppress(BadModelFile):
        header_of_bytes(content)


if __name__ == "__main__":
    main()
