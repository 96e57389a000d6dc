"""The projector of a pair: which file it is, the memory that it takes, and how it comes and goes."""

import shutil
from dataclasses import replace
from functools import partial

import pytest

import localspec
from localspec.cli import main
from localspec.errors import BadSetting, LocalspecError
from localspec.loading.memory import LoadChoices
from localspec.loading.plan import plan_for, without_projector
from localspec.machine.devices import Device
from localspec.models import local_models
from localspec.models.names import find
from localspec.models.projector import projector_of
from localspec.models.registry import add_pair, named
from tests.gguf.mutations import by_meaning, taken_apart
from tests.llama.images import LOAD, PICTURES, model_in
from tests.models.conftest import pair_of

FETCHED = ["mmproj-model-F16.gguf"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return partial(model_in, tmp_path_factory.mktemp("images"))


@pytest.fixture
def beside(files, tmp_path):
    """beside("mmproj.gguf") is a pair whose target, gemma3-it-Q8.gguf, lies beside a projector of that name."""
    (folder := tmp_path / "models").mkdir()

    def pair(*names, kind="gemma3"):
        shutil.copy(files("gemma3").target, folder / "gemma3-it-Q8.gguf")
        for name in names:
            shutil.copy(files(kind).projector, folder / name)
        return find(target=folder / "gemma3-it-Q8.gguf", draft="lookup")

    return pair


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["vision.gguf"], None),
        (["gemma3.MMPROJ-f16.gguf"], "gemma3.MMPROJ-f16.gguf"),
        (["mmproj-other-f16.gguf", "mmproj-gemma3-it.gguf", "mmproj-a.gguf"], "mmproj-gemma3-it.gguf"),
    ],
)
def test_the_projector_beside_the_target_whose_name_is_most_like_it_is_taken(beside, names, chosen):
    found = projector_of(beside(*names))
    assert (found and found.name) == chosen


@pytest.mark.parametrize("kind", ["gemma4", "qwen2vl", "idefics3"])
def test_another_models_projector_beside_the_target_is_left_alone(beside, kind):
    with localspec.load(beside("mmproj-gemma3-it.gguf", kind=kind), **LOAD) as session:
        assert session.pair.read_image is None


def test_files_that_only_have_the_name_of_a_projector_are_left_alone(beside, files):
    pair = beside()
    folder, source = pair.target.path.parent, files("gemma3").projector
    (folder / "mmproj-folder.gguf").mkdir()
    (folder / "mmproj-link.gguf").symlink_to("nowhere")
    (folder / "mmproj-half.gguf").write_bytes(source.read_bytes()[:60_000])
    shutil.copy(files("gemma3").target, folder / "mmproj-model.gguf")
    wider = (m for m in by_meaning(taken_apart(source)) if m.note == "b'clip.vision.projection_dim' 65536")
    (folder / "mmproj-gemma3-it-wider.gguf").write_bytes(next(wider).written())
    assert projector_of(pair) is None


def test_the_option_names_a_projector_or_none(beside, files):
    pair, other = beside("mmproj.gguf"), files("gemma3").projector
    assert (projector_of(pair, "none"), projector_of(pair, str(other))) == (None, other)
    for wrong in ("nowhere.gguf", str(files("gemma3").target), str(other.parent)):
        with pytest.raises(BadSetting) as caught:
            projector_of(pair, wrong)
        assert caught.value.hint
    with localspec.load(pair, mmproj="none", **LOAD) as session, pytest.raises(BadSetting, match="no images"):
        session.run("Hi", images=[PICTURES["dot.png"]])


OTHER_MODELS = {
    "gemma3": "qwen2vl",
    "qwen2vl": "gemma3",
    "qwen35": "qwen2vl",
    "idefics3": "gemma3",
    "gemma4": "idefics3",
}


