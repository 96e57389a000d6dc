"""The port that the endpoint opens."""

import os
import socket
import subprocess
import sys

import pytest

from localspec.errors import BadSetting
from localspec.serve.server import address_of, listener, reuse_option


def test_small_segments_are_not_held_back():
    with listener("127.0.0.1", 0) as listening:
        # asyncio looks at this before it switches Nagle's algorithm off.
        assert listening.proto == socket.IPPROTO_TCP
        assert address_of(listening) == f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_a_port_that_is_taken_is_refused_in_a_sentence():
    with listener("127.0.0.1", 0) as first, pytest.raises(BadSetting, match="cannot be listened on"):
        listener("127.0.0.1", first.getsockname()[1])


def test_a_host_that_cannot_be_one_is_refused_in_a_sentence():
    with pytest.raises(BadSetting, match="cannot be listened on"):
        listener("\u00e9..b", 0)


def test_it_says_that_it_listens_once_the_options_hold(tmp_path):
    command = [sys.executable, "-m", "localspec", "serve", "demo", "--port", "0", "--split", "x,y"]
    home = os.environ | {"LOCALSPEC_HOME": str(tmp_path)}
    ended = subprocess.run(command, env=home, text=True, capture_output=True, timeout=60)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert "error: x,y is no split over GPUs" in ended.stderr


def test_on_windows_as_its_name_says_no_second_program_takes_the_port_over():
    """The decision, with the platform faked: -5 is SO_EXCLUSIVEADDRUSE, ~SO_REUSEADDR in winsock2.h."""
    assert reuse_option("win32") == ~4
    assert reuse_option("linux") == reuse_option("darwin") == socket.SO_REUSEADDR
