"""Sends damaged and hostile GGUF files through a command of localspec and counts how it ends.

    python benchmarks/hostile_files.py [--by run|chat|serve] [--files 500] [--seed 1] [--workers 2]

The files are mutations by meaning of a tiny model (tests/gguf/mutations.py). A command may answer, or end with exit
code 1 and sentences. One server gets all files and must answer with the demo after each. Other ends are printed.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from tests.gguf import Shape, write_gguf  # noqa: E402
from tests.gguf.mutations import by_meaning, taken_apart  # noqa: E402

LOCALSPEC, SECONDS = (sys.executable, "-m", "localspec"), 180
COMMANDS = {"run": ("run", "hello", "-n2", "--target"), "chat": ("chat", "--plain", "-n2", "--target")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--by", choices=(*COMMANDS, "serve"), default="run")
    parser.add_argument("--files", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = write_gguf(Path(folder) / "model.gguf", Shape(vocab_size=400, layers=2, context_length=256))
        mutations = list(by_meaning(taken_apart(path)))
        chosen = random.Random(arguments.seed).sample(mutations, min(arguments.files, len(mutations)))
        paths = [Path(folder) / f"m{number}.gguf" for number in range(len(chosen))]
        for path, mutation in zip(paths, chosen, strict=True):
            path.write_bytes(mutation.written())
        os.environ["LOCALSPEC_HOME"] = f"{folder}/home"
        if arguments.by == "serve":
            found = list(of_server(Path(folder) / "home", paths))
        else:
            with ThreadPoolExecutor(arguments.workers) as pool:
                found = list(pool.map(lambda path: of_command(COMMANDS[arguments.by], path), paths))
    for (ending, said), mutation in zip(found, chosen, strict=True):
        if ending not in ("answered", "refused"):
            print(f"{ending.upper()}: {mutation.note}: {said[-300:]}")
    print(f"{len(chosen)} of {len(mutations)} mutations: {dict(Counter(ending for ending, _ in found))}")


def of_command(words: tuple[str, ...], path: Path) -> tuple[str, str]:
    """How a command ends on one file, and what it said."""
    command, given = (*LOCALSPEC, *words, str(path)), "hello\n" if words[0] == "chat" else ""
    piped = {"input": given, "capture_output": True, "text": True}
    try:
        done = subprocess.run(command, cwd=ROOT, timeout=SECONDS, check=False, **piped)
    except subprocess.TimeoutExpired:
        return "hangs", ""
    if done.returncode not in (0, 1) or "Traceback" in done.stderr or "made a mistake" in done.stderr:
        return f"fails with {done.returncode}", done.stderr
    if "llama.cpp aborted" in done.stderr:
        return "aborted in the user's process", done.stderr
    said = "error: " in done.stderr or "[no reply" in done.stderr  # a draw may end before its first word
    return ("refused" if said else "silent") if done.returncode else "answered", done.stderr


def of_server(home: Path, paths: list[Path]) -> Iterator[tuple[str, str]]:
    """How one server answers for each file."""
    (home / "pairs.d").mkdir(parents=True)
    for path in paths:
        text = f'[[pair]]\nname = "{path.stem}"\nkind = "draft-lookup"\n[pair.target]\npath = "{path}"\n'
        (home / "pairs.d" / f"{path.stem}.toml").write_text(text)
    command, out = (*LOCALSPEC, "serve", "demo", "--port", "0"), subprocess.PIPE
    server = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.DEVNULL, text=True)
    address = next(word for line in server.stdout for word in line.split() if word.startswith("http"))
    with httpx.Client(base_url=address.removesuffix("/v1"), timeout=SECONDS) as client:
        for path in paths:
            given = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
            bodies = (given | {"model": model} for model in (path.stem, "demo"))
            answer, after = (client.post("/v1/chat/completions", json=body) for body in bodies)
            message = answer.json().get("error", {}).get("message", "")
            is_open = after.status_code == 200 and server.poll() is None
            refused = "refused" if message and "mistake" not in message else "silent"
            ending = "answered" if answer.status_code == 200 else refused
            yield (ending, answer.text) if is_open else ("the server fails", after.text)
    server.terminate()
    server.wait()


if __name__ == "__main__":
    main()
