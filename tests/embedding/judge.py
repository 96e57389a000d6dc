"""What llama.cpp's own server returns for tiny models: python -m tests.embedding.judge LLAMA_SERVER writes it anew."""

import json
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.gguf import Shape, write_gguf

RECORDED = Path(__file__).parent / "llama_server.json"
_BOTH = {"context_length": 64, "chat_template": None}
_BERT = _BOTH | {"architecture": "bert", "vocab": "wpm", "vocab_size": 300}
KINDS = {kind: _BERT | {"pooling": kind} for kind in ("mean", "cls", "rank")}
KINDS["last"] = _BOTH | {"architecture": "qwen3", "pooling": "last"}
WORDS = ["the", "dog", "runs", "in", "a", "park;", "an", "invoice,", "7", "notes."]
TEXTS = [" ".join((WORDS * 9)[n : n + length]) for n, length in enumerate((1, 2, 3, 5, 8, 10, 4, 1, 9, 6))]
QUERY = "a dog in the park"


@contextmanager
def judging(server, model, *arguments):
    """A client of llama.cpp's server with this model."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    command = [server, "-m", str(model), "--port", str(port), *arguments]
    command += ["-t", "1", "-fa", "off", "-ctk", "f32", "-ctv", "f32"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            for _ in range(300):
                try:
                    if http.get("/health").status_code == 200:
                        break
                except httpx.HTTPError:
                    time.sleep(0.1)
            yield http
    finally:
        process.kill()
        process.wait()


def judged(server, kind, texts=TEXTS):
    """The vectors of texts, or their scores for QUERY, as llama.cpp's server returns them."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_gguf(Path(folder, "tiny.gguf"), Shape(**KINDS[kind]))
        with judging(server, path, "--rerank" if kind == "rank" else "--embedding") as http:
            if kind == "rank":
                found = http.post("/v1/rerank", json={"query": QUERY, "documents": texts}).json()["results"]
                return [each["relevance_score"] for each in sorted(found, key=lambda each: each["index"])]
            found = http.post("/v1/embeddings", json={"input": texts}).json()["data"]
            return [each["embedding"] for each in found]


if __name__ == "__main__":
    values = {kind: judged(sys.argv[1], kind) for kind in KINDS}
    rounded = json.loads(json.dumps(values), parse_float=lambda text: round(float(text), 6))
    RECORDED.write_text(json.dumps(rounded, separators=(",", ":")) + "\n")
