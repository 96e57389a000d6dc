"""Answer programs over HTTP with the interfaces of OpenAI, Anthropic, Ollama and llama.cpp. No request is written to
disk, unless --store keeps prompt caches of long requests.
"""

import argparse
import os
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TextIO

from localspec.cli.loading import load_request
from localspec.cli.options import add_option, add_pair_argument, list_of, number, pair_of
from localspec.display import DrawnLine, OutputFailed, counted, line_for_terminal, say
from localspec.errors import BadSetting
from localspec.events import Stats
from localspec.options import configured

if TYPE_CHECKING:
    from localspec.serve.jobs import Jobs
    from localspec.serve.numbers import Served
    from localspec.serve.replies import ModelBeside

KEY_VARIABLE = "LOCALSPEC_API_KEY"
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_ORIGIN = re.compile(r"\*|null|[A-Za-z][A-Za-z0-9+.-]*://(\*|[^\s/*?#@]+)/?")
_ANY_PAGE = ("*", "null", "http://*", "https://*")  # origins that any web site can send


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_pair_argument(parser)
    group = parser.add_argument_group("endpoint")
    add = group.add_argument
    add_option(
        group, "parallel", default="auto", help="replies at once (default: 2 on a GPU with room, else 1)"
    )
    minutes = "unload the pair after N minutes without a request (default: never)"
    add("--keep-alive", type=number(float, 0, 10**7), metavar="N", help=minutes)
    host = "the address to listen on, or several with commas between (default: 127.0.0.1)"
    add("--host", type=list_of(str), default=("127.0.0.1",), metavar="ADDRESS[,...]", help=host)
    port = "the port (default: 8080); 0 takes a free one"
    add("--port", type=number(int, 0, 2**16 - 1), default=8080, metavar="N", help=port)
    add("--api-key", metavar="KEY", help=f"the key that clients must send; {KEY_VARIABLE} hides it from `ps`")
    store = 'keep caches of long requests on disk, for 30 days (default: no, except with `cache = "all"`)'
    add("--store", action=argparse.BooleanOptionalAction, help=store)
    add("--any-model", action="store_true", help="answer requests for unknown models too")
    alias = "other names of the pair; answers use the alphabetically first one"
    add("--alias", type=list_of(str), default=(), metavar="NAME[,...]", help=alias)
    beside = "a model beside the pair, for embeddings; a name as PAIR, or a file"
    add("--embed", metavar="MODEL", help=beside)
    add("--rerank", metavar="MODEL", help="a model beside the pair that scores documents")
    pooling = "the pooling of --embed (default: that of its file)"
    add("--pooling", choices=("none", "mean", "cls", "last"), default="", help=pooling)
    several: dict[str, Any] = {"action": "append", "default": []}
    name = "answer requests to this host name too; may be repeated"
    add("--allow-host", **several, metavar="NAME", help=name)
    origin = "allow requests from web pages of this origin, as https://HOST or SCHEME://*; may be repeated"
    add("--allow-origin", **several, metavar="ORIGIN", help=origin)


def run(arguments: argparse.Namespace) -> int:
    key = arguments.api_key if arguments.api_key is not None else os.environ.get(KEY_VARIABLE, "")
    for host in arguments.host:
        check_address(host, key)
    check_guests(arguments.allow_host, arguments.allow_origin, key)
    beside = tuple(models_beside(arguments))
    # Use a digest of the key as `owner`, because the engine process must not get the key itself.
    stores: dict[str, Any] = {"cache": "all"} if arguments.store else {}
    # Download for --pull now, because the server itself never downloads.
    load = replace(load_request(arguments, **stores), owner=sha256(key.encode()).hexdigest() if key else "")
    from localspec.engine.client import EngineProcess

    # Handle SIGTERM like Ctrl-C, so that every request gets an answer.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # A closed terminal also ends the server, unless nohup has started it.
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    with closing(EngineProcess()) as engine:
        engine.start()
        engine.send(load)
        # Import the HTTP server while the engine process starts and loads.
        import asyncio

        from localspec.serve.guard import Access
        from localspec.serve.replies import Names
        from localspec.serve.server import listener, serve

        hosts = frozenset(name.lower() for name in arguments.allow_host)
        origins = frozenset(origin.lower().removesuffix("/") for origin in arguments.allow_origin)
        called = arguments.target or pair_of(arguments) or ""
        named = Names(called, arguments.alias, beside, arguments.any_model)
        minutes = arguments.keep_alive
        seconds = None if minutes is None else minutes * 60
        with DrawnLine(sys.stderr) as line, ExitStack() as open_sockets, suppress(KeyboardInterrupt):
            port, listening = arguments.port, []
            for host in arguments.host:
                listening.append(open_sockets.enter_context(listener(host, port)))
                port = listening[0].getsockname()[1]
            access, log = Access(key, hosts, origins), TerminalLog(line)
            asyncio.run(serve(engine, load, listening, log, access, named, seconds))
    return 0


