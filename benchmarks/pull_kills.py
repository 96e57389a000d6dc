"""Kills `localspec pull` at random moments and counts what that costs.

    python benchmarks/pull_kills.py [--kills 100] [--megabytes 200] [--rate 4] [--seed 1]

A pair of real GGUFs lies behind a loopback stand-in Hub that sends `rate` MB/s. Every life of the process
ends by SIGKILL after a random time; then one pull may finish. Printed: bytes sent against bytes of the pair,
whether a file under its final name was ever wrong, and what is left besides the two files.
"""

import argparse
import hashlib
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from tests.gguf import Shape, write_gguf  # noqa: E402
from tests.pairs.hub import COMMIT, Hub, Served  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--rate", type=float, default=4.0, help="MB/s")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Hub(arguments.rate * 1e6) as hub:
        report(Path(folder), hub, arguments.kills, arguments.megabytes, random.Random(arguments.seed))


def report(folder: Path, hub: Hub, kills: int, megabytes: int, chance: random.Random) -> None:
    pair = make_pair(folder, hub, megabytes)
    home = folder / "home"
    write_registry(home / "models.toml", pair)
    environment = os.environ | {
        "LOCALSPEC_HOME": str(home),
        "HF_HOME": str(folder / "hf"),
        "HF_ENDPOINT": hub.endpoint,
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    command = [sys.executable, "-m", "localspec", "pull", "benchmark"]
    wrong = done_early = 0
    for _ in range(kills):
        process = subprocess.Popen(
            command, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_for_a_moment(process, hub, chance)
        done_early += process.poll() is not None
        process.kill()
        process.wait()
        wrong += wrong_files(home, pair)
    sent_before = hub.sent.total()
    last = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    wrong += wrong_files(home, pair)
    total = sum(served.size for served in pair)
    left = sorted(path.name for path in (home / "data" / "models").rglob("*") if path.is_file())
    print(
        f"{kills} kills ({done_early} came too late), then exit code {last.returncode} {last.stderr[-200:]}"
    )
    print(f"pair {total:,} bytes, sent {hub.sent.total():,} ({sent_before:,} before the last pull)")
    print(f"fetched twice: {hub.sent.total() / total - 1:.2%}")
    print(f"wrong files under a final name: {wrong}; files left: {left}")


def wait_for_a_moment(process: subprocess.Popen[bytes], hub: Hub, chance: random.Random) -> None:
    """One kill in five comes while the process starts, the others up to a second after it asked for bytes."""
    if chance.random() < 0.2:
        time.sleep(chance.uniform(0, 1))
        return
    asked = len(hub.gets())
    while len(hub.gets()) == asked and process.poll() is None:
        time.sleep(0.005)
    time.sleep(chance.uniform(0, 1))


def make_pair(folder: Path, hub: Hub, megabytes: int) -> tuple[Served, Served]:
    """Two models of about 70 and 30 percent of the size."""
    served = []
    for name, share in (("target", 0.7), ("draft", 0.3)):
        layers = max(1, round(megabytes * share / 6.3))
        path = write_gguf(
            folder / f"{name}.gguf", Shape(vocab_size=1024, layers=layers, embedding=512, feed_forward=1536)
        )
        served.append(hub.add(f"org/{name}", f"{name}.gguf", path))
    return served[0], served[1]


def write_registry(path: Path, pair: tuple[Served, Served]) -> None:
    path.parent.mkdir(parents=True)
    lines = ["[[pair]]", 'name = "benchmark"']
    for name, served in zip(("target", "draft"), pair, strict=True):
        lines += [f"[pair.{name}]", f'repo = "org/{name}"', f'file = "{name}.gguf"', f'revision = "{COMMIT}"']
        lines += [f"bytes = {served.size}", f'sha256 = "{served.sha256}"']
    path.write_text("\n".join(lines))


def wrong_files(home: Path, pair: tuple[Served, Served]) -> int:
    expected = {served.path.name: served.sha256 for served in pair}
    found = (path for path in (home / "data" / "models").rglob("*.gguf"))
    return sum(hashlib.sha256(path.read_bytes()).hexdigest() != expected[path.name] for path in found)


if __name__ == "__main__":
    main()
