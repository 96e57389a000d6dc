"""Small random pairs of models, the rules, and cycles that emit a text of fixed length."""

from dataclasses import dataclass, field

import numpy as np

from localspec.algorithm import judgement
from localspec.algorithm.protocols import Draw, Proposal
from localspec.algorithm.verification import BlockRule, Coupled
from localspec.sampler.chain import Chain
from localspec.sampler.sampling import Sampling

OPEN = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
PROMPT = (1, 0)


def rejection(chain, noise):
    """Token-level rejection for drawn tokens too: the product uses it for chosen ones."""
    return BlockRule(chain, noise, judgement.reject)


RULES = {"block": BlockRule, "rejection": rejection, "coupled": Coupled}


@dataclass(frozen=True)
class World:
    """Two random models over a few symbols; a fifth of the logits are -inf, so p and q have zeros."""

    seed: int
    symbols: int = 3
    forced: tuple[int, ...] = ()  # positions after the prompt where the target allows one token only
    rows: dict = field(default_factory=dict, compare=False)

    def target(self, text):
        row = self._row(0, text)
        if len(text) - len(PROMPT) in self.forced:
            keep = int(row.argmax())
            row = np.where(np.arange(self.symbols) == keep, row, -np.inf).astype(np.float32)
        return row

    def draft(self, text):
        own, target = self._row(1, text), self._row(0, text)
        return np.where(np.isfinite(own) & np.isfinite(target), 0.5 * own + 0.5 * target, own).astype(
            np.float32
        )

    def _row(self, side, text):
        key = (side, *text)
        if key not in self.rows:
            random = np.random.default_rng([self.seed, self.symbols, *key])
            row = random.normal(0.0, 1.5, self.symbols)
            row[random.random(self.symbols) < 0.2] = -np.inf
            if not np.isfinite(row).any():
                row[0] = 0.0
            self.rows[key] = row.astype(np.float32)
        return self.rows[key]


def plain_distribution(world, sampling, length, prompt=PROMPT):
    """The distribution of the target's own text, by the product rule."""
    chain = Chain(sampling)
    found = {(): 1.0}
    for _ in range(length):
        before, found = found, {}
        for text, probability in before.items():
            distribution = chain.distribution(world.target((*prompt, *text)), (*prompt, *text))
            for token, share in zip(
                distribution.ids.tolist(), distribution.probabilities.tolist(), strict=True
            ):
                found[*text, token] = probability * share
    return found


def always(depth):
    """Draft `depth` tokens, whatever happens."""
    return lambda confidences, tokens: len(tokens) < depth


def model_drafter(world, goes_on):
    """Draws from the rule while `goes_on(confidences, tokens)`, which sees the drafted prefix only."""

    def propose(rule, text, room):
        draws, now = [], list(text)
        while len(draws) < room and goes_on([d.confidence for d in draws], now[len(text) :]):
            draws.append(rule.draw(world.draft(now), now, len(text)))
            now.append(draws[-1].token)
        return proposal_of(draws)

    return propose


def proposal_of(draws, certain=0):
    return Proposal(
        tokens=tuple(d.token for d in draws),
        q=tuple(d.q for d in draws),
        confidences=tuple(d.confidence for d in draws),
        certain=certain,
    )


def mixed_drafter(world, pattern):
    """Draws where the pattern says "q"; elsewhere offers the symbol that the pattern names, one-hot."""

    def propose(rule, text, room):
        draws, now = [], list(text)
        for kind in pattern[:room]:
            if kind == "q":
                draws.append(rule.draw(world.draft(now), now, len(text)))
            else:
                draws.append(Draw(int(kind), None, 1.0))
            now.append(draws[-1].token)
        return proposal_of(draws)

    return propose


def certain_drafter(world, depth):
    """Offers forced tokens as certain ones, and draws the rest."""

    def propose(rule, text, room):
        draws, now, certain = [], list(text), 0
        for i in range(min(depth, room)):
            if i == certain and len(now) - len(PROMPT) in world.forced:
                draws.append(Draw(int(world.target(now).argmax()), None, 1.0))
                certain += 1
            else:
                draws.append(rule.draw(world.draft(now), now, len(text)))
            now.append(draws[-1].token)
        return proposal_of(draws, certain)

    return propose


def text_of(world, rule, propose, length):
    """Cycles until the text has `length` tokens after the prompt; returns those."""
    text = list(PROMPT)
    while len(text) - len(PROMPT) < length:
        room = length - (len(text) - len(PROMPT)) - 1
        proposal = propose(rule, text, room)
        rows = [world.target([*text, *proposal.tokens[:i]]) for i in range(len(proposal.tokens) + 1)]
        verdict = rule.verify(rows, proposal, text)
        text += [*proposal.tokens[: verdict.accepted], verdict.next_token]
    return tuple(text[len(PROMPT) :])
