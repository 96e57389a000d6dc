"""llama-server as a judge of heads: what it drafts and accepts with the same files."""

import json
import subprocess
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import Self


@dataclass(frozen=True, slots=True)
class Counts:
    """Of one or more replies; the first token of each is never drafted."""

    emitted: int = 0
    drafted: int = 0
    accepted: int = 0
    replies: int = 0
    seconds: float = 0.0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    @property
    def tokens_a_pass(self) -> float:
        """Mean accepted length: tokens after the first for each pass that verified a draft."""
        after_first = self.emitted - self.replies
        return after_first / max(1, after_first - self.accepted)


class Server:
    """One llama-server on a free port of loopback, until the block ends."""

    def __init__(
        self, program: Path, model: Path, *options: str, context: int = 1024, threads: int = 1
    ) -> None:
        with socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"http://127.0.0.1:{free.getsockname()[1]}"
        common = [
            "-c",
            str(context),
            "-np",
            "1",
            "-t",
            str(threads),
            "-ngl",
            "0",
            "--no-webui",
            "--no-warmup",
        ]
        port = ["--host", "127.0.0.1", "--port", self.address.rsplit(":", 1)[1]]
        self.log = Path(f"{model}.server.log")
        with self.log.open("wb") as log:
            command = [str(program), "-m", str(model), *common, *port, *options]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def __enter__(self) -> Self:
        for _ in range(1200):
            if self._process.poll() is not None:
                raise OSError(f"llama-server ended with {self._process.returncode}: see {self.log}")
            try:
                urllib.request.urlopen(f"{self.address}/health").close()
            except OSError:
                time.sleep(0.1)
            else:
                return self
        raise OSError(f"llama-server does not answer: see {self.log}")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def ask(self, prompt: str | list[int], tokens: int = 160, **settings: object) -> Counts:
        """Complete a text or tokens at temperature 0 unless told otherwise."""
        wanted = {"temperature": 0.0, "n_predict": tokens, "cache_prompt": False, **settings}
        request = urllib.request.Request(
            f"{self.address}/completion", json.dumps({"prompt": prompt} | wanted).encode()
        )
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request) as answer:
            found = json.load(answer)["timings"]
        return Counts(
            found["predicted_n"],
            found.get("draft_n", 0),
            found.get("draft_n_accepted", 0),
            1,
            found["predicted_ms"] / 1000,
        )
