"""The tokens that heads draft here and in llama-server: at temperature 0 and one depth they are the same.

    python -m benchmarks.heads_oracle PATH/TO/llama-server [--depths 1 2 3 4 5] [--kinds eagle3 ...]

For every kind of head a tiny GGUF is written, and both draft for the same prompts. llama-server tells what it drafts in
its log. It never drafts the first token of a reply, so that one is decoded plainly here. A cycle that differs is a
near-tie when the first token that differs was chosen by less than `NEAR` of a logit.
"""

import argparse
import json
import random
import re
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from localspec.algorithm.loop import speculate
from localspec.algorithm.protocols import Draw
from localspec.drafters.arbiter import Fixed
from tests.drafters.heads import GREEDY, KINDS, Opened, never, opened

TYPES = {"eagle3": "draft-eagle3", "dflash": "draft-dflash", "dspark": "draft-dspark"}  # others are MTP
SILENT = {"dflash2"}  # its drafts are not logged
PROMPTS, PROMPT_TOKENS, REPLY_TOKENS = 4, 40, 48
NEAR = 0.02  # logits: what batches of other widths change in caches of 16 bits
CANDIDATE = re.compile(rb"draft candidate +0, pos +(\d+): +(\d+)")


@dataclass(frozen=True, slots=True)
class Served:
    """A reply of llama-server, and what it drafted in each cycle."""

    tokens: list[int]
    cycles: list[list[int]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("server", type=Path)
    parser.add_argument("--depths", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    told = [kind for kind in KINDS if kind not in SILENT]
    parser.add_argument("--kinds", nargs="+", choices=told, default=told)
    options = parser.parse_args()
    print(f"{'kind':<16} depth  cycles  equal  near-ties  different")
    for name in options.kinds:
        with tempfile.TemporaryDirectory() as folder:
            compare(options.server, name, Path(folder), options.depths)


def compare(server: Path, name: str, folder: Path, depths: list[int]) -> None:
    kind, chance = KINDS[name], random.Random(3)
    files = kind.files(folder)
    prompts = [
        [chance.randrange(kind.walk.vocab_size - 8) for _ in range(PROMPT_TOKENS)] for _ in range(PROMPTS)
    ]
    for depth in depths:
        theirs = served(server, TYPES.get(name, "draft-mtp"), files, depth, prompts, folder / "log")
        with opened(kind, files) as pair:
            found = [
                list(judged(pair, prompt, depth, cycles))
                for prompt, cycles in zip(prompts, theirs, strict=True)
            ]
        counts = [verdict for verdicts in found for verdict in verdicts]
        equal, near = counts.count("equal"), counts.count("near")
        print(
            f"{name:<16} {depth:>5}  {len(counts):>6}  {equal:>5}  {near:>9}  {len(counts) - equal - near:>9}"
        )


class Doubting:
    """The greedy rule, which notes how near each choice was."""

    def __init__(self) -> None:
        self.gaps: list[float] = []
        self.seed_decides, self.name = GREEDY.seed_decides, GREEDY.name
        self.verify = GREEDY.verify

    def draw(self, row: np.ndarray, history: list[int], start: int) -> Draw:
        first, second = np.sort(row)[-1:-3:-1]
        self.gaps.append(float(first - second))
        return GREEDY.draw(row, history, start)


def judged(pair: Opened, prompt: list[int], depth: int, theirs: Served) -> Iterator[str]:
    """Of each cycle, as long as the texts are the same: the target has near-ties as well."""
    text, rule = list(prompt), Doubting()
    pair.begin(text)
    first = speculate(pair.target, Fixed(pair.drafter, 0, GREEDY), text, rule=GREEDY, room=1, is_end=never)
    list(first)
    for cycle, drafted in zip(pair.cycles(text, depth, REPLY_TOKENS - 1, rule), theirs.cycles, strict=False):
        ours, gaps, before = list(cycle.proposal), rule.gaps, len(text) - len(cycle.tokens) - len(prompt)
        rule.gaps = []
        same_text = text[len(prompt) :][:before] == theirs.tokens[:before]
        if len(ours) < depth or len(drafted) < depth or not same_text:
            return  # fewer are drafted near the end of a reply
        if ours == drafted:
            yield "equal"
            continue
        first = next(i for i in range(depth) if ours[i] != drafted[i])
        yield "near" if gaps[first] < NEAR else "different"
        return  # the cycles that follow begin elsewhere


def served(
    server: Path, type_: str, files: tuple[Path, Path | None], depth: int, prompts: list[list[int]], log: Path
) -> list[Served]:
    """Replies of llama-server."""
    found = []
    with running(server, type_, files, depth, log) as url:
        for prompt in prompts:
            begin = log.stat().st_size
            fields = {
                "prompt": prompt,
                "n_predict": REPLY_TOKENS,
                "temperature": 0,
                "cache_prompt": False,
                "return_tokens": True,
            }
            body = json.dumps(fields | {"ignore_eos": True}).encode()
            request = urllib.request.Request(f"{url}/completion", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=120) as answer:
                tokens = json.loads(answer.read())["tokens"]
            cycles: list[list[int]] = []
            for place, token in CANDIDATE.findall(log.read_bytes()[begin:]):
                if int(place) == 0:
                    cycles.append([])
                cycles[-1].append(int(token))
            found.append(Served(tokens, cycles))
    return found


@contextmanager
def running(
    server: Path, type_: str, files: tuple[Path, Path | None], depth: int, log: Path
) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    target, head = files
    command = [server, "-m", target, *(("-md", head) if head else ()), "--spec-type", type_]
    command += ["--spec-draft-n-max", depth, "--spec-draft-p-min", 0, "-c", 512, "-t", 1, "-np", 1, "-v"]
    command += ["--port", port, "--no-warmup", "--no-spec-draft-backend-sampling"]
    with (
        log.open("wb") as file,
        subprocess.Popen(list(map(str, command)), stdout=file, stderr=file) as process,
    ):
        try:
            url = f"http://127.0.0.1:{port}"
            for _ in range(600):
                try:
                    with urllib.request.urlopen(f"{url}/health", timeout=5):
                        break
                except OSError:
                    if process.poll() is not None:
                        raise SystemExit(f"llama-server ended:\n{log.read_text()[-2000:]}") from None
                    time.sleep(0.1)
            yield url
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
