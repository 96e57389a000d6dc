"""Models on other machines: llama.cpp's RPC servers on loopback, used, killed and stopped."""

import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest

from localspec.engine.client import EngineProcess
from localspec.engine.messages import Died, Generate, LoadPair, Ready
from localspec.errors import BackendFailure, BadSetting
from localspec.events import Finished, Notice, Piece
from localspec.machine import servers
from localspec.machine.servers import addresses_of, answering_servers, use_servers
from localspec.models.local_models import ModelFile
from localspec.models.names import of_file
from tests.devices.servers import HAS_RPC, Server, free_port
from tests.engine.workshop import until

needs_rpc = pytest.mark.skipif(not HAS_RPC, reason="this build of llama.cpp has no RPC")


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path_factory.getbasetemp() / "rpc-home"))
    monkeypatch.setattr(servers, "_used", ())


@pytest.fixture
def two():
    with Server() as first, Server() as second:
        yield first, second


def run(*arguments, **options):
    command = [sys.executable, "-m", "localspec", "run", "Tell me a story", "--threads", "1", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def text_of(*arguments):
    settings = ("--pair", "demo", "--temperature", "0", "--depth", "3", "--max-tokens", "60")
    with run(*settings, *arguments) as done:
        out, err = done.communicate()
    assert done.returncode == 0, err
    return out


@needs_rpc
@pytest.mark.parametrize(
    "places",
    [
        ("--device", "RPC0", "--draft-device", "RPC1"),
        ("--device", "RPC1", "--draft-device", "CPU"),
        ("--device", "CPU", "--draft-device", "RPC1"),
        ("--gpu-layers", "2"),
        ("--kv-type", "q8_0"),
    ],
    ids=" ".join,
)
def test_a_pair_on_servers_writes_what_it_writes_here(two, places):
    addresses = ",".join(server.address for server in two)
    kv_type = places if "--kv-type" in places else ()
    assert text_of("--rpc", addresses, *places) == text_of("--device", "CPU", *kv_type)


@needs_rpc
def test_the_config_file_can_name_the_servers(two, monkeypatch):
    monkeypatch.setenv("LOCALSPEC_RPC", two[0].address)
    with run("--pair", "demo", "--max-tokens", "3", "--device", "RPC0") as done:
        assert done.wait() == 0


@needs_rpc
@pytest.mark.parametrize("lost", ["target", "draft"])
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_server_that_goes_away_in_a_reply_ends_it_with_a_sentence_and_its_text(two, tiny_gguf, how, lost):
    pair = ("--target", str(tiny_gguf(layers=3)), "--draft", str(tiny_gguf(layers=3, noise=0.1)))
    places = ("--device", "RPC0", "--draft-device", "RPC1", "--depth", "2")
    addresses = ",".join(server.address for server in two)
    with run(*pair, *places, "--rpc", addresses, "--max-tokens", "1900") as running:
        assert running.stdout.read(1)
        victim, name = (two[0], "RPC0") if lost == "target" else (two[1], "RPC1")
        getattr(victim, how)()
        out, err = running.communicate(timeout=300)
    assert running.returncode == 1
    assert f"error: {name} ({victim.address}) " in err
    assert ("is gone" if how == "kill" else "does not answer any more") in err
    assert err.count("error:") == 1
    assert "hint: start its server again" in err
    assert len(out) < 10_000, "it went on to the end"


@needs_rpc
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_the_chats_engine_says_which_device_is_gone_and_goes_on_without_it(two, tiny_gguf, how):
    pair = replace(of_file(tiny_gguf(layers=3)), draft=ModelFile.at(tiny_gguf(layers=3, noise=0.1)))
    rpc = ",".join(s.address for s in two)
    load = LoadPair(pair, {"device": "RPC0", "draft_device": "RPC1", "rpc": rpc, "threads": 1})
    engine = EngineProcess()
    engine.start()
    engine.send(load)
    until(engine, Ready)
    engine.send(Generate(1, ({"role": "user", "content": "Hello"},), {"max_tokens": 1900, "depth": 2}))
    until(engine, Piece)
    getattr(two[0], how)()
    (died,) = (report for report in until(engine, Died) if isinstance(report, Died))
    assert died.what.startswith(f"RPC0 ({two[0].address}) ")
    assert died.hint

    engine.start()
    engine.send(replace(load, rpc_required=False))
    reports = until(engine, Ready)
    assert any(isinstance(r, Notice) and two[0].address in r.text for r in reports)
    engine.send(Generate(2, ({"role": "user", "content": "Hello"},), {"max_tokens": 5}))
    until(engine, Finished)
    engine.close()


@needs_rpc
def test_a_server_that_goes_away_while_nothing_is_asked_of_it_is_missed_at_the_next_reply(two, tiny_gguf):
    script = (
        "import sys, localspec\n"
        "with localspec.load(target=sys.argv[1], rpc=sys.argv[2], device='RPC0') as session:\n"
        "    session.complete('Hello', max_tokens=3)\n"
        "    print('loaded', flush=True)\n"
        "    input()\n"
        "    session.complete('Hello', max_tokens=3)\n"
    )
    command = [sys.executable, "-c", script, str(tiny_gguf(layers=3)), two[0].address]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, text=True, **pipes) as python:
        assert python.stdout.readline() == "loaded\n"
        two[0].kill()
        _, err = python.communicate("\n", timeout=300)
    assert python.returncode == 1
    assert f"RPC0 ({two[0].address}) is gone" in err


