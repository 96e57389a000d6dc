"""Answer programs over HTTP, as OpenAI's, Anthropic's, Ollama's and llama.cpp's servers do."""

import argparse
import os
import re
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TextIO

from localspec.cli.options import add_option, add_pair_argument, number, pair_of
from localspec.display import DrawnLine, OutputFailed, counted, line_for_terminal, say
from localspec.errors import BadSetting
from localspec.events import Stats

if TYPE_CHECKING:
    from localspec.engine.messages import LoadPair
    from localspec.serve.jobs import Jobs
    from localspec.serve.numbers import Served

LOOPBACK = ("127.0.0.1", "localhost", "::1")
KEY_VARIABLE = "LOCALSPEC_API_KEY"
WORTH_SECONDS = 0.5  # a shorter wait is not shown
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_ORIGIN = re.compile(r"\*|null|[A-Za-z][A-Za-z0-9+.-]*://(\*|[^\s/*?#@]+)/?")
_ANY_PAGE = ("*", "null", "http://*", "https://*")  # origins that any web site can have


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_argument(parser)
    group = parser.add_argument_group("endpoint")
    add = group.add_argument
    add_option(
        group, "parallel", default="auto", help="replies at once (default: 2 on a GPU with room, else 1)"
    )
    minutes = "unload the pair after N minutes without a request (default: never)"
    add("--keep-alive", type=number(float, 0, 10**7), metavar="N", help=minutes)
    add("--host", default="127.0.0.1", metavar="ADDRESS", help="the address (default: 127.0.0.1)")
    port = "the port (default: 8080); 0 takes a free one"
    add("--port", type=number(int, 0, 2**16 - 1), default=8080, metavar="N", help=port)
    add("--api-key", metavar="KEY", help=f"the key that requests need; {KEY_VARIABLE} keeps it out of `ps`")
    add("--any-model", action="store_true", help="answer requests for unknown models too")
    several: dict[str, Any] = {"action": "append", "default": []}
    add(
        "--allow-host",
        **several,
        metavar="NAME",
        help="answer requests to this host name too; may be repeated",
    )
    origin = "let web pages of this origin ask, as https://HOST or SCHEME://*; may be repeated"
    add("--allow-origin", **several, metavar="ORIGIN", help=origin)


def run(arguments: argparse.Namespace) -> int:
    key = arguments.api_key if arguments.api_key is not None else os.environ.get(KEY_VARIABLE, "")
    check_address(arguments.host, key)
    check_guests(arguments.allow_host, arguments.allow_origin, key)
    # The key itself stays in this process.
    load = replace(load_request(arguments), owner=sha256(key.encode()).hexdigest() if key else "")
    from localspec.engine.client import EngineProcess

    # It ends as by Ctrl-C: with an answer to everybody.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    engine = EngineProcess()
    engine.start()
    engine.send(load)
    try:
        # The engine process starts and loads while the HTTP side is imported.
        import asyncio

        from localspec.serve.guard import Access
        from localspec.serve.server import listener, serve

        hosts = frozenset(name.lower() for name in arguments.allow_host)
        origins = frozenset(origin.lower().removesuffix("/") for origin in arguments.allow_origin)
        called = {"any_model": arguments.any_model, "called": arguments.target or pair_of(arguments) or ""}
        minutes = arguments.keep_alive
        called["keep_alive_seconds"] = None if minutes is None else minutes * 60
        with (
            DrawnLine(sys.stderr) as line,
            listener(arguments.host, arguments.port) as listening,
            suppress(KeyboardInterrupt),
        ):
            access, log = Access(key, hosts, origins), TerminalLog(line)
            asyncio.run(serve(engine, load, listening, log, access, **called))
    finally:
        engine.close()
    return 0


def check_address(host: str, key: str) -> None:
    """Raises BadSetting for an impossible address, and for one of other machines without a key."""
    try:
        host.encode("idna")
    except UnicodeError as error:
        raise BadSetting(f"--host {host} is no address", hint="give a name or an IP address") from error
    if host not in LOOPBACK and not key:
        hint = f"add --api-key, or set {KEY_VARIABLE}"
        raise BadSetting(f"--host {host} lets other machines in", hint=hint)
    if not key.isprintable() or not key.isascii():
        raise BadSetting("the API key has characters that HTTP cannot carry", hint="use letters and digits")


