"""Who is answered: programs of this machine, or those with the key."""

import socket

import httpx
import pytest
from starlette.responses import Response

from localspec.cli.commands.serve import check_guests
from localspec.errors import BadSetting
from localspec.serve.guard import Access, Guard, is_local_name, is_local_origin

LOCAL_HOSTS = ("localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:80", "192.168.1.5:8080")
REBOUND_HOSTS = ("", "evil.example", "localhost.evil.example:8080", "127.0.0.1.evil.example", "[")
LOCAL_PAGES = ("http://localhost:3000", "https://127.0.0.1", "http://[::1]:5", "app://obsidian.md")
OTHER_PAGES = ("null", "https://evil.example", "http://localhost.evil.example", "localhost")


def test_hosts_that_dns_cannot_give_away_and_pages_of_this_machine_are_local():
    assert [*filter(is_local_name, (*LOCAL_HOSTS, *REBOUND_HOSTS))] == [*LOCAL_HOSTS]
    assert [*filter(is_local_origin, (*LOCAL_PAGES, *OTHER_PAGES))] == [*LOCAL_PAGES]


def test_a_whole_address_and_an_old_request_without_a_host_are_answered(http):
    where = http.base_url.host, http.base_url.port
    for line in (f"GET {http.base_url}health HTTP/1.1\r\nHost: localhost", "GET /v1/models HTTP/1.0"):
        with socket.create_connection(where) as connection:
            connection.sendall(f"{line}\r\nConnection: close\r\n\r\n".encode())
            assert b" 200 " in connection.recv(100)


def test_a_page_from_elsewhere_gets_nothing_and_a_local_one_may_read(http):
    assert http.get("/v1/models", headers={"host": "evil.example"}).status_code == 403
    away = http.get("/v1/models", headers={"origin": "https://evil.example"})
    assert away.status_code == 403
    assert "access-control-allow-origin" not in away.headers
    asked = {"origin": "http://localhost:3000", "access-control-request-headers": "x-stainless-os"}
    before = http.options("/v1/chat/completions", headers=asked)
    assert before.status_code == 200
    assert before.headers["access-control-allow-headers"] == "x-stainless-os"
    here = http.get("/v1/models", headers={"origin": "http://localhost:3000"})
    assert here.headers["access-control-allow-origin"] == "http://localhost:3000"


@pytest.mark.process
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


ASKER = {"origin": "https://chat.example", "host": "host.docker.internal:8080"}


async def status_for(access, **headers):
    async def app(scope, receive, send):
        await Response("fine")(scope, receive, send)

    guard = Guard(app, access, lambda scope, status, seconds: None)
    transport = httpx.ASGITransport(guard)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        return await client.get("/v1/models", headers=headers)


async def test_a_refusal_names_the_option_that_lets_the_asker_in():
    refused = await status_for(Access(), host=ASKER["host"])
    assert (refused.status_code, refused.json()["error"]["message"]) == (
        403,
        "this server does not answer to the Host 'host.docker.internal' "
        "(start it with --allow-host and this name, or with a key)",
    )
    refused = await status_for(Access("key"), origin=ASKER["origin"])
    assert "--allow-origin" in refused.json()["error"]["message"]


@pytest.mark.parametrize("origin", ["https://chat.example", "chrome-extension://*", "*"])
async def test_allowed_hosts_and_origins_are_answered_and_others_still_not(origin):
    access = Access(hosts=frozenset({"host.docker.internal"}), origins=frozenset({origin}))
    asker = "chrome-extension://abc" if origin.startswith("chrome") else "https://chat.example"
    answer = await status_for(access, host="HOST.docker.internal:8080", origin=asker)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == asker
    assert (await status_for(access, host="evil.example")).status_code == 403
    if origin != "*":
        assert (await status_for(access, origin="https://evil.example")).status_code == 403


async def test_an_allowed_page_still_needs_the_key():
    access = Access("key", origins=frozenset({"https://chat.example"}))
    assert (await status_for(access, origin="https://chat.example")).status_code == 401


@pytest.mark.parametrize(
    ("hosts", "origins", "key", "words"),
    [
        (["http://a.example"], [], "", "is not a valid host name"),
        (["*"], [], "", "is not a valid host name"),
        ([], ["chat.example"], "", "is not a valid origin"),
        ([], ["https://chat.example/path"], "", "is not a valid origin"),
        ([], ["*"], "", "it admits every web page"),
        ([], ["https://*"], "", "it admits every web page"),
        ([], ["null"], "", "it admits every web page"),
    ],
)
def test_guests_that_cannot_be_meant_are_refused(hosts, origins, key, words):
    with pytest.raises(BadSetting, match=words):
        check_guests(hosts, origins, key)


@pytest.mark.process
def test_guests_that_can_be_meant():
    check_guests(["host.docker.internal"], ["https://chat.example:3000", "moz-extension://*"], "")
    check_guests([], ["*", "null", "https://*"], "key")
