"""Does `localspec verify` find a verifier that keeps 2 % of what it should reject, and pass the right one?

    python -m benchmarks.verify_power [--pair demo] [--runs 20] [--leak 0.02] [--fault block] ...

Every run is a whole verification at default settings with fresh randomness, correct and faulty ones in turns.
"""

import argparse
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from unittest.mock import patch

import localspec
from localspec import Session
from localspec.algorithm import judgement, verification
from localspec.algorithm.noise import Keyed
from localspec.algorithm.verification import Sampled
from localspec.measure.verify.report import problems, verdict
from localspec.measure.verify.verify import SECONDS, verify
from localspec.sampler.chain import Distribution

chance = random.SystemRandom()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair", default="demo")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--leak", type=float, default=0.02)
    parser.add_argument("--fault", choices=FAULTS, action="append")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--threads", type=int, default=1)
    wanted = parser.parse_args()
    alarms = Counter[str]()
    kinds = ["none", *(wanted.fault or ["coin"])]
    with localspec.load(wanted.pair, threads=wanted.threads) as session:
        for number in range(wanted.runs):
            for kind in kinds:
                with FAULTS[kind](wanted.leak):
                    alarms[kind] += one_run(session, wanted.seconds, f"{number + 1:2} {kind:<10}")
    for kind in kinds:
        print(f"fault {kind}: an alarm in {alarms[kind]} of {wanted.runs} runs")


def one_run(session: Session, seconds: float, name: str) -> bool:
    """Whether a verification raised an alarm; prints a line."""
    began = perf_counter()
    found = verify(session, seconds=seconds)
    law = found.law
    assert law is not None, "there was time to replay"
    words = verdict(found).split(",")[0].splitlines()[0]
    print(
        f"{name}  {words:<60}  {law.verifications:,} replays, p {law.leak_p:.1e}, "
        f"{law.impossible} excluded tokens, "
        f"{perf_counter() - began:.0f} s",
        flush=True,
    )
    return bool(problems(found))


@contextmanager
def correct(leak: float) -> Iterator[None]:
    """The verifier as it is."""
    yield


@contextmanager
def leaky_coin(leak: float) -> Iterator[None]:
    """Block and rejection: a share of the coins that should fail succeed."""
    coin = Keyed.coin

    def leaky(self: Keyed, probability: float, position: int, start: int) -> bool:
        return coin(self, probability, position, start) or chance.random() < leak

    with patch.object(Keyed, "coin", leaky):
        yield


@contextmanager
def leaky_block(leak: float) -> Iterator[None]:
    """The same for block verification alone, whose drafts are drawn."""
    block = judgement.block

    def leaky(
        tokens: Sequence[int], q: Sequence[Distribution | None], p: judgement.Target, coin: judgement.Coin
    ) -> tuple[int, Distribution]:
        return block(tokens, q, p, lambda i, probability: coin(i, probability) or chance.random() < leak)

    rules = {name: lambda chain, noise: Sampled("block", leaky, chain, noise) for name in ("auto", "block")}
    with patch.dict(verification._SAMPLING_RULES, rules):
        yield


@contextmanager
def leaky_comparison(leak: float) -> Iterator[None]:
    """Greedy, compare and coupled: a share of the draft tokens that differ from the target's are kept."""

    def leaky(tokens: Sequence[int], choose: Callable[[int], int]) -> tuple[int, int]:
        for i, token in enumerate(tokens):
            choice = choose(i)
            if choice != token and chance.random() >= leak:
                return i, choice
        return len(tokens), choose(len(tokens))

    with patch.object(judgement, "compare", leaky):
        yield


FAULTS = {"none": correct, "coin": leaky_coin, "block": leaky_block, "comparison": leaky_comparison}


if __name__ == "__main__":
    main()
