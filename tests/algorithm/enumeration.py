"""Exact distributions of random code: every decision is taken every way, and each way carries its probability.

`Forks` stands in for the keyed noise of a run. For each key it keeps the interval of [0, 1) in which the
uniform behind that key still lies, so a key that is met twice is as dependent as in a real run.
"""

import inspect
import types
from collections import defaultdict

import numpy as np

from localspec.sampler.chain import Chain
from localspec.sampler.sampling import Sampling


class Forks:
    """Stands in for `Keyed`: follows a script of branches and remembers the branches it left out."""

    def __init__(self, script=()):
        self.script = script
        self.taken = []
        self.left_out = []
        self.weight = 1.0
        self.intervals = {}

    def coin(self, probability, position, start):
        return self._fork(("accept", position, start), [(True, 0.0, probability), (False, probability, 1.0)])

    def drafted(self, q, position, start):
        return self._pick(("draft", position, start), q)

    def chosen(self, p, position):
        return self._pick(("target", position), p)

    def loudest(self, distribution, position):
        # Any noise will do whose every argmax is a draw from the distribution; this one is enumerable.
        return self._pick(("noise", position), distribution)

    def loudest_of_all(self, logits, temperature, position):
        chain = Chain(Sampling(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0))
        return self.loudest(chain.distribution(logits, ()), position)

    def _pick(self, key, distribution):
        edges = [0.0, *np.cumsum(distribution.probabilities)]
        edges[-1] = 1.0
        cells = zip(distribution.ids.tolist(), edges[:-1], edges[1:], strict=True)
        return self._fork(key, list(cells))

    def _fork(self, key, cells):
        low, high = self.intervals.get(key, (0.0, 1.0))
        open_cells = [
            (result, max(low, begin), min(high, end))
            for result, begin, end in cells
            if min(high, end) > max(low, begin)
        ]
        depth = len(self.taken)
        branch = self.script[depth] if depth < len(self.script) else 0
        if depth >= len(self.script):
            self.left_out += [(*self.taken, other) for other in range(1, len(open_cells))]
        self.taken.append(branch)
        result, begin, end = open_cells[branch]
        self.weight *= (end - begin) / (high - low)
        self.intervals[key] = (begin, end)
        return result


class OneStream(Forks):
    """The trap of a shared stream: draft, coin and fix at one position look at the same uniform."""

    def coin(self, probability, position, start):
        return self._fork((position, start), [(True, 0.0, probability), (False, probability, 1.0)])

    def drafted(self, q, position, start):
        return self._pick((position, start), q)

    def chosen(self, p, position):
        return self._pick(("target", position), p)


class PositionOnly(Forks):
    """The trap of a key without its cycle: a later cycle meets the uniforms behind rejected tokens again."""

    def coin(self, probability, position, start):
        return super().coin(probability, position, 0)

    def drafted(self, q, position, start):
        return super().drafted(q, position, 0)


def distribution_of(run, forks=Forks):
    """The exact distribution of `run(noise)` over its results, as a dict."""
    found = defaultdict(float)
    scripts = [()]
    while scripts:
        noise = forks(scripts.pop())
        found[run(noise)] += noise.weight
        scripts += noise.left_out
    return dict(found)


def distance(one, other):
    """The largest difference between the probabilities of two distributions."""
    return max(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in one.keys() | other.keys())


def mutant(module, *changes):
    """A copy of a module with lines of its source replaced."""
    source = inspect.getsource(module)
    for line, trap in changes:
        assert source.count(line) == 1, line
        source = source.replace(line, trap)
    copy = types.ModuleType(f"{module.__name__}.trapped")
    exec(compile(source, copy.__name__, "exec"), copy.__dict__)
    return copy
