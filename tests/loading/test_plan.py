"""Plans for pairs that people run, on machines that people have, from the registry's own sizes."""

from dataclasses import replace

import pytest

from localspec.errors import BackendFailure, BadSetting, NotEnoughMemory
from localspec.gguf.facts import DraftKind
from localspec.loading.drafting import estimated_costs
from localspec.loading.memory import Experts, LoadChoices, Needs, Sizes, layers_on
from localspec.loading.pair_info import estimated_sizes
from localspec.loading.placement import MemoryBudget, Placement, Placements, shares
from localspec.loading.plan import Plan, plan
from localspec.machine.devices import Device
from localspec.models.local_models import ModelFile
from localspec.models.registry import named

pytestmark = pytest.mark.usefixtures("cache_of_its_own")

GIB = 1 << 30
SEVENTY = ModelFile(  # Llama 3.3 70B Instruct, Q4_K_M
    "org/70b", "70b.gguf", "", 42_520_395_008, "", "", "", 80, 327_680, None, None, 591_003_648, 861_880_320
)
ONE = named("llama-3.1-8b+1b").draft


def cards(*gib: float, cpu: float = 28.0) -> list[Device]:
    """Graphics cards of which 95 % are free, beside so much free main memory."""
    gpus = [Device(f"CUDA{i}", "gpu", int(size * 0.95 * GIB), int(size * GIB)) for i, size in enumerate(gib)]
    return [*gpus, Device("CPU", "cpu", int(cpu * GIB), int(cpu * GIB))]


def planned(pair: str, machine: list[Device], **choices) -> Plan:
    known = named(pair)
    target, draft = estimated_sizes(known.target, known.context), estimated_sizes(known.draft)
    return plan(target, draft, machine, LoadChoices(**choices))


def seventy(machine: list[Device], **choices) -> Plan:
    sizes = estimated_sizes(SEVENTY, 131_072), estimated_sizes(ONE)
    return plan(*sizes, machine, LoadChoices(**choices))


def words(found: Plan) -> str:
    return " ".join(found.lines)


def test_where_everything_fits_nothing_is_reported_and_the_draft_holds_as_much():
    found = planned("llama-3.1-8b+1b", cards(24))
    assert (found.target.length, found.target.devices, found.target.gpu_layers) == (32_768, ("CUDA0",), None)
    assert (found.draft.length, found.draft.kv_type, found.draft.devices) == (8192, "q8_0", ("CUDA0",))
    assert found.target.kv_type == "f16"
    assert found.lines == ()


@pytest.mark.parametrize(
    ("pair", "gib", "layers"), [("qwen2.5-32b+0.5b", 16, 44), ("qwen2.5-14b+0.5b", 8, 30)]
)
def test_layers_leave_the_gpu_before_the_draft_does(pair, gib, layers):
    found = planned(pair, cards(gib))
    assert found.draft.devices == ("CUDA0",)
    assert found.target.length == 8192
    assert found.target.gpu_layers >= layers
    assert "of the target's" in words(found)


def test_a_70b_keeps_its_draft_on_one_card_and_is_spread_over_two():
    found = seventy(cards(24, cpu=40))
    assert found.draft.devices == ("CUDA0",)
    assert 35 <= found.target.gpu_layers <= 45
    assert found.target.length == 8192
    found = seventy(cards(24, 24))
    assert found.draft.devices[0] in ("CUDA0", "CUDA1")
    assert found.target.devices == ("CUDA0", "CUDA1")
    assert found.target.gpu_layers is None
    assert sum(found.target.split) == 81
    assert found.target.length == 8192


def test_cards_of_different_sizes_get_layers_by_their_room():
    found = seventy(cards(24, 12, cpu=40))
    assert found.draft is not None
    assert found.target.gpu_layers > 50
    first, second = found.target.split
    assert 1.6 < first / second < 3


def test_every_plan_fits_and_is_the_first_that_does():
    for gib in range(4, 26):
        found = planned("qwen3-14b+0.6b", cards(gib))
        assert all(need.total <= need.free for need in found.needs)
        if found.target.gpu_layers is not None:
            assert max(need.total / need.free for need in found.needs if need.device != "CPU") > 0.75


def test_a_draft_goes_to_a_second_card_before_anything_is_given_up_and_both_to_the_larger_one():
    found = planned("llama-3.1-8b+1b", cards(6.9, 4))
    assert (found.target.devices, found.draft.devices) == (("CUDA0",), ("CUDA1",))
    assert found.target.length == 8192
    assert "The draft is on CUDA1" in words(found)
    found = planned("qwen2.5-14b+0.5b", cards(6, 16))
    assert (found.target.devices, found.draft.devices) == (("CUDA1",), ("CUDA1",))


