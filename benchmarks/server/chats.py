"""One conversation asked of both programs, greedily: the same messages in, prompt and reply as tokens out."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import localspec
from benchmarks.server.sides import ServerSide
from localspec.chat.messages import as_messages
from localspec.chat.prompt import encode

CHATS = Path(__file__).with_name("chats.toml")

Messages = Sequence[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Chat:
    """What a user writes, turn by turn."""

    kind: str
    asks: tuple[str, ...]
    system: str | None


@dataclass(frozen=True, slots=True)
class Told:
    """One side's reply; a token that ends it is left out of its tokens."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str
    ended: bool  # by such a token, and not by the limit
    gaps: tuple[
        float, ...
    ] = ()  # between the two largest logits that decided each token, the ending one included
    drafted: int = 0
    accepted: int = 0


def chats() -> list[Chat]:
    by_kind = tomllib.loads(CHATS.read_text(encoding="utf-8"))
    return [
        Chat(kind, tuple(one["asks"]), one.get("system")) for kind, some in by_kind.items() for one in some
    ]


class LocalChats:
    """localspec in this process."""

    def __init__(self, session: localspec.Session, *, depth: int | None, most: int) -> None:
        """`depth`: None is automatic, 0 plain."""
        self._session = session
        self._depth = "auto" if depth is None else depth
        self._most = most

    def prompt(self, messages: Messages) -> tuple[tuple[int, ...], str]:
        """The tokens of a conversation and their text."""
        engine = self._session.pair
        found = encode(engine.vocabulary, engine.template, as_messages(messages))
        return tuple(found.tokens), found.text

    def tell(self, messages: Messages) -> Told:
        reply = self._session.run(
            messages, temperature=0, max_tokens=self._most, depth=self._depth, overflow="error"
        )
        prompt, _ = self.prompt(messages)
        assert reply.stats.prompt_tokens == len(prompt)
        ended = self._session.pair.vocabulary.is_end(reply.tokens[-1])
        tokens = reply.tokens[:-1] if ended else reply.tokens
        return Told(
            prompt, tokens, reply.text, ended, drafted=reply.stats.drafted, accepted=reply.stats.accepted
        )


class ServerChats:
    """llama-server, asked over HTTP."""

    def __init__(self, server: ServerSide, most: int) -> None:
        self._server = server
        self._options = {
            "temperature": 0,
            "max_tokens": most,
            "n_predict": most,
            "return_tokens": True,
            "verbose": True,
            "logprobs": True,
            "top_logprobs": 2,
            "n_probs": 2,
        }

    def prompt(self, messages: Messages) -> tuple[tuple[int, ...], str]:
        """The tokens of a conversation and their text."""
        text = self._server.post("/apply-template", {"messages": messages})["prompt"]
        body = {"content": text, "add_special": True, "parse_special": True}
        return tuple(self._server.post("/tokenize", body)["tokens"]), text

    def tell(self, messages: Messages) -> Told:
        """A reply of its chat endpoint."""
        found = self._server.post("/v1/chat/completions", {"messages": messages, **self._options})
        prompt, _ = self.prompt(messages)
        (choice,) = found["choices"]
        assert found["usage"]["prompt_tokens"] == len(prompt)
        return told(prompt, found["__verbose"], choice["message"]["content"], choice["logprobs"]["content"])

    def complete(self, prompt: Sequence[int]) -> Told:
        """A reply to these tokens."""
        found = self._server.post("/completion", {"prompt": list(prompt), **self._options})
        return told(tuple(prompt), found, found["content"], found["completion_probabilities"])


def told(
    prompt: tuple[int, ...], found: dict[str, Any], text: str, chances: Sequence[dict[str, Any]]
) -> Told:
    ended = found["stop_type"] == "eos"
    tokens = tuple(found["tokens"])
    logs = [sorted(one["logprob"] for one in chance["top_logprobs"]) for chance in chances]
    gaps = tuple(likeliest - second for second, likeliest in logs)
    return Told(prompt, tokens[:-1] if ended else tokens, text, ended, gaps)
