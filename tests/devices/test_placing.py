"""What holds on every device that models can go to: `pytest tests/devices --device NAME`."""

from contextlib import ExitStack

import numpy as np
import pytest

from localspec import api
from localspec.errors import BackendFailure, LocalspecError, NotEnoughMemory
from localspec.llama.context import Context
from localspec.llama.devices import devices
from localspec.llama.load import Load
from localspec.llama.model import Model
from localspec.loading.memory import LoadChoices
from localspec.loading.plan import MemoryProbe, plan_for
from localspec.models.local_models import ModelFile
from localspec.models.names import find
from tests.devices.placing import taken_by

GREEDY = {"temperature": 0, "max_tokens": 40, "depth": 3}
TEXT = tuple(range(3, 43))


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path_factory.getbasetemp() / "placing-home"))


@pytest.fixture
def gpu(device):
    if device is None or device == "CPU":
        pytest.skip("needs --device with a GPU")
    return device


def rows(path, **how):
    """Rows of a prompt read in one batch, then of single tokens, then of five at once."""
    kv = how.pop("kv_type", "f16")
    with (
        Model(path, **how) as model,
        Context(model, length=256, threads=1, kv_type=kv) as context,
    ):
        found = [np.array(context.decode(TEXT, 1).rows[0])]
        found += [np.array(context.decode([token], 1).rows[0]) for token in (5, 6)]
        return np.stack([*found, *(np.array(row) for row in context.decode([7, 8, 9, 10, 11], 5).rows)])


def test_models_go_to_the_device_of_the_command_line(tiny_gguf, device):
    with Model(tiny_gguf()) as model:
        assert (model.gpu.name if model.gpu else "CPU") == (device or "CPU")


def correlation(rows, others):
    """Kernels of another device round otherwise, and random weights and coarse caches make much of that."""
    return np.corrcoef(rows.ravel(), others.ravel())[0, 1]


@pytest.mark.parametrize("weights", ["F32", "F16", "Q8_0"])
@pytest.mark.parametrize(("kv_type", "least"), [("f16", 0.999), ("q8_0", 0.99), ("q4_0", 0.9)])
def test_rows_are_those_of_the_cpu(tiny_gguf, gpu, weights, kv_type, least):
    path = tiny_gguf(weights=weights, layers=3, embedding=128)
    here, there = (rows(path, devices=(place,), kv_type=kv_type) for place in ("CPU", gpu))
    assert correlation(here, there) > least


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_rows_are_those_of_the_cpu_with_some_of_the_layers_there(tiny_gguf, gpu, layers):
    path = tiny_gguf(layers=3, embedding=128)
    assert correlation(rows(path, devices=("CPU",)), rows(path, devices=(gpu,), gpu_layers=layers)) > 0.999


@pytest.mark.parametrize(
    "places",
    [
        {},
        {"draft_device": "CPU"},
        {"device": "CPU", "draft_device": "the GPU"},
        {"gpu_layers": 2},
        {"kv_type": "q8_0"},
    ],
    ids=str,
)
def test_the_demo_answers_wherever_its_two_models_are(gpu, places):
    """Greedy text is the target's own: the same as plain on the same device, up to near-ties of kernels."""
    places = {name: gpu if place == "the GPU" else place for name, place in places.items()}
    with api.load("demo", threads=1, **places) as session:
        replies = session.run("What is speculative decoding?", **GREEDY)
        session.reset()
        plain = session.run("What is speculative decoding?", **GREEDY | {"speculate": False})
    assert replies.stats.accepted > 10
    common = next(
        (i for i, (a, b) in enumerate(zip(replies.tokens, plain.tokens, strict=False)) if a != b),
        len(plain.tokens),
    )
    assert common > 10


@pytest.mark.parametrize("layers", [None, 1])
def test_what_is_taken_is_what_was_planned(tiny_gguf, device, layers):
    if layers and device in (None, "CPU"):
        pytest.skip("needs --device with a GPU")
    path = tiny_gguf(layers=3, embedding=256, heads=8, vocab_size=4096)
    with ExitStack() as opened:

        def load():
            model = opened.enter_context(Model(path, gpu_layers=layers))
            opened.enter_context(Context(model, length=8192, rows_max=9))

        taken = taken_by(load, device)
    with MemoryProbe() as probe:
        needs = probe.needs(
            ModelFile.at(path),
            Load(8192, devices=(device,) if device else None, gpu_layers=layers, rows_max=9),
        )
    for part in ("weights", "cache", "compute"):
        for place, size in getattr(needs, part).items():
            if (part, place) == ("weights", "CPU") and layers:
                continue  # llama.cpp tells how much of the file it maps, with gaps that the GPU has
            assert size == pytest.approx(taken[part, place], rel=0.02, abs=100_000), (part, place)


def test_a_context_that_the_device_cannot_hold_is_planned_smaller_or_refused(tiny_gguf, gpu):
    total = next(found.total_bytes for found in devices() if found.name == gpu)
    if total > 4e9:
        pytest.skip("needs a device of at most 4 GB")
    path = tiny_gguf(layers=8, embedding=512, heads=8, kv_heads=8, context_length=1 << 20)
    there = devices()
    try:
        asked = plan_for(find(target=path), LoadChoices(context_length=262_144, devices=(gpu,)), there)
    except BackendFailure as refused:  # a driver that has no buffer for the cache of all layers
        if "--gpu-layers" not in refused.hint:
            raise
        return
    assert asked.target.gpu_layers is not None, "4.3 GB of cache do not fit: layers go to the CPU"
    with Model(path, devices=(gpu,), gpu_layers=asked.target.gpu_layers) as model:
        Context(model, length=262_144, threads=1).close()
    with Model(path, devices=(gpu,)) as model, pytest.raises(NotEnoughMemory):
        Context(model, length=1 << 20, threads=1)


@pytest.mark.parametrize("name", ["CUDA0", "ROCm0", "MTL0"])
def test_a_device_of_a_backend_that_was_not_built_names_the_command_that_names_the_build(name):
    if any(found.name == name for found in devices()):
        pytest.skip("it is here")
    with pytest.raises(LocalspecError) as caught:
        api.load("demo", device=name)
    assert "`localspec doctor` shows how to install" in caught.value.hint
