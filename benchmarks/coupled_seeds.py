"""Whether a seed gives one text with any draft or none: a Markdown table, and each difference with its margin.

    python -m benchmarks.coupled_seeds --target FILE --draft FILE [--seeds 100] [--max-tokens 100] [--kv-type q8_0]

Each seed writes one reply without drafts, and one each at depth 4, at automatic depth, and with drafts copied from
the text. Passes of different widths round logits differently, so a near-tie may fall the other way. Where two texts
part, both tokens get their score in the row after the common text: the log probability plus the noise of the seed.
The margin is the difference of the two scores. The last column has the tokens of each target pass under `block`.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import localspec
from localspec import Reply, Session
from localspec.algorithm.noise import gumbel
from localspec.measure.compare import first_difference, row_after
from localspec.prompt.messages import Message
from localspec.prompt.tokens import encode
from localspec.sampler.chain import Chain
from localspec.sampler.sampling import Sampling

PROMPTS = (
    "Tell me a short story about a fox.",
    "Describe a forest.",
    "How does a rainbow form?",
    "Write a Python function that reverses a string.",
    "What should I cook tonight?",
)
DRAFTED: dict[str, dict[str, Any]] = {"depth 4": {"depth": 4}, "automatic": {}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--max-tokens", type=int, default=100)
    parser.add_argument("--kv-type", default="f16")
    options = parser.parse_args()
    load: dict[str, Any] = {"threads": 1, "context_length": 2048, "kv_type": options.kv_type}
    seeds, settings = range(options.seeds), {"temperature": 0.8, "max_tokens": options.max_tokens}
    with localspec.load(target=options.target, draft=options.draft, **load) as session:
        plain = list(replies(session, seeds, {"depth": 0, **settings}))
        print("| drafting | texts equal | tokens a pass | under `block` |\n|---|---|---|---|")
        for name, depth in DRAFTED.items():
            block = list(replies(session, seeds, {"rule": "block", **depth, **settings}))
            report(session, name, plain, list(replies(session, seeds, {**depth, **settings})), block)
    with localspec.load(target=options.target, draft="lookup", **load) as session:
        block = list(replies(session, seeds, {"rule": "block", **settings}))
        report(session, "lookup", plain, list(replies(session, seeds, settings)), block)


def replies(session: Session, seeds: range, settings: dict[str, Any]) -> Iterator[Reply]:
    for seed in seeds:
        session.reset()
        yield session.run(PROMPTS[seed % len(PROMPTS)], seed=seed, **settings)


def report(session: Session, name: str, plain: list[Reply], drafted: list[Reply], block: list[Reply]) -> None:
    pairs = [(p, d, first_difference(p.tokens, d.tokens)) for p, d in zip(plain, drafted, strict=True)]
    equal = sum(at is None for _, _, at in pairs)
    print(
        f"| {name} | {equal} of {len(pairs)} | {tokens_a_pass(drafted):.2f} | {tokens_a_pass(block):.2f} |",
        flush=True,
    )
    for seed, (one, other, at) in enumerate(pairs):
        if at is not None:
            print(f"  seed {seed}, token {at}: margin {margin(session, seed, one, other, at)}", flush=True)


def tokens_a_pass(replies: list[Reply]) -> float:
    return sum(len(reply.tokens) for reply in replies) / sum(reply.stats.cycles for reply in replies)


def margin(session: Session, seed: int, plain: Reply, other: Reply, at: int) -> str:
    """Return the difference of the scores of the two tokens, or which of them the sampler left out."""
    if at >= min(len(plain.tokens), len(other.tokens)):
        return "one text is longer"
    prompt = encode(
        session.pair.vocabulary, session.pair.template, [Message("user", PROMPTS[seed % len(PROMPTS)])]
    )
    text = [*prompt.tokens, *plain.tokens[:at]]
    distribution = Chain(Sampling(temperature=0.8)).distribution(row_after(session.pair.target, text), text)
    scores = np.log(distribution.probabilities) + gumbel(seed, len(text), distribution.ids)
    by_token = dict(zip(distribution.ids.tolist(), scores.tolist(), strict=True))
    one, two = (by_token.get(reply.tokens[at]) for reply in (plain, other))
    best = max(by_token.values())
    if one is None or two is None:
        return f"a token is left out by the sampler ({one}, {two}; best {best:.3f})"
    return f"{abs(one - two):.4f}" + ("" if best in (one, two) else f" (neither is the best, {best:.3f})")


if __name__ == "__main__":
    main()