def test_contexts_are_halved_together_where_that_keeps_the_gpu_to_itself():
    plans = ((gib / 10, planned("llama-3.1-8b+1b", cards(gib / 10))) for gib in range(40, 100))
    free = next(gib for gib, plan in plans if plan.draft and plan.target.gpu_layers is None)
    found = planned("llama-3.1-8b+1b", cards(free))
    assert (found.target.length, found.draft.length) == (4096, 4096)
    assert "4,096 tokens instead of 8,192" in words(found)


def test_a_context_that_was_asked_for_is_never_shortened_and_none_below_4096_for_a_draft():
    for gib in (24, 8, 6, 4):
        found = planned("llama-3.1-8b+1b", cards(gib), context_length=16_000)
        assert found.target.length == 16_000
        assert found.draft is None or found.draft.length == 8192
    for gib in range(2, 12):
        assert planned("llama-3.1-8b+1b", cards(cpu=gib) if gib > 5 else cards(gib)).target.length >= 4096


def test_without_a_gpu_both_are_on_the_cpu_with_exact_caches_or_the_draft_goes():
    found = planned("llama-3.1-8b+1b", cards())
    assert (found.target.devices, found.draft.devices, found.draft.kv_type) == ((), ("CPU",), "f16")
    assert found.lines == ()
    found = planned("llama-3.1-8b+1b", cards(cpu=6.0))
    assert (found.draft, found.target.length) == (None, 8192)
    assert "not loaded" in words(found)


def test_the_draft_is_never_on_the_cpu_beside_a_gpu_unless_that_is_asked_for():
    for gib in range(1, 24):
        found = planned("qwen2.5-14b+0.5b", cards(gib))
        assert found.draft is None or found.draft.devices == ("CUDA0",)
    asked = planned("qwen2.5-14b+0.5b", cards(24), draft_device="cpu")
    assert (asked.draft.devices, asked.draft.kv_type) == (("CPU",), "f16")


def test_what_was_asked_for_is_kept():
    assert planned("llama-3.1-8b+1b", cards(24), gpu_layers=2).target.gpu_layers == 2
    assert planned("llama-3.1-8b+1b", cards(24), gpu_layers=0).draft.devices == ("CPU",)
    assert planned("llama-3.1-8b+1b", cards(24), kv_type="q8_0").target.kv_type == "q8_0"
    assert planned("llama-3.1-8b+1b", cards(24, 24), devices=("cuda1",)).target.devices == ("CUDA1",)
    assert planned("llama-3.1-8b+1b", cards(24, 24), split=(3.0, 1.0)).target.split == (3.0, 1.0)


def test_shares_go_with_the_devices_in_the_order_in_which_they_are_named_and_stay_where_layers_leave():
    found = planned("llama-3.1-8b+1b", cards(24, 24), devices=("CUDA1", "cuda0", "cuda1"), split=(3.0, 1.0))
    assert (found.target.devices, found.target.split) == (("CUDA1", "CUDA0"), (3.0, 1.0))
    assert layers_on(found.target, 33) == (25, 8)
    found = seventy(cards(16, 16, cpu=60), split=(1.0, 1.0))
    assert found.target.split == (1.0, 1.0)
    assert found.target.gpu_layers > 40


def apple(gib: float, free: float) -> list[Device]:
    """Metal gives two thirds of the memory to one program and does not know what others have taken."""
    metal = int(gib * GIB * 0.667)
    return [
        Device("MTL0", "gpu", min(metal, int(free * GIB)), metal, shares_memory=True),
        Device("CPU", "cpu", int(free * GIB), int(gib * GIB)),
    ]


def test_unified_memory_is_counted_once():
    """10.7 GB on Metal fit by themselves, and 0.6 GB on the CPU do, but both are the same memory."""
    found = planned("qwen2.5-14b+0.5b", apple(16, 12))
    assert (found.target.length, found.target.devices) == (8192, ("MTL0",))
    assert planned("qwen2.5-14b+0.5b", apple(16, 10.8)).target.length < 8192
    # Layers that leave Metal free nothing.
    with pytest.raises(NotEnoughMemory):
        planned("qwen2.5-32b+0.5b", apple(16, 14))


def test_what_fits_nowhere_is_refused_with_the_numbers():
    with pytest.raises(NotEnoughMemory, match=r"the target alone needs .* on CPU, but only 8\.6 GB are free"):
        seventy(cards(24, cpu=8))


