"""The checked options of one reply."""

import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from localspec.chat.tools import Tool, read_tools
from localspec.errors import BadSetting
from localspec.options import REPLY, nearest
from localspec.options import check as check_option
from localspec.sampler.sampling import Sampling
from localspec.structure.grammar import Grammar, json_grammar, regex_grammar, written_grammar

if TYPE_CHECKING:
    from localspec.algorithm import protocols

_BIASES = "give a dictionary of token ids and numbers: {1234: -5.0}"
SAMPLING_NAMES = frozenset(f.name for f in fields(Sampling))
GRAMMAR_NAMES = frozenset({"json_schema", "compact_json", "regex", "grammar", "tools"})


@dataclass(frozen=True, slots=True)
class Request:
    """The checked options of one reply."""

    sampling: Sampling
    seed: int | None = None
    rule: str = "auto"
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    depth: int | None = None  # none: chosen while running
    speculate: bool = True
    system: str | None = None
    think: bool | None = None
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    overflow: str = "trim"
    grammar: Grammar | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"
    parallel_tool_calls: bool = True
    background: bool = False
    prediction: str = ""
    logprobs: int | None = None

    @property
    def functions(self) -> dict[str, dict[str, Any]]:
        """The schemas of the tools that may be called, by name."""
        every = {tool.name: tool.schema for tool in self.tools}
        return {self.tool_choice: every[self.tool_choice]} if self.tool_choice in every else every


def seed_fixes_depth(request: Request, rule: "protocols.Rule") -> bool:
    """Whether automatic depth would make a seeded reply depend on measured time."""
    automatic = request.speculate and request.depth is None
    return automatic and request.seed is not None and not rule.seed_decides


def request_from(options: Mapping[str, Any], defaults: Sampling) -> Request:
    """Check the options of a caller, none of them None; raises BadSetting with the name that is wrong."""
    for name, value in options.items():
        if name not in REPLY:
            raise BadSetting(f"there is no option called {name}", hint=nearest(name, REPLY))
        check_option(name, value)
    chain = {name: value for name, value in options.items() if name in SAMPLING_NAMES}
    if "logit_bias" in chain:
        chain["logit_bias"] = biases_from(chain["logit_bias"])
    rest = {name: value for name, value in options.items() if name not in SAMPLING_NAMES | GRAMMAR_NAMES}
    stop = rest.pop("stop", ())
    depth = rest.pop("depth", "auto")
    request = Request(
        sampling=replace(defaults, **chain),
        stop=(stop,) if isinstance(stop, str) or not isinstance(stop, Iterable) else tuple(stop),
        depth=None if depth == "auto" else depth,
        grammar=grammar_from(options),
        tools=read_tools(options["tools"]) if options.get("tools") else (),
        **rest,
    )
    check(request)
    return request


def biases_from(given: object) -> tuple[tuple[int, float], ...]:
    """Tokens and their logit biases, by token; raises BadSetting."""
    if not isinstance(given, Mapping):
        raise BadSetting(f"logit_bias is of type {type(given).__name__}", hint=_BIASES)
    found = {}
    for name, bias in given.items():
        try:
            token = (
                int(name) if isinstance(name, str) else operator.index(name)
            )  # JSON has only texts as keys
            found[token] = float(bias)
        except (TypeError, ValueError, OverflowError):
            token = -1
        if not 0 <= token < 2**31:
            raise BadSetting(f"logit_bias gives {name!r} a bias of {bias!r}", hint=_BIASES)
    return tuple(sorted(found.items()))


def grammar_from(options: Mapping[str, Any]) -> Grammar | None:
    """The grammar of the answer. Raises BadSetting for more than one."""
    given = [name for name in ("json_schema", "regex", "grammar") if name in options]
    given += ["tools"] if options.get("tools") and "json_schema" not in given else []
    if len(given) > 1:
        raise BadSetting(f"{given[0]} and {given[1]} are both given", hint="give one of them")
    if "json_schema" in options:
        return json_grammar(options["json_schema"], compact=options.get("compact_json", True))
    if "regex" in options:
        return regex_grammar(options["regex"])
    return written_grammar(options["grammar"]) if "grammar" in options else None


def check(request: Request) -> None:
    """Raises BadSetting for the first impossible option."""
    if not isinstance(request.template_arguments, Mapping) or not all(
        isinstance(name, str) for name in request.template_arguments
    ):
        raise BadSetting(
            f"template_arguments is {request.template_arguments!r}",
            hint="give a dictionary of the template's variables by name",
        )
    if not all(isinstance(stop, str) and stop for stop in request.stop):
        raise BadSetting("a stop string is empty or not text", hint="give non-empty strings")
    if request.tool_choice not in ("auto", "required", "none", *(tool.name for tool in request.tools)):
        raise BadSetting(
            f"tool_choice is {request.tool_choice!r}",
            hint="give 'auto', 'required', 'none', or a tool's name",
        )
    if (request.grammar or request.tools) and any(
        bias == -math.inf for _, bias in request.sampling.logit_bias
    ):
        raise BadSetting(
            "logit_bias bans tokens that the grammar may need",
            hint="use finite biases, or leave one of them out",
        )
