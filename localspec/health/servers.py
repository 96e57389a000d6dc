"""RPC servers, llama.cpp on other machines: which of them belong to this process and to its children."""

from collections.abc import Iterable

from localspec.errors import BadSetting

_used: tuple[str, ...] = ()


def used_servers() -> tuple[str, ...]:
    """HOST:PORT of each."""
    return _used


def assume_servers(addresses: Iterable[str]) -> None:
    """From now on it is these; they have answered."""
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