def test_experts_leave_the_gpu_before_layers_do():
    dense = estimated_sizes(named("qwen2.5-32b+0.5b").target, 32_768)

    def needs(load):
        """Nine tenths of the layers' weights are experts."""
        found = dense.needs(load)
        experts = int(19e9 * 0.9 / 64) * load.cpu_moe
        weights = {"CPU": found.weights["CPU"] + experts, "CUDA0": found.weights["CUDA0"] - experts}
        return replace(found, weights=weights)

    mixture = replace(dense, needs=needs, experts=Experts(128, 8, 0.9))
    draft = estimated_sizes(named("qwen2.5-32b+0.5b").draft)
    found = plan(mixture, draft, cards(12), LoadChoices())
    assert found.target.gpu_layers is None
    assert 10 < found.target.cpu_moe < 64
    assert found.draft is None  # it gains less than the further experts of a wider pass cost
    assert f"The experts of {found.target.cpu_moe} of the target's 64 layers are on the CPU" in words(found)
    asked = plan(mixture, draft, cards(12), LoadChoices(draft_device="CUDA0"))
    assert asked.target.cpu_moe > found.target.cpu_moe
    assert asked.draft.devices == ("CUDA0",)


def test_a_device_without_flash_attention_keeps_the_drafts_cache_exact():
    one = estimated_sizes(ONE)

    def without_flash(load):
        return replace(one.needs(load), flash_attention=False)

    def with_odd_heads(load):
        if load.kv_type == "q8_0":
            raise BackendFailure("K cache type q8_0 with block size 32 does not divide n_embd_head_k=80")
        return one.needs(load)

    for needs in (without_flash, with_odd_heads):
        draft, target = replace(one, needs=needs), estimated_sizes(named("llama-3.1-8b+1b").target)
        assert plan(target, draft, cards(24), LoadChoices()).draft.kv_type == "f16"


def test_a_context_longer_than_the_model_was_trained_for_gets_a_notice():
    assert "longer than the 32,768" in words(planned("qwen2.5-7b+0.5b", cards(24), context_length=40_000))
    assert words(planned("qwen2.5-7b+0.5b", cards(24), context_length=32_768)) == ""


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ({"devices": ("CUDA7",)}, "no device called CUDA7"),
        ({"draft_device": "CUDA7"}, "no device called CUDA7"),
        ({"cpu_moe": 4}, "has no experts"),
        ({"split": (1.0, 1.0, 1.0)}, "the split has 3 shares, but the target can use 2 GPUs"),
        ({"split": (1.0, 1.0), "devices": ("CUDA1",)}, "can use 1 GPU"),
    ],
)
def test_wishes_that_cannot_be_are_refused(choices, says):
    with pytest.raises(BadSetting, match=says) as caught:
        planned("llama-3.1-8b+1b", cards(24, 24), **choices)
    assert caught.value.hint


def test_layers_are_shared_out_whole():
    assert shares(81, (10, 10)) == (41, 40)
    assert shares(81, (-5, 10)) == (0, 81)
    assert shares(7, (-5, -1)) == (4, 3)
    assert sum(shares(65, (3, 1, 1))) == 65


def scaled(file: ModelFile, times: float) -> ModelFile:
    """The file of a quantisation that is larger by so much."""
    names = ("bytes", "embedding_bytes", "output_bytes")
    return replace(file, **{name: int((getattr(file, name) or 0) * times) for name in names})


@pytest.mark.parametrize(
    ("pair", "times", "gib"),
    [("llama-3.1-8b+1b", 1.0, 6), ("qwen3-8b+0.6b", 1.35, 8)],  # Q4_K_M; Q6_K
)
def test_a_draft_does_not_push_layers_off_the_card_where_the_target_alone_is_faster(pair, times, gib):
    known = named(pair)
    target, draft = estimated_sizes(scaled(known.target, times), known.context), estimated_sizes(known.draft)
    found = plan(target, draft, cards(gib), LoadChoices())
    assert found.draft is None
    assert found.target.gpu_layers is None
    asked = plan(target, draft, cards(gib), LoadChoices(draft_device="CUDA0"))
    assert asked.draft is not None


def test_a_few_layers_leave_the_card_for_a_draft_that_gains_more():
    known = named("qwen3.8-27b+mtp")
    target = estimated_sizes(scaled(known.target, 1.17), known.context)  # Q5_K_M
    found = plan(target, estimated_sizes(known.draft, kind=DraftKind.MTP), cards(24), LoadChoices())
    assert found.draft is not None
    assert 60 <= found.target.gpu_layers < 65


def test_the_context_is_the_longest_that_fits_and_that_the_model_was_trained_for():
    lengths = [planned("qwen3-8b+0.6b", cards(gib)).target.length for gib in (8, 10, 12, 24)]
    assert lengths == [8192, 16_384, 32_768, 32_768]
    assert planned("smollm2-1.7b+135m", cards(24)).target.length == 8192
    assert all(not planned("qwen3-8b+0.6b", cards(gib)).lines for gib in (8, 10, 12, 24))
    assert planned("qwen3-8b+0.6b", cards(12)).draft.length == 8192
    # On the CPU it takes a quarter of the free memory at most.
    lengths = [planned("qwen3-8b+0.6b", cards(cpu=gib)).target.length for gib in (12, 16, 24)]
    assert lengths == [8192, 16_384, 32_768]


