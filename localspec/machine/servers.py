"""RPC servers (llama.cpp on other machines): test whether they answer, and list the servers in use."""

import socket
import struct
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from localspec.errors import BackendFailure, BadSetting
from localspec.machine.llama_build import has_backend, rebuild_command

ANSWER_SECONDS = 3.0
_HELLO = 14  # number of the command that begins a connection, from ggml-rpc.cpp
_CAPABILITIES = bytes(24)  # no capabilities, because this client only tests the server
_VERSION_BYTES = 4  # bytes of the server's version, which precedes its capabilities in the answer

_used: tuple[str, ...] = ()


def used_servers() -> tuple[str, ...]:
    """Return HOST:PORT of each server in use."""
    return _used


def assume_servers(addresses: Iterable[str]) -> None:
    """Replace the servers in use by servers that have already answered."""
    global _used
    _used = tuple(dict.fromkeys(addresses))


def addresses_of(text: str) -> tuple[str, ...]:
    """Return the addresses in a text like "HOST:PORT,HOST:PORT". Raises BadSetting for an invalid address."""
    addresses = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not (host and port.isascii() and port.isdecimal() and 1 <= int(port) <= 65535):
            what = f"{address} is not a valid address of an RPC server"
            raise BadSetting(what, hint="write HOST:PORT; put a comma between servers")
    return addresses


def use_servers(text: str) -> None:
    """Add the servers of a text like "HOST:PORT,HOST:PORT" to the servers in use, if all of them answer.

    Raises BadSetting for a build without RPC, and BackendFailure for a server that does not answer.
    """
    wanted = addresses_of(text)
    new = [address for address in wanted if address not in used_servers()]
    if new and not has_backend("rpc"):
        hint = f"rebuild llama.cpp with RPC: {rebuild_command('GGML_RPC=on')}"
        raise BadSetting("the installed llama.cpp has no RPC", hint=hint)
    for problem in filter(None, _problems(new)):
        raise problem
    assume_servers((*used_servers(), *wanted))


def answering_servers(text: str) -> tuple[str, ...]:
    wanted = addresses_of(text)
    return tuple(address for address, problem in zip(wanted, _problems(wanted), strict=True) if not problem)


def _problems(addresses: Iterable[str]) -> list[BackendFailure | None]:
    """Test all servers in parallel; return an error for each that does not answer, else None."""
    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(_problem, addresses))


def _problem(address: str) -> BackendFailure | None:
    """Return an error if a server does not answer, because llama.cpp would then abort or wait for ever."""
    host, _, port = address.rpartition(":")
    request = struct.pack("<BQ", _HELLO, len(_CAPABILITIES)) + _CAPABILITIES
    expected, found = _VERSION_BYTES + len(_CAPABILITIES), b""
    try:
        with socket.create_connection((host, int(port)), ANSWER_SECONDS) as server:
            server.sendall(request)
            while len(found) < 8 and (more := server.recv(4096)):
                found += more
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
    except TimeoutError:
        return BackendFailure(
            f"the RPC server {address} did not answer within {ANSWER_SECONDS:.0f} s",
            hint="stop other programs that use this server (it serves one at a time), or restart the server",
        )
    except ConnectionResetError:
        pass
    except OSError:
        return BackendFailure(
            f"no RPC server listens at {address}",
            hint=f"start a server on that machine: ggml-rpc-server --host 0.0.0.0 --port {port}",
        )
    if found[:8] == struct.pack("<Q", expected):
        return None
    return BackendFailure(
        f"the program at {address} is not an RPC server of this llama.cpp version",
        hint="check the port, and install the same version of llama.cpp on both machines",
    )