@needs_rpc
def test_no_server_is_one_sentence_in_a_few_seconds(two):
    stopped = two[1]
    stopped.stop()
    with (
        listener(lambda peer: peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as web,
        listener() as silent,
    ):
        nobody = f"127.0.0.1:{free_port()}"
        for address, says in (
            (nobody, "no RPC server listens"),
            (web, "is not an RPC server of this"),
            (silent, "did not answer within 3 s"),
            (stopped.address, "did not answer within 3 s"),
        ):
            with pytest.raises(BackendFailure, match=says) as caught:
                use_servers(f"{two[0].address},{address}")
            assert address in str(caught.value)
            assert caught.value.hint
        assert answering_servers(f"{nobody},{silent},{two[0].address}") == (two[0].address,)
    assert servers.used_servers() == ()


@needs_rpc
def test_a_server_that_serves_another_program_says_so_by_silence(two):
    with socket.create_connection(two[0].address.split(":")), pytest.raises(BackendFailure) as caught:
        use_servers(two[0].address)
    assert "one at a time" in caught.value.hint


@needs_rpc
def test_doctor_tries_the_devices_of_servers(two):
    addresses = ",".join(server.address for server in two)
    command = [sys.executable, "-m", "localspec", "doctor", "--rpc", addresses]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for number, server in enumerate(two):
        (line,) = (line for line in printed.splitlines() if f"RPC{number}: {server.address}" in line)
        assert line.endswith("works")


@pytest.mark.skipif(HAS_RPC, reason="this build of llama.cpp has RPC")
def test_a_build_without_rpc_is_one_sentence_with_the_command_that_adds_it():
    with pytest.raises(BadSetting, match="has no RPC") as caught:
        use_servers("127.0.0.1:50052")
    assert 'CMAKE_ARGS="' in caught.value.hint
    assert "-DGGML_RPC=on" in caught.value.hint


@pytest.mark.parametrize("address", ["host", "host:", ":50052", "host:0", "host:65536", "host:x", "a:1,b"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(BadSetting, match="is not a valid address of an RPC server"):
        addresses_of(address)


def test_an_address_counts_once():
    assert addresses_of("a:1, b:2,a:1,") == ("a:1", "b:2")


def test_servers_that_are_known_are_not_asked_again(monkeypatch):
    servers.assume_servers(["a:1"])
    monkeypatch.setattr(servers, "_problem", lambda address: pytest.fail(f"asked {address}"))
    monkeypatch.setattr(servers, "has_backend", lambda name: True)
    use_servers("a:1")
    assert servers.used_servers() == ("a:1",)


@contextmanager
def listener(say=lambda peer: None):
    """HOST:PORT of something that is no RPC server."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        peers = []

        def accept():
            while True:
                try:
                    peers.append(listening.accept()[0])
                except OSError:
                    return
                say(peers[-1])

        threading.Thread(target=accept, daemon=True).start()
        yield "{}:{}".format(*listening.getsockname())
        for peer in peers:
            peer.close()
