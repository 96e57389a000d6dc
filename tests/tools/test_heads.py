"""What heads are trained on and what they are measured on (tools/heads)."""

from itertools import islice

import pytest

from tools.heads import prompts


def test_sixty_prompts_of_four_kinds_are_measured():
    kinds = [kind for kind, _ in prompts.held_out()]
    assert {kind: kinds.count(kind) for kind in kinds} == dict.fromkeys(prompts.KINDS, 15)
    assert len(set(prompts.held_out())) == 60


@pytest.mark.parametrize("seed", [0, 7])
def test_no_measured_prompt_is_trained_on(seed):
    measured = {prompt for _, prompt in prompts.held_out()}
    trained = list(islice(prompts.mixed(seed), 2000))
    assert not measured & set(trained)
    assert len(set(trained)) == len(trained)


def test_equal_seeds_give_equal_prompts():
    assert list(islice(prompts.mixed(3), 50)) == list(islice(prompts.mixed(3), 50))
    assert list(islice(prompts.mixed(3), 50)) != list(islice(prompts.mixed(4), 50))