def models_beside(arguments: argparse.Namespace) -> Iterator["ModelBeside"]:
    """Return the models of --embed and --rerank, or of the settings. Raises the errors of `names.find`."""
    for name, capability, pooling in (
        ("embed", "embedding", arguments.pooling),
        ("rerank", "rerank", "rank"),
    ):
        if wanted := configured(**{name: vars(arguments)[name]}).get(name):
            from localspec.gguf.matching import check_small
            from localspec.models.names import LOOKUP, find
            from localspec.serve.replies import ModelBeside

            found = find(wanted, draft=LOOKUP, pull=arguments.pull)
            check_small(found.target.header, found.target.name, pooling)
            yield ModelBeside(found.name, found.target, pooling, capability)


def check_address(host: str, key: str) -> None:
    try:
        host.encode("idna")
    except UnicodeError as error:
        what = f"--host {host} is not a valid address"
        raise BadSetting(what, hint="give a name or an IP address") from error
    if host not in ("127.0.0.1", "localhost", "::1") and not key:
        hint = f"add --api-key KEY, or set a key in the environment variable {KEY_VARIABLE}"
        raise BadSetting(f"--host {host} lets other machines send requests without a key", hint=hint)
    if not key.isprintable() or not key.isascii():
        raise BadSetting("the API key has characters that HTTP does not allow", hint="use letters and digits")


def check_guests(hosts: list[str], origins: list[str], key: str) -> None:
    for name in hosts:
        if not _HOST_NAME.fullmatch(name):
            hint = "give a host name alone, like host.docker.internal"
            raise BadSetting(f"--allow-host {name} is not a valid host name", hint=hint)
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            hint = "give SCHEME://HOST such as https://chat.example, or SCHEME://*, or *"
            raise BadSetting(f"--allow-origin {origin} is not a valid origin", hint=hint)
        if origin.lower().removesuffix("/") in _ANY_PAGE and not key:
            hint = f"allow only the origins you need, or set a key in the environment variable {KEY_VARIABLE}"
            raise BadSetting(f"--allow-origin {origin} needs a key: it admits every web page", hint=hint)


class TerminalLog:
    """The server's log on the terminal: addresses on stdout; replies, failures and events on stderr.

    It drops a line that cannot be written, so that no reply fails because of a closed pipe or a full disk.
    """

    def __init__(self, line: DrawnLine) -> None:
        self._line = line
        self._drawn = ""
        self._notices = deque[str](maxlen=256)  # the latest notices in the log, each of which is logged once

    def show_line(self, text: str) -> None:
        self._log(text, to=sys.stdout)

    def noted(self, text: str) -> None:
        self._log(f"{time.strftime('%H:%M:%S')}  {line_for_terminal(text)}")

    def served(self, served: "Served") -> None:
        for text in served.notices:
            if text not in self._notices:
                self._notices.append(text)
                self.noted(f"notice: {text}")
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
    head = f"{served.method} {served.path[:80]} {served.status} in {served.seconds:.1f} s"
    head += f" (waited {served.waited_seconds:.1f} s)" if served.waited_seconds >= 0.5 else ""
    parts = [served.reason] * bool(served.reason)
    if served.replies:
        totals = served.totals
        sums, speedup = totals.sums, totals.judged.speedup if totals.sums.drafted else None
        cached = f" ({sums.reused_tokens} cached)" if sums.reused_tokens else ""
        parts += filter(None, [served.replies[0].target])  # the model, as a server may load several in turn
        parts += [f"{totals.replies} replies"] * (totals.replies > 1)
        parts += [f"{counted(sums.emitted, 'token')} at {sums.tokens_per_second:.0f}/s"]
        parts += [f"{speedup.value:.2f}x plain{beside(totals.judged)}"] if speedup else []
        parts += ["thinking cut"] * any(reply.stats.thinking_cut for reply in served.replies)
        parts += ["cut by the limit"] * any(reply.finish_reason == "length" for reply in served.replies)
        parts += [f"prompt {sums.prompt_tokens}{cached}"]
    return f"{head}: {', '.join(parts)}" if parts else head


def beside(stats: Stats) -> str:
    """Return a phrase with the mean number of replies at once; "" if only one ran at a time."""
    return f" with {stats.replies_at_once:.1f} replies at once" if stats.replies_at_once > 1 else ""


def status_of(jobs: "Jobs") -> str:
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
        parts.append(f"acceptance {sums.acceptance_rate:.0%}")
    if judged.drafted and judged.speedup:
        saved = judged.saved_seconds or 0.0
        outcome = f"{abs(saved):.0f} s {'lost' if saved < 0 else 'saved'}"
        parts.append(f"{judged.speedup.value:.2f}x plain{beside(judged)}, {outcome}")
    return " · ".join(parts)
