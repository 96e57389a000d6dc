"""A head is planned beside its target: as long a context, its own weights and cache, and nothing where it is unused."""

from dataclasses import replace

import pytest

from localspec.gguf.facts import DraftKind
from localspec.models.inspection import estimated_sizes
from localspec.models.memory import MemoryWishes
from localspec.models.names import find
from localspec.models.plan import plan
from localspec.models.probe import plan_for
from localspec.models.registry import named
from tests.drafters.heads import KINDS
from tests.memory.test_plan import cards


@pytest.mark.parametrize(
    ("name", "kind"), [("eagle3", "draft-eagle3"), ("mtp inside", "draft-mtp"), ("dflash", "draft-dflash")]
)
def test_it_takes_what_llama_cpp_plans_for_it(tmp_path, name, kind):
    target, head = KINDS[name].files(tmp_path)
    wishes = MemoryWishes(context=1024)
    found = plan_for(find(target=target, draft=head), wishes)
    assert (found.draft.kind, found.draft.length) == (kind, 1024)
    assert found.target.prediction is (head is None)
    without = plan_for(find(target=target, draft="lookup"), wishes)
    assert without.draft is None
    assert not without.target.prediction
    (need,), (less,) = found.needs, without.needs
    assert need.cache > less.cache
    assert need.compute > less.compute
    file_bytes = head.stat().st_size if head else 0
    assert need.weights - less.weights > 0.8 * file_bytes


def test_its_context_is_the_targets_and_one_inside_lies_with_its_target():
    pair = named("qwen3.6-27b+mtp")
    for inside in (False, True):
        head = replace(estimated_sizes(pair.draft, kind=DraftKind.MTP), inside=inside)
        found = plan(
            estimated_sizes(pair.target, pair.context), head, cards(24, 24), MemoryWishes(context=16_384)
        )
        assert (found.draft.length, found.draft.kv_type) == (16_384, "f16")
        assert found.target.prediction is inside
        assert found.draft.devices == ("CUDA0",)


@pytest.mark.parametrize("gib", [(16,), (8, 8), (6, 12)])
def test_a_head_inside_stays_on_the_first_card_where_layers_of_its_target_leave(gib):
    pair = named("qwen3.6-27b+mtp")
    head = replace(estimated_sizes(pair.draft, kind=DraftKind.MTP), inside=True)
    found = plan(estimated_sizes(pair.target, pair.context), head, cards(*gib, cpu=40), MemoryWishes())
    assert 20 < found.target.gpu_layers < 65
    assert found.draft.devices == ("CUDA0",)


@pytest.mark.parametrize("kind", ["eagle3", "mtp inside", "dflash"])
def test_each_reply_at_once_has_a_cache_of_target_and_head_in_the_plan(kind, tmp_path):
    target, head = KINDS[kind].files(tmp_path)
    pair = find(None, target, head)
    one, three = (plan_for(pair, MemoryWishes(context=512, gpu_layers=0, parallel=n)) for n in (1, 3))
    assert three.draft.lanes == three.target.lanes == 3
    (before,), (after,) = one.needs, three.needs
    assert after.weights == before.weights
    assert 2.4 < after.cache / before.cache < 3.1  # lanes of a hybrid share the bytes for checkpoints