def test_a_pair_that_fits_nowhere_is_loaded_all_the_same_where_the_user_wants_that():
    found = seventy(cards(24, cpu=8), ignore_memory=True)
    assert found.draft is not None
    assert found.target.gpu_layers is None
    assert "The memory plan is ignored: the target" in words(found)


def test_several_replies_that_were_asked_for_have_a_context_each():
    one, three = (planned("llama-3.1-8b+1b", cards(24), context_length=8192, parallel=n) for n in (1, 3))
    assert (three.target.slots, three.draft.slots, three.target.length) == (3, 3, 8192)
    cache = {found: sum(need.cache for need in found.needs) for found in (one, three)}
    assert cache[three] == pytest.approx(3 * cache[one])
    assert "3 replies run at once, each with a context of 8,192 tokens" in words(three)
    assert planned("llama-3.1-8b+1b", cards(8), parallel=4).target.length < 8192


@pytest.mark.parametrize("gib", [6, 8, 10, 12, 16, 24])
def test_a_second_reply_that_nobody_asked_for_takes_nothing_from_the_first(gib):
    one, more = (planned("llama-3.1-8b+1b", cards(gib), more_parallel=n) for n in (1, 2))
    assert replace(more.target, slots=1) == one.target
    assert (more.draft and replace(more.draft, slots=1)) == one.draft
    assert more.target.slots == (2 if gib >= 16 else 1)
    assert planned("llama-3.1-8b+1b", cards(cpu=64), more_parallel=2).target.slots == 1


def test_an_assistant_lets_replies_take_turns():
    known = named("llama-3.1-8b+1b")
    target, head = estimated_sizes(known.target), estimated_sizes(known.draft, kind=DraftKind.ASSISTANT)
    found = plan(target, head, cards(24), LoadChoices(parallel=3))
    assert (found.target.slots, found.draft.slots) == (1, 1)
    assert "Replies take turns" in words(found)


GB = 10**9


def spilled(layers, weights, experts, head_gb, **load) -> tuple[Placements, Placement]:
    """A target with its prediction head, of which some is on the CPU; `weights`: GB on the card and on the CPU."""
    on_card, on_cpu = (int(size * GB) for size in weights)
    held = Needs({"CUDA0": on_card, "CPU": on_cpu}, {}, {})
    target = Sizes("target", layers, lambda _: held, experts=experts)
    empty = Needs({}, {}, {})
    head = Sizes("head", 1, lambda _: empty, kind=DraftKind.MTP, inside=True, head_bytes=int(head_gb * GB))
    machine = cards(8)
    ways = Placements(target, head, machine, LoadChoices(), MemoryBudget(machine))
    first = next(iter(ways))
    return ways, replace(first, target=replace(first.target, **load))


# Published rates by depth, plain ones first. Each target drafts with its own head, of which a run reads its layer and
# the output matrix. The plan assumes 400 GB/s on a card and 50 GB/s on a CPU. Sizes are from the reports and the files.
QWEN_35B = (45.6, {2: 59.4}, 40, (6.5, 15.5), Experts(256, 8, 0.89), 0.49, {"cpu_moe": 31})  # a card of 8 GB
FLASH_NEXT = (19.6, {4: 11.3}, 48, (1.6, 46.0), Experts(512, 10, 0.967), 0.4, {"cpu_moe": 48})
QWEN_27B = (5.3, {2: 10.8}, 65, (8.3, 6.2), None, 1.2, {"gpu_layers": 38})  # of 66, on a card of 12 GB


@pytest.mark.parametrize("case", [QWEN_35B, FLASH_NEXT, QWEN_27B])
def test_planned_speeds_of_targets_that_fit_no_card_are_about_those_that_people_measured(case):
    plain, by_depth, *target, load = case
    ways, way = spilled(*target, **load)
    alone = ways.seconds_per_token(replace(way, draft=None))
    for depth, rate in by_depth.items():
        expected = alone / ways.seconds_per_token(way, depth)
        assert (expected > 1) == (rate > plain)
        assert 1 / 1.3 < expected / (rate / plain) < 1.3


def test_a_target_whose_experts_leave_the_card_starts_from_costs_of_its_own():
    costs = estimated_costs("experts", {})
    for _, _, *target, load in (QWEN_35B, FLASH_NEXT):
        ways, way = spilled(*target, **load)
        assert way.target.spills
        plain, *wider = (ways._pass_seconds(way, width) for width in (1, 2, 8))
        assert [costs.verify(width) for width in (2, 8)] == pytest.approx(
            [w / plain for w in wider], rel=0.15
        )
