"""The draft model as a drafter: what it proposes when it fails, and what it reads again."""

import pytest

from localspec.algorithm.verification import make_rule
from localspec.drafters.model import AT_ONCE, ModelDrafter
from localspec.errors import BackendFailure
from localspec.sampler.passes import ForwardPass
from localspec.sampler.sampling import Sampling
from tests.algorithm.exact_models import ExactModel


class Failing(ExactModel):
    """Fails from the third decode on."""

    calls = 0

    def decode(self, tokens, rows):
        self.calls += 1
        if self.calls >= 3:
            raise BackendFailure("out of luck")
        return super().decode(tokens, rows)


def test_what_was_drawn_before_a_failure_is_proposed_and_then_nothing():
    """Dropping drawn tokens, because the model fails after some and not after others, would bias the output."""
    draft, rule, text = Failing(4), make_rule("block", Sampling(), seed=1), [5, 3, 8]
    drafter = ModelDrafter(draft, lambda token: False)
    sound = ModelDrafter(ExactModel(4), lambda token: False).propose(text, 4, rule)
    proposal = drafter.propose(text, 4, rule)
    assert proposal.tokens == sound.tokens[:2]
    assert [q.ids.tolist() for q in proposal.q] == [q.ids.tolist() for q in sound.q[:2]]
    assert len(proposal.confidences) == proposal.depth == 2
    assert str(drafter.failure) == "out of luck"
    drafter.observe(ForwardPass(2, [8, *proposal.tokens]), kept=2)
    assert draft.tokens == [*text, proposal.tokens[0]]
    after = drafter.propose([*text, proposal.tokens[0], 7], 4, rule)
    assert (after.tokens, after.depth, draft.calls) == ((), 0, 3)


@pytest.mark.parametrize(("missing", "older"), [(1, 0), (AT_ONCE, 0), (AT_ONCE + 1, AT_ONCE + 1)])
def test_a_text_is_not_read_again_for_the_few_tokens_before_the_cache(missing, older):
    """The first step reads few unread tokens at once, so a cache that restarts without reading begins after them."""
    text, drafter = [5] * 100, ModelDrafter(ExactModel(4), lambda token: False)
    drafter.restart(text, len(text) - 1 - missing)
    drafter.read(text, 1000)
    assert drafter.backlog(text).older == older
