"""A request for one reply, and the checks of its options."""

import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from localspec.errors import BadSetting
from localspec.options import REPLY, nearest
from localspec.options import check as check_option
from localspec.prompt.messages import Infill, Messages, are_continued
from localspec.prompt.tools import Tool, read_tools
from localspec.sampler.sampling import Sampling
from localspec.structure.grammar import Grammar, json_grammar, regex_grammar, written_grammar

_Tokenize = Callable[..., list[int]]
_BIASES = "give a dictionary from token ids or texts to numbers: {1234: -5.0}"
SAMPLING_NAMES = frozenset(f.name for f in fields(Sampling))
_GRAMMAR_NAMES = {"json_schema", "compact_json", "regex", "grammar", "tools"}


@dataclass(frozen=True, slots=True)
class Request:
    """A request for one reply: the messages, the client, and the checked options."""

    sampling: Sampling
    messages: Messages = ()
    continued: str | Sequence[int | str] | Infill | None = None  # the text to continue, in place of messages
    owner: str = ""  # the client; its stored reasoning is given to no other client
    conversation: str = ""  # name of the stored conversation, for its prompt caches
    seed: int | None = None
    rule: str = "auto"
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    depth: int | None = None  # None: automatic; 0: plain decoding
    system: str | None = None
    think: bool | int | None = None  # a number: on, with a budget of tokens
    think_message: str = ""
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    overflow: str = "trim"
    grammar: Grammar | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"
    parallel_tool_calls: bool = True
    json_calls: bool = True
    prediction: str = ""
    logprobs: int | None = None
    post_sampling_probs: bool = False

    @property
    def functions(self) -> dict[str, dict[str, Any]]:
        """The schemas of the arguments, by the name of each tool that may be called."""
        every = {tool.name: tool.schema for tool in self.tools}
        return {self.tool_choice: every[self.tool_choice]} if self.tool_choice in every else every

    @property
    def called(self) -> dict[str, str]:
        """The caller's names of tools, by the names that the model reads, where the two differ."""
        return {tool.name: tool.called for tool in self.tools if tool.name != tool.called}

    @property
    def drafts(self) -> bool:
        """Whether tokens may be drafted."""
        return self.depth != 0

    @property
    def begun(self) -> str:
        """The text of the message that the reply continues, or ""."""
        return self.messages[-1].content if self.messages and are_continued(self.messages) else ""

    @property
    def beside(self) -> str:
        """Client and tools as one text. It is a part of the key under which a reply's reasoning is stored."""
        return json.dumps([self.owner, self.tools], sort_keys=True, default=str)

    @property
    def questions(self) -> tuple[tuple[str, ...], ...]:
        """All messages except the assistant's, as texts."""
        asked = (m for m in self.messages if m.role != "assistant")
        return tuple((m.role, m.content, *(i.digest for i in m.images)) for m in asked)


def request_from(
    options: Mapping[str, Any], defaults: Sampling, tokenize: _Tokenize | None = None
) -> Request:
    """Return the checked options of a reply. No value in `options` may be None. Raises BadSetting."""
    for name, value in options.items():
        if name not in REPLY:
            raise BadSetting(f"there is no option called {name}", hint=nearest(name, REPLY))
        check_option(name, value)
    chain = {name: value for name, value in options.items() if name in SAMPLING_NAMES}
    if "logit_bias" in chain:
        chain["logit_bias"] = biases_from(chain["logit_bias"], tokenize)
    rest = {name: value for name, value in options.items() if name not in SAMPLING_NAMES | _GRAMMAR_NAMES}
    stop = rest.pop("stop", ())
    if rest.get("seed") is not None and rest.get("rule", "auto") == "auto":
        rest["rule"] = "coupled"  # with this rule, a seed gives the same text with any draft
    depth, speculate = rest.pop("depth", "auto"), rest.pop("speculate", True)
    tools = read_tools(options["tools"]) if options.get("tools") else ()
    if (choice := rest.get("tool_choice")) is not None:
        rest["tool_choice"] = next((tool.name for tool in tools if tool.called == choice), choice)
    request = Request(
        sampling=replace(defaults, **chain),
        stop=(stop,) if isinstance(stop, str) or not isinstance(stop, Iterable) else tuple(stop),
        depth=(None if depth == "auto" else depth) if speculate else 0,
        grammar=grammar_from(options),
        tools=tools,
        **rest,
    )
    check(request)
    return request


def biases_from(given: object, tokenize: _Tokenize | None) -> tuple[tuple[int, float], ...]:
    """Return (token, bias) pairs; the bias of a text applies to each of its tokens. Raises BadSetting."""
    if not isinstance(given, Mapping):
        raise BadSetting(f"logit_bias is of type {type(given).__name__}", hint=_BIASES)
    found: dict[int, float] = {}
    for name, bias in given.items():
        try:
            if tokenize and isinstance(name, str) and not name.lstrip("-").isdecimal():
                tokens = tokenize(name, parse_special=False)
            else:  # the keys of a JSON object are texts, even if they are token ids
                tokens = [int(name) if isinstance(name, str) else operator.index(name)]
            found |= dict.fromkeys(tokens, float(bias))
        except (TypeError, ValueError, OverflowError):
            tokens = [-1]
        if not all(0 <= token < 2**31 for token in tokens):
            raise BadSetting(f"{ {name: bias} } is not a valid logit_bias", hint=_BIASES)
    return tuple(sorted(found.items()))


def grammar_from(options: Mapping[str, Any]) -> Grammar | None:
    """Return the grammar that the answer must match, or None. Raises BadSetting for several grammars."""
    given = [name for name in ("json_schema", "regex", "grammar") if name in options]
    given += ["tools"] if options.get("tools") and "json_schema" not in given else []
    if len(given) > 1:
        raise BadSetting(f"{given[0]} and {given[1]} are both given", hint="leave out one of them")
    if "json_schema" in options:
        return json_grammar(options["json_schema"], compact=options.get("compact_json"))
    if "regex" in options:
        return regex_grammar(options["regex"])
    return written_grammar(options["grammar"]) if "grammar" in options else None


def check(request: Request) -> None:
    """Raise BadSetting for the first option with an invalid value."""
    arguments = request.template_arguments
    if not isinstance(arguments, Mapping) or not all(isinstance(name, str) for name in arguments):
        hint = "give a dictionary from the names of template variables to their values"
        raise BadSetting(f"{arguments!r} is not a valid value of template_arguments", hint=hint)
    if not all(isinstance(stop, str) and stop for stop in request.stop):
        raise BadSetting("a stop string is empty or not text", hint="give texts of at least one character")
    choices = ("auto", "required", "none", *(tool.name for tool in request.tools))
    if request.tool_choice not in choices:
        what = f"{request.tool_choice!r} is not a valid tool_choice"
        raise BadSetting(what, hint=f"use one of {', '.join(choices)}")
    bans = any(bias == -math.inf for _, bias in request.sampling.logit_bias)
    if bans and (request.grammar or request.tools):
        hint = "use finite biases, or leave out the grammar and the tools"
        raise BadSetting("logit_bias bans tokens, which the grammar or the tools may need", hint=hint)
