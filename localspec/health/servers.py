"""RPC servers, llama.cpp on other machines: which ones answer, and which ones this process uses."""

import socket
import struct
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from localspec.errors import BackendFailure, BadSetting
from localspec.health.installed import has_backend, rebuild_command

ANSWER_SECONDS = 3.0
_HELLO = 14  # ggml-rpc.cpp: the first command of a connection
_CAPABILITIES = bytes(24)  # of this side's transport: none, for a connection that only asks
_VERSION_BYTES = 4  # before the capabilities in the answer

_used: tuple[str, ...] = ()


def used_servers() -> tuple[str, ...]:
    """HOST:PORT of each."""
    return _used


def assume_servers(addresses: Iterable[str]) -> None:
    """Use these servers, which have answered, from now on."""
    global _used
    _used = tuple(dict.fromkeys(addresses))


def addresses_of(text: str) -> tuple[str, ...]:
    """The addresses in a text like "HOST:PORT,HOST:PORT"."""
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for address in found:
        host, _, port = address.rpartition(":")
        if not (host and port.isascii() and port.isdecimal() and 1 <= int(port) <= 65535):
            raise BadSetting(f"{address} is no address of an RPC server", hint="write HOST:PORT,HOST:PORT")
    return found


def use_servers(text: str) -> None:
    """Take in the servers of a text like "HOST:PORT,HOST:PORT", all or none; they stay until the process ends.

    Raises BadSetting for a build without RPC, BackendFailure for a server that does not answer.
    """
    wanted = addresses_of(text)
    new = [address for address in wanted if address not in used_servers()]
    if new and not has_backend("rpc"):
        raise BadSetting("this build of llama.cpp has no RPC", hint=rebuild_command("GGML_RPC=on"))
    for problem in filter(None, _problems(new)):
        raise problem
    assume_servers((*used_servers(), *wanted))


def answering_servers(text: str) -> tuple[str, ...]:
    """The servers in the text that answer now."""
    wanted = addresses_of(text)
    return tuple(address for address, problem in zip(wanted, _problems(wanted), strict=True) if not problem)


def _problems(addresses: Iterable[str]) -> list[BackendFailure | None]:
    """For each server the error if it does not answer; all are asked at once."""
    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(_problem, addresses))


def _problem(address: str) -> BackendFailure | None:
    """Greet a server before llama.cpp does: it would abort on another program, and wait for a silent one."""
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
            hint="it may be stopped, cut off, or serving another program: a server serves one at a time",
        )
    except ConnectionResetError:
        pass
    except OSError:
        return BackendFailure(
            f"no RPC server listens at {address}",
            hint=f"start llama.cpp's there: ggml-rpc-server --host 0.0.0.0 --port {port}",
        )
    if found[:8] == struct.pack("<Q", expected):
        return None
    return BackendFailure(
        f"the program at {address} is no RPC server of this version of llama.cpp",
        hint="check the port, and use the same version on both machines",
    )
