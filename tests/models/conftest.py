"""A home of its own for every test, a loopback Hub, and a pair of tiny models on it."""

from dataclasses import dataclass

import pytest

from localspec.gguf.facts import DraftKind
from localspec.models import local_models
from localspec.models.local_models import ModelFile
from localspec.models.registry import Pair, add_pair
from tests.models.hub import COMMIT, Hub, Served


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    """No test sees the user's files, cache, token or proxies."""
    proxies = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY")
    for name in ("HF_TOKEN", "HF_HUB_CACHE", *proxies):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    local_models._header_on_hub.cache_clear()  # a Hub of an earlier test may have had the same file
    return tmp_path / "home"


@pytest.fixture
def hub(monkeypatch):
    with Hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
        yield running


@dataclass
class ServedPair:
    pair: Pair
    target: Served
    draft: Served


@pytest.fixture
def served(hub, tiny_gguf):
    """A pair that fits, on the hub: a target of about 500 kB and a draft of about 250 kB."""
    target = hub.add("org/target", "target.gguf", tiny_gguf(vocab_size=1024, layers=3))
    draft = hub.add("org/draft", "draft.gguf", tiny_gguf(vocab_size=1024, layers=1))
    return ServedPair(pair_of(target, draft), target, draft)


def pair_of(target: Served, draft: Served, name: str = "tiny") -> Pair:
    served = {"target": target, "draft": draft}
    files = (ModelFile(f"org/{n}", f"{n}.gguf", COMMIT, of.size, of.sha256) for n, of in served.items())
    return Pair(name, DraftKind.MODEL, *files)


@pytest.fixture
def impatient(monkeypatch):
    """Tries as often as the default, but does not wait in between."""
    monkeypatch.setattr("localspec.models.hub.sleep", lambda _: None)


@pytest.fixture
def known(served):
    add_pair(served.pair)
    return served
