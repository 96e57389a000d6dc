"""Who is answered: programs of this machine, or those with the key."""

import httpx
import pytest

from localspec.serve.guard import is_local_name, is_local_origin
from tests.serve.conftest import start, stop


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    running = start(tmp_path_factory.mktemp("home"), "demo", environment={"LOCALSPEC_API_KEY": "sesame"})
    yield running
    stop(running)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:80", "192.168.1.5:8080"]
)
def test_hosts_that_dns_cannot_give_away(host):
    assert is_local_name(host)


@pytest.mark.parametrize(
    "host", ["", "evil.example", "localhost.evil.example:8080", "127.0.0.1.evil.example", "["]
)
def test_hosts_that_a_rebound_name_would_have(host):
    assert not is_local_name(host)


@pytest.mark.parametrize(
    "origin", ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:5", "app://obsidian.md"]
)
def test_pages_of_this_machine(origin):
    assert is_local_origin(origin)


@pytest.mark.parametrize(
    "origin", ["null", "https://evil.example", "http://localhost.evil.example", "localhost"]
)
def test_pages_from_elsewhere(origin):
    assert not is_local_origin(origin)


def test_a_page_from_elsewhere_gets_nothing_and_a_local_one_may_read(http):
    assert http.get("/v1/models", headers={"host": "evil.example"}).status_code == 403
    away = http.get("/v1/models", headers={"origin": "https://evil.example"})
    assert away.status_code == 403
    assert "access-control-allow-origin" not in away.headers
    asked = {"origin": "http://localhost:3000", "access-control-request-headers": "x-stainless-os"}
    before = http.options("/v1/chat/completions", headers=asked)
    assert before.status_code == 204
    assert before.headers["access-control-allow-headers"] == "x-stainless-os"
    here = http.get("/v1/models", headers={"origin": "http://localhost:3000"})
    assert here.headers["access-control-allow-origin"] == "http://localhost:3000"


def test_the_key_is_asked_of_everybody_and_everywhere_but_for_the_health(locked):
    def status(path, **headers):
        return httpx.get(locked.url + path, headers=headers).status_code

    assert status("/health") == 200
    for path in ("/v1/models", "/props", "/metrics", "/api/tags", "/nothing"):
        assert status(path) == 401
        assert status(path, authorization="Bearer open") == 401
    assert status("/v1/models", authorization="Bearer sesame") == 200
    assert status("/v1/models", **{"x-api-key": "sesame"}) == 200
    assert status("/v1/models", **{"x-api-key": "sesame", "host": "any.example"}) == 200