@pytest.mark.parametrize("kind", OTHER_MODELS)
def test_another_models_projector_is_refused_in_a_sentence(files, kind):
    """It would load, because the widths are equal, and the model would describe what nobody sent."""
    other = str(files(OTHER_MODELS[kind]).projector)
    with pytest.raises(BadSetting, match="of another model than") as caught:
        localspec.load(target=files(kind).target, draft="lookup", mmproj=other, **LOAD)
    assert caught.value.hint


def test_the_memory_plan_counts_the_projector_before_the_draft(files, monkeypatch):
    monkeypatch.setattr("localspec.loading.plan.with_host", tuple)
    model = files("qwen2vl")  # whose images need no larger batches
    pair = find(target=model.target, draft=model.draft)

    def planned(free, mmproj=None):
        options = LoadChoices(context_length=512, gpu_layers=0)
        with_projector = replace(pair, projector=projector_of(pair, mmproj))
        return plan_for(with_projector, options, [Device("CPU", "cpu", free, free)])

    low, enough = 0, 10**9  # bytes with which the draft does not fit, and does
    while enough - low > 10_000:
        middle = (low + enough) // 2
        try:
            holds = planned(middle, "none").draft is not None
        except LocalspecError:
            holds = False
        low, enough = (low, middle) if holds else (middle, enough)
    assert projector_of(pair) == model.projector
    assert planned(enough).draft is None
    assert planned(enough + 10_000_000).draft is not None


def test_the_projector_is_on_the_first_gpu_or_on_the_cpu():
    cpu, one, two = Device("CPU", "cpu", 90, 99), Device("G0", "gpu", 90, 99), Device("G1", "gpu", 90, 99)
    assert [device.free_bytes for device in without_projector((cpu, one, two), 40)] == [90, 50, 90]
    assert [device.free_bytes for device in without_projector((cpu,), 99)] == [0]


@pytest.fixture
def published(hub, files):
    """A pair on the hub, known by its name, with projectors of two precisions."""
    model = files("gemma3")
    target, draft = (
        hub.add("org/target", "target.gguf", model.target),
        hub.add("org/draft", "draft.gguf", model.draft),
    )
    for name in ("mmproj-F32.gguf", *FETCHED):
        hub.add("org/target", name, model.projector)
    add_pair(pair_of(target, draft))
    return named("tiny")


def projectors():
    return [path.name for path in local_models.models_dir().rglob("*mmproj*")]


def test_pull_images_fetches_the_projector_that_the_hub_has(published, hub):
    assert main(["pull", "tiny"]) == 0
    assert projectors() == []
    assert main(["pull", "tiny", "--images"]) == 0
    assert projectors() == FETCHED
    sent = dict(hub.sent)
    assert main(["pull", "tiny", "--images"]) == 0
    assert dict(hub.sent) == sent
    with localspec.load("tiny", **LOAD) as session:
        assert session.run("Hi", images=[PICTURES["square.png"]], max_tokens=2).stats.prompt_tokens > 16


def test_a_published_file_that_is_no_projector_and_a_repository_without_one_are_reported(
    published, hub, files, capsys
):
    hub.add("org/target", *FETCHED, files("gemma3").draft)
    assert main(["pull", "tiny", "--images"]) != 0
    assert "mmproj-model-F16.gguf is not an image projector" in capsys.readouterr().err
    assert projectors() == []
    hub.files = {path: served for path, served in hub.files.items() if "mmproj" not in path}
    assert main(["pull", "tiny", "--images"]) != 0
    assert "org/target has no projector" in capsys.readouterr().err


@pytest.mark.process
def test_rm_takes_the_projector_along_unless_another_pair_uses_it(published):
    assert main(["pull", "tiny", "--images"]) == 0
    assert main(["rm", "--unused"]) == 0
    add_pair(replace(published, name="other"))
    assert main(["rm", "tiny"]) == 0
    assert projectors() == FETCHED
    assert main(["rm", "other"]) == 0
    assert list(local_models.models_dir().rglob("*.gguf")) == []
