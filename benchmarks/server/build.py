"""Build llama.cpp's server from the sources that llama-cpp-python was built from, with the same flags.

    [CMAKE_ARGS=...] python -m benchmarks.server.build --out DIR [--source DIR] [--jobs 2] [--cuda]

CMAKE_ARGS are those that llama-cpp-python was installed with, where it was: equal kernels on both sides.
Without --source the sdist of the installed version is fetched with pip. The server lands in DIR/bin.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

# The wheel is a Release build for the native CPU; what the server's target does not need is left out.
FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_TOOLS=ON",
    "-DLLAMA_BUILD_SERVER=ON",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="build folder, outside the checkout")
    parser.add_argument("--source", type=Path, help="a llama.cpp source tree, of the same version")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cuda", action="store_true", help="for an NVIDIA GPU")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = options.source or fetch(Path(folder))
        build(source, options.out, options.jobs, options.cuda)
    print(options.out / "bin" / "llama-server")


def fetch(folder: Path) -> Path:
    """The llama.cpp inside the sdist of the installed llama-cpp-python."""
    wanted = f"llama-cpp-python=={version('llama-cpp-python')}"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--no-binary",
        ":all:",
        "--no-build-isolation",
    ]
    subprocess.run([*pip, wanted, "-d", folder], check=True)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.glob("*/vendor/llama.cpp"))


def build(source: Path, out: Path, jobs: int, cuda: bool) -> None:
    given = shlex.split(os.environ.get("CMAKE_ARGS", ""))  # last, so that it wins
    flags = [*FLAGS, f"-DGGML_CUDA={'ON' if cuda else 'OFF'}", *given]
    subprocess.run(["cmake", "-S", source, "-B", out, *flags], check=True)
    command = ["cmake", "--build", out, "--target", "llama-server", "--config", "Release", "-j", str(jobs)]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
