"""The worlds that depth controllers are tried in: what cycles cost, which draft tokens the target keeps."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Curve:
    """Costs in plain steps."""

    name: str
    verify: Callable[[int], float]  # by batch width
    draft: Callable[[int], float]  # by depth
    overhead: float  # per drafting cycle
    depths: tuple[int, ...]


def _gpu(width: int) -> float:
    return (1 + 0.02 * (width - 1)) * (1.8 if width > 8 else 1.0)


CURVES = (
    Curve("GPU, cliff at 8", _gpu, lambda k: 0.08 * k, 0.02, tuple(range(1, 13))),
    Curve("heavy draft", _gpu, lambda k: 0.30 * k, 0.02, tuple(range(1, 13))),
    Curve("CPU, 0.3 per token", lambda n: 1 + 0.3 * (n - 1), lambda k: 0.10 * k, 0.01, tuple(range(1, 13))),
    Curve(
        "MoE", lambda n: 1 + 1.6 * (1 - math.exp(-(n - 1) / 5)), lambda k: 0.06 * k, 0.02, tuple(range(1, 13))
    ),
    Curve("MTP", lambda n: 1 + 0.03 * (n - 1), lambda k: 0.03 + 0.05 * k, 0.02, tuple(range(1, 9))),
    Curve("n-gram", lambda n: 1 + 0.06 * (n - 1), lambda k: 0.0, 0.01, tuple(range(1, 17))),
)


@dataclass(frozen=True, slots=True)
class Text:
    """For each position of a text: would the draft have guessed it, and how sure was the draft."""

    agrees: tuple[bool, ...]
    confidence: tuple[float, ...]


Process = Callable[[random.Random, int], list[float]]  # the chance of agreement at each position


def iid(rate: float) -> Process:
    return lambda rng, n: [rate] * n


def switching(rng: random.Random, n: int) -> list[float]:
    """Stretches of about 60 tokens at 0.2 and at 0.9."""
    rates, rate = [], rng.choice((0.2, 0.9))
    for _ in range(n):
        if rng.random() < 1 / 60:
            rate = 1.1 - rate
        rates.append(rate)
    return rates


def drifting(rng: random.Random, n: int) -> list[float]:
    """Difficulty is an autoregressive process on the logit."""
    rates, logit = [], 1.0
    for _ in range(n):
        logit = 1.0 + 0.9 * (logit - 1.0) + rng.gauss(0, 0.8)
        rates.append(1 / (1 + math.exp(-logit)))
    return rates


def bait(rng: random.Random, n: int) -> list[float]:
    """Adversarial: perfect for long enough to be believed, then nothing."""
    return [0.97 if (i // 40) % 3 == 0 else 0.0 for i in range(n)]


PROCESSES: dict[str, Process] = {
    "iid 0": iid(0.0),
    "iid 0.3": iid(0.3),
    "iid 0.5": iid(0.5),
    "iid 0.7": iid(0.7),
    "iid 0.85": iid(0.85),
    "iid 0.95": iid(0.95),
    "switching 0.2/0.9": switching,
    "drifting": drifting,
    "bait": bait,
}


def make_text(process: Process, n: int, rng: random.Random, noise: float) -> Text:
    """`noise`: standard deviation, on the logit, of what the draft believes about its own chance."""
    rates = process(rng, n)
    agrees = tuple(rng.random() < rate for rate in rates)
    believed = tuple(_sigmoid(_logit(rate) + rng.gauss(0, noise)) for rate in rates)
    return Text(agrees, believed)


def _logit(p: float) -> float:
    p = min(max(p, 1e-3), 1 - 1e-3)
    return math.log(p / (1 - p))


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))