def check_guests(hosts: list[str], origins: list[str], key: str) -> None:
    """Raises BadSetting for impossible names and origins, and for every web page without a key."""
    for name in hosts:
        if not _HOST_NAME.fullmatch(name):
            hint = "give a name alone, as host.docker.internal"
            raise BadSetting(f"--allow-host {name} is no name of a machine", hint=hint)
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            hint = "give SCHEME://HOST, SCHEME://* or *"
            raise BadSetting(f"--allow-origin {origin} is no origin", hint=hint)
        if origin.lower().removesuffix("/") in _ANY_PAGE and not key:
            hint = f"name the pages, or add a key: {KEY_VARIABLE}"
            raise BadSetting(f"--allow-origin {origin} lets every web page in", hint=hint)


def load_request(arguments: argparse.Namespace) -> "LoadPair":
    """The pair to load, downloaded before with --pull: the server never downloads."""
    from localspec.cli.loading import wanted_here
    from localspec.engine.messages import LoadPair

    return LoadPair.of(**wanted_here(arguments))


class TerminalLog:
    """Addresses go to stdout, everything else to stderr: a line for each reply, each failure and each event.

    A log that cannot be written (its reader left, its disk is full) costs no reply: the lines are dropped.
    """

    def __init__(self, line: DrawnLine) -> None:
        self._line = line
        self._drawn = ""

    def said(self, text: str) -> None:
        self._log(text, to=sys.stdout)

    def noted(self, text: str) -> None:
        self._log(f"{time.strftime('%H:%M:%S')}  {line_for_terminal(text)}")

    def served(self, served: "Served") -> None:
        self.noted(line_of(served))

    def changed(self, jobs: "Jobs") -> None:
        self._drawn = status_of(jobs)
        with suppress(OSError, OutputFailed):
            self._line.draw(self._drawn)

    def _log(self, text: str, to: TextIO | None = None) -> None:
        with suppress(OSError, OutputFailed):
            self._line.clear()
            say(text, to=sys.stderr if to is None else to)
            self._line.draw(self._drawn)


def line_of(served: "Served") -> str:
    """One request: its path, its outcome, and the tokens of its replies."""
    head = f"{served.method} {served.path[:80]} {served.status} in {served.seconds:.1f} s"
    head += f" (waited {served.waited_seconds:.1f} s)" if served.waited_seconds >= WORTH_SECONDS else ""
    parts = [served.reason] * bool(served.reason)
    if served.replies:
        totals = served.totals
        sums, speedup = totals.sums, totals.judged.speedup if totals.sums.drafted else None
        cached = f" ({sums.reused_tokens} cached)" if sums.reused_tokens else ""
        parts += [f"{totals.replies} replies"] * (totals.replies > 1)
        parts += [f"{counted(sums.emitted, 'token')} at {sums.tokens_per_second:.0f}/s"]
        parts += [f"{speedup.value:.2f}x plain{beside(totals.judged)}"] if speedup else []
        parts += ["cut by the limit"] * any(reply.finish_reason == "length" for reply in served.replies)
        parts += [f"prompt {sums.prompt_tokens}{cached}"]
    return f"{head}: {', '.join(parts)}" if parts else head


def beside(stats: Stats) -> str:
    """For how many replies at once a speed-up holds."""
    return f" with {stats.replies_at_once:.1f} replies at once" if stats.replies_at_once > 1 else ""


def status_of(jobs: "Jobs") -> str:
    """The queue, and all replies together."""
    sums, judged = jobs.totals.sums, jobs.totals.judged
    state = f"{jobs.running} replying" if jobs.running else "idle"
    if jobs.asleep:
        state = "unloaded"
    elif jobs.loaded is None:
        state = jobs.stage or "loading"
    parts = [state, *[f"{jobs.waiting} waiting"] * bool(jobs.waiting), f"{jobs.totals.replies} answered"]
    if sums.emitted:
        parts.append(f"{sums.tokens_per_second:.0f} tokens/s")
    if sums.drafted:
        parts.append(f"{sums.acceptance_rate:.0%} of guesses kept")
    if judged.drafted and judged.speedup:
        parts.append(f"{judged.speedup.value:.2f}x plain{beside(judged)}, {judged.saved_seconds:.0f} s saved")
    return " · ".join(parts)
