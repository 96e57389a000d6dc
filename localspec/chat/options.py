"""What a caller may ask of one reply: every name once, with its default and its check."""

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from localspec.chat.tools import Tool, read_tools
from localspec.errors import BadSetting
from localspec.sampler.sampling import Sampling
from localspec.structure.grammar import Grammar, json_grammar, regex_grammar, written_grammar

if TYPE_CHECKING:
    from localspec.algorithm import protocols

Rule = Literal["auto", "greedy", "block", "coupled"]


class ReplyOptions(TypedDict, total=False):
    """Keyword arguments of `run`, `stream` and `complete`; what is left out takes the model's default."""

    temperature: float | None  # 0 always takes the likeliest token
    top_k: int | None  # keep the k likeliest tokens; 0 keeps all
    top_p: float | None  # keep the likeliest tokens that together have this probability; 1 keeps all
    min_p: float | None  # drop tokens below this share of the likeliest one's probability; 0 drops none
    repeat_penalty: float | None
    repeat_last_n: int | None  # how many newest tokens the penalties look at; -1 is all of them
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    seed: int | None  # None: fresh randomness, whatever is configured; the seed that was used is in the reply
    rule: Rule
    max_tokens: int | None  # none: until the model ends, or the context is full; 0 only reads the prompt
    stop: str | Sequence[str] | None
    depth: int | Literal["auto"] | None  # draft tokens in a cycle
    speculate: bool  # False: plain decoding
    system: str | None  # replaces the system message
    think: bool | None  # for thinking models; none leaves it to the template
    template_arguments: Mapping[str, Any] | None  # extra variables for the chat template
    overflow: Literal["trim", "error"]  # when the conversation outgrows the context
    json_schema: Mapping[str, Any] | str | type | None  # the answer is JSON that this schema describes
    compact_json: bool  # False: the model may put white space into JSON
    regex: str | None  # the answer matches this pattern from beginning to end
    grammar: str | None  # the answer belongs to this grammar, Lark's or GBNF
    tools: Sequence[Mapping[str, Any]] | None  # functions that the model may call, in OpenAI's form
    tool_choice: Literal["auto", "required"]  # may it, or must it
    parallel_tool_calls: bool  # False: one call in a reply
    prediction: str | None  # what the reply probably is, as a file that is to be edited: drafted from
    logprobs: int | None  # report the target's probability of each token, and of this number of alternatives


MOST_LOGPROBS = 20  # other tokens told for each
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
    prediction: str = ""
    logprobs: int | None = None

    @property
    def constrained(self) -> bool:
        """Whether something decides what the reply may be."""
        return self.grammar is not None or bool(self.tools)


def seed_fixes_depth(request: Request, rule: "protocols.Rule") -> bool:
    """Whether an automatic depth would let measured time decide what the seed is to reproduce."""
    automatic = request.speculate and request.depth is None
    return automatic and request.seed is not None and not rule.seed_decides


def request_from(options: Mapping[str, Any], defaults: Sampling) -> Request:
    """Check the options of a caller, none of them None; raises BadSetting with the name that is wrong."""
    unknown = set(options) - set(ReplyOptions.__annotations__)
    if unknown:
        raise BadSetting(
            f"unknown option {sorted(unknown)[0]!r}",
            hint="options: " + ", ".join(ReplyOptions.__annotations__),
        )
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
    """Tokens and what is added to their logits, by token; raises BadSetting."""
    if not isinstance(given, Mapping):
        raise BadSetting(f"logit_bias is of type {type(given).__name__}", hint=_BIASES)
    return tuple(sorted(_bias_from(token, bias) for token, bias in given.items()))


def _bias_from(token: Any, bias: Any) -> tuple[int, float]:  # noqa: ANN401  whatever a caller gave
    try:
        # JSON has only texts as keys.
        found = int(token) if isinstance(token, str) else operator.index(token), float(bias)
    except (TypeError, ValueError, OverflowError):
        found = -1, 0.0
    if not is_count(found[0], at_least=0, below=2**31):
        raise BadSetting(f"logit_bias gives {token!r} a bias of {bias!r}", hint=_BIASES)
    return found


def grammar_from(options: Mapping[str, Any]) -> Grammar | None:
    """What the answer must match; BadSetting where more than one thing is asked."""
    given = [name for name in ("json_schema", "regex", "grammar") if name in options]
    given += ["tools"] if options.get("tools") else []
    if len(given) > 1:
        raise BadSetting(f"{given[0]} and {given[1]} are both given", hint="give one of them")
    compact = options.get("compact_json", True)
    if not isinstance(compact, bool):
        raise BadSetting(f"compact_json is {compact!r}", hint="give True or False")
    if "json_schema" in options:
        return json_grammar(options["json_schema"], compact=compact)
    if "regex" in options:
        return regex_grammar(options["regex"])
    return written_grammar(options["grammar"]) if "grammar" in options else None


def check(request: Request) -> None:
    """Raises BadSetting for the first option that cannot be meant."""
    switches = ("speculate", "think", "parallel_tool_calls")
    for name, value in ((name, getattr(request, name)) for name in switches):
        if value is not None and not isinstance(value, bool):
            raise BadSetting(f"{name} is {value!r}", hint="give True or False")
    if request.system is not None and not isinstance(request.system, str):
        raise BadSetting(f"system is of type {type(request.system).__name__}", hint="give a text")
    if not isinstance(request.template_arguments, Mapping) or not all(
        isinstance(name, str) for name in request.template_arguments
    ):
        raise BadSetting(
            f"template_arguments is {request.template_arguments!r}",
            hint="give a dictionary of the template's variables by name",
        )
    if request.max_tokens is not None and not is_count(request.max_tokens, at_least=0):
        raise BadSetting(
            f"max_tokens is {request.max_tokens!r}", hint="give a whole number; 0 only reads the prompt"
        )
    if request.depth is not None and not is_count(request.depth, at_least=0):
        raise BadSetting(f"depth is {request.depth!r}", hint="give a whole number from 0, or 'auto'")
    if request.seed is not None and not is_count(request.seed, at_least=0, below=2**64):
        raise BadSetting(f"seed is {request.seed!r}", hint="give a whole number from 0 to 2**64 - 1")
    if not all(isinstance(stop, str) and stop for stop in request.stop):
        raise BadSetting("a stop string is empty or not text", hint="give non-empty strings")
    if request.constrained and any(bias == -math.inf for _, bias in request.sampling.logit_bias):
        raise BadSetting(
            "logit_bias bans tokens that the grammar may need",
            hint="use finite biases, or leave one of them out",
        )
    if request.tool_choice not in ("auto", "required"):
        raise BadSetting(f"tool_choice is {request.tool_choice!r}", hint="give 'auto' or 'required'")
    if not isinstance(request.prediction, str):
        raise BadSetting(f"prediction is of type {type(request.prediction).__name__}", hint="give a text")
    if request.logprobs is not None and not is_count(request.logprobs, at_least=0, below=MOST_LOGPROBS + 1):
        raise BadSetting(
            f"logprobs is {request.logprobs!r}", hint=f"give a whole number from 0 to {MOST_LOGPROBS}"
        )
    if request.overflow not in ("trim", "error"):
        raise BadSetting(f"overflow is {request.overflow!r}", hint="give 'trim' or 'error'")


def is_count(value: object, *, at_least: int, below: int = 2**63) -> bool:
    """Whether a value is a whole number in these limits; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and at_least <= value < below
