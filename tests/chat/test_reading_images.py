"""Reading a prompt with an image after a cancel."""

from types import SimpleNamespace

from localspec.algorithm.images import ImageRow
from localspec.algorithm.protocols import Strategy
from localspec.chat.reply import read
from localspec.sampler.passes import ForwardPass

CHUNK = SimpleNamespace(count=3, positions=3, placeholder=7, is_encoded=True)
PROMPT = [1, 2, 3, 4, *ImageRow.of(CHUNK, [5, 6, 7]), 8, 9]


class Target:
    needs_checkpoints = False

    def __init__(self, stops_after):
        self.tokens, self._stops_after = [], stops_after

    @property
    def length(self):
        return len(self.tokens)

    def prefill(self, tokens, cancelled):
        """Append tokens one by one; end early inside a stretch, as a pass that a cancel stops."""
        for token in tokens:
            if len(self.tokens) == self._stops_after:
                self._stops_after = None
                return
            yield ForwardPass(len(self.tokens), [token])
            self.tokens.append(token)


def test_nothing_behind_a_stretch_that_was_cut_is_read():
    for stops_after in (2, 4, None):
        target = Target(stops_after)
        job = SimpleNamespace(prompt=PROMPT, text_prompt=PROMPT, cancelled=bool, branch_points=())
        list(read(target, Strategy(), job))
        assert target.tokens == PROMPT[: stops_after or -1]
