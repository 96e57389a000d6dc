"""The fields of a request: read as options of a reply, or refused with a Problem."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final

from localspec.errors import BadSetting
from localspec.options import MOST_LOGIT, REPLY, check, given_settings

GONE: Final = 499  # HTTP status for a request whose client left before the answer
_BY_ERROR: Final = {  # HTTP status and code for each error; all other errors have the status 500
    "BadSetting": (400, "invalid_value"),
    "BadTemplate": (400, "invalid_value"),
    "NoInfill": (501, "not_supported"),
    "ContextFull": (400, "context_length_exceeded"),
    "UnknownPair": (404, "model_not_found"),
    "NotOnDisk": (404, "model_not_found"),
    "PairNotOnDisk": (404, "model_not_found"),
    "EngineDied": (503, "engine_restarts"),
    "NotEnoughMemory": (503, "not_enough_memory"),
}
_KINDS: Final = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 500: "server_error",
    501: "not_supported_error", 503: "unavailable_error",
}  # fmt: skip
_NAMES: Final = {
    str: "a text", bool: "true or false", int: "a whole number", dict: "an object", list: "a list",
}  # fmt: skip
_READ_APART: Final = {  # options with another name or form in requests
    "seed", "max_tokens", "stop", "system", "template_arguments", "json_schema", "tools", "tool_choice",
    "prediction", "logprobs",
}  # fmt: skip
_OPTIONS: Final = {
    **{name: name for name in REPLY if name not in _READ_APART},
    "repetition_penalty": "repeat_penalty",
    "chat_template_kwargs": "template_arguments",
    "reasoning_budget_message": "think_message",
}
_BUDGETS: Final = ("thinking_budget_tokens", "reasoning_budget_tokens", "thinking_token_budget")
_OF_MESSAGES: Final = (  # fields that only requests with messages use
    "system", "think", "reasoning_effort", "chat_template_kwargs", "overflow", *_BUDGETS,
)  # fmt: skip
# llama-server's samplers that localspec lacks, with the values that turn them off
OFF: Final = {
    "typical_p": 1.0, "top_n_sigma": -1.0, "dynatemp_range": 0.0, "xtc_probability": 0.0, "dry_multiplier": 0.0,
    "mirostat": 0,
}  # fmt: skip
_NEUTRAL: Final = {**OFF, "tfs_z": 1, "length_penalty": 1, "function_call": "none"}
_REFUSED: Final = {
    **dict.fromkeys((*OFF, "tfs_z"), "localspec has penalties, top-k, top-p, min-p and temperature"),
    **dict.fromkeys(("image_data", "images"), "put images into messages"),
    "audio": "models read text and images, and write text",
    "web_search_options": "localspec never searches the web",
    "lora": "adapters are loaded at the start, with --lora",
    **dict.fromkeys(("functions", "function_call"), "give tools and tool_choice"),
    **dict.fromkeys(
        ("bad_words", "stop_token_ids", "allowed_token_ids"), "use stop, logit_bias or a grammar"
    ),
    "min_tokens": "replies end where the model ends them",
    **dict.fromkeys(("use_beam_search", "length_penalty"), "replies are sampled"),
    "guided_whitespace_pattern": "the model chooses the layout of JSON",
    "truncate_prompt_tokens": "a prompt that is too long is refused",
}
# Names of restrictions in vLLM's structured_outputs. In older versions they begin with guided_.
_GUIDED: Final = ("json", "choice", "regex", "grammar", "json_object")
_CHOICES: Final = {"auto": "auto", "none": "none", "required": "required", "any": "required"}
_MOST_REPLIES: Final = 16  # limit of replies to each prompt


Text = str | tuple[int | str, ...]


class Problem(Exception):
    """An error that the client of a failed request receives."""

    def __init__(
        self, status: int, code: str, message: str, numbers: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.numbers = status, code, message, numbers or {}

    @classmethod
    def named(cls, name: str, what: str, hint: str, *numbers: Mapping[str, int]) -> "Problem":
        sentence = f"{what} ({hint})" if hint else what
        return cls(*_BY_ERROR.get(name, (500, "server_error")), sentence, *numbers)

    @property
    def kind(self) -> str:
        if self.code == "context_length_exceeded":
            return "exceed_context_size_error"
        return _KINDS.get(self.status, "invalid_request_error")

    def body(self) -> dict[str, object]:
        error = {"message": self.message, "type": self.kind, "code": self.code, "param": None}
        return {"error": {**error, **self.numbers}}


class Fields:
    """The fields of a JSON object. `take` removes a field; a null field counts as absent."""

    def __init__(self, values: Mapping[str, Any], where: str = "the request", *, owner: str = "") -> None:
        """`where`: the object's name in messages; `owner`: the hash of the client's API key, or ""."""
        self.rest = {name: value for name, value in values.items() if value is not None}
        self._where, self.owner = where, owner
        self.notices: list[str] = []  # notices about ignored fields

    def take(self, name: str, kind: type, default: Any = None) -> Any:
        if name not in self.rest:
            return default
        value = self.rest.pop(name)
        value = whole(value) if kind is int else value
        if type(value) is not kind:
            raise BadSetting(f"{name} cannot be {cut(value)}", hint=f"give {_NAMES[kind]}")
        return value

    def need(self, name: str, kind: type) -> Any:
        if name not in self.rest:
            raise BadSetting(f"{name} is missing from {self._where}", hint=f"give {_NAMES[kind]}")
        return self.take(name, kind)

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.rest.pop(name, ())
        texts = (value,) if isinstance(value, str) else value
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise BadSetting(f"{name} cannot be {cut(value)}", hint="give a text or a list of texts")
        return tuple(texts)

    def refuse(self, reasons: Mapping[str, str]) -> None:
        """Remove the fields in `reasons`. Raises BadSetting if one is not false, 0 or empty."""
        for name, reason in reasons.items():
            if self.rest.pop(name, None) not in (None, False, 0, "", [], {}):
                raise BadSetting(f"{name} is not supported: {reason}", hint=f"leave {name} out")

    def as_text(self) -> None:
        """Remove the fields that a request without messages does not use, with a notice about each."""
        unused = [name for name in _OF_MESSAGES if name in self.rest]
        self.notices += [f"the field {name} has no effect on a prompt that is a text" for name in unused]
        self.rest = {name: value for name, value in self.rest.items() if name not in unused}

    def put(self, **values: Any) -> None:
        self.rest |= {name: value for name, value in values.items() if value is not None}

    def unknown(self) -> list[str]:
        return [f"the field {name[:60]} has no effect" for name in list(self.rest)[:20]]


def whole(value: Any) -> Any:
    """Convert 5.0 to 5, because some clients write every number as a float."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def cut(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    text = text if text.isprintable() else json.dumps(value, default=repr)
    return text if len(text) <= 80 else f"{text[:77]}..."


def texts_in(given: Any, name: str) -> tuple[Text, ...]:
    """Return the texts in a string, token ids, llama-server's prompt object, or a list of these. Raises BadSetting."""
    match given:
        case str():
            return (given,)
        case {"prompt_string": str(text)} if not given.get("multimodal_data"):
            return (text,)
        case {"content": list(parts)} if all(isinstance(p, dict) and p.get("type") == "text" for p in parts):
            return ("".join(str(part.get("text", "")) for part in parts),)
        case [_, *_] if not any(isinstance(part, int) for part in given):
            return tuple(text for part in given for text in texts_in(part, name))
        case [_, *_] if all(type(part) in (int, str) for part in given):
            return (tuple(given),)
    what = f"{name} is missing from the request" if given is None else f"{name} cannot be {cut(given)}"
    raise BadSetting(what, hint="give a text, a list of token ids, or a list of these")


def openai_options(fields: Fields, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the reply options in a request, overridden by `more`. Raises BadSetting."""
    form = shape(fields)
    options = {ours: fields.rest.pop(name) for name, ours in _OPTIONS.items() if name in fields.rest}
    options |= {name: whole(value) for name, value in options.items() if REPLY[name].kind is int}
    options |= {name: None for name in ("grammar", "regex") if options.get(name) == ""}
    # In other servers a negative top_k means off, and a negative temperature greedy.
    numbers = {name: options.get(name) for name in ("top_k", "temperature")}
    options |= {name: 0 for name, n in numbers.items() if isinstance(n, int | float) and n < 0}
    options["logit_bias"] = biases_of(options.pop("logit_bias", None)) or None
    options["stop"] = tuple(filter(None, fields.texts("stop"))) or None
    options |= form | length_and_seed(fields) | tool_options(fields) | prediction(fields) | dict(more or {})
    arguments = options.get("template_arguments", {})
    if not isinstance(arguments, dict):
        raise BadSetting(f"chat_template_kwargs cannot be {cut(arguments)}", hint="give an object")
    if (effort := fields.take("reasoning_effort", str)) is not None:
        options["think"] = effort not in ("none", "minimal")
        arguments = arguments | ({"reasoning_effort": effort} if options["think"] else {})
    budgets = [value for name in _BUDGETS if (value := fields.take(name, int)) is not None]
    if budgets and options.get("think") is not False:
        options["think"] = True if budgets[0] == -1 else budgets[0]  # -1: no limit
    if options.get("think") is None and "think" not in given_settings()[0]:  # as in llama-server, think
        arguments = {"enable_thinking": True} | arguments
    opens = fields.take("add_generation_prompt", bool)
    if fields.take("continue_final_message", bool) and opens:
        hint = "leave one of them out: a reply begins a message or continues the last one"
        raise BadSetting("add_generation_prompt and continue_final_message are both true", hint=hint)
    options["template_arguments"] = arguments | ({"add_generation_prompt": False} if opens is False else {})
    if "audio" in str(fields.rest.get("modalities")):
        raise BadSetting("modalities cannot contain audio", hint="models write text; leave modalities out")
    neutral = {name for name in _NEUTRAL if fields.rest.get(name) == _NEUTRAL[name]}
    fields.refuse({name: why for name, why in _REFUSED.items() if name not in neutral})
    replies = fields.take("n", int, 1)
    if not 1 <= replies <= _MOST_REPLIES:
        raise BadSetting(f"n cannot be {cut(replies)}", hint=f"give a whole number from 1 to {_MOST_REPLIES}")
    kept = {"overflow": "error"} | {name: value for name, value in options.items() if value is not None}
    for name, value in kept.items():
        check(name, value)
    # Refuse values that are nested too deeply here, because later they would stall the queue.
    json.dumps(kept)
    return kept | {"n": replies}


def biases_of(given: object) -> dict[str, float]:
    """Return logit biases by token or text; the value false bans a token. Raises BadSetting."""
    pairs = [*map(list, given.items())] if isinstance(given, dict) else given or []
    biases: dict[str, float] = {}
    for pair in pairs if isinstance(pairs, list) else [pairs]:
        match pair:
            case [str() | int() as key, float() | int() as bias] if type(key) is not bool:
                if bias is True or abs(bias) > MOST_LOGIT:
                    hint = f"give a number from -{MOST_LOGIT:g} to {MOST_LOGIT:g}, or false to ban the token"
                    raise BadSetting(f"logit_bias of {cut(key)} cannot be {cut(bias)}", hint=hint)
            case _:
                hint = 'give token ids or texts with numbers, such as {"42": -5}'
                raise BadSetting(f"logit_bias cannot contain {cut(pair)}", hint=hint)
        biases[str(key)] = -math.inf if bias is False else float(bias)
    return biases


def prediction(fields: Fields) -> dict[str, Any]:
    given = fields.rest.pop("prediction", None)
    if isinstance(given, dict):
        parts: Any = given.get("content")
        parts = parts if isinstance(parts, list) else [{"text": parts}]
        if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts):
            hint = 'give {"type": "content", "content": "..."}'
            raise BadSetting(f"prediction cannot be {cut(given)}", hint=hint)
        given = "".join(part["text"] for part in parts)
    return {} if given is None else {"prediction": given}


def length_and_seed(fields: Fields) -> dict[str, Any]:
    """Return max_tokens and seed; leave out a value of -1. Raises BadSetting."""
    limits = [fields.take(name, int) for name in ("max_completion_tokens", "max_tokens", "n_predict")]
    limit, seed = next((value for value in limits if value is not None), -1), fields.take("seed", int, -1)
    options = {} if limit == -1 else {"max_tokens": limit}
    return options if seed == -1 else {**options, "seed": seed % 2**64}


def shape(fields: Fields) -> dict[str, Any]:
    """Return the option that restricts the form of the answer, if the request has one. Raises BadSetting."""
    wanted = Fields(fields.take("structured_outputs", dict, {}), "structured_outputs")  # vLLM's restrictions
    older = {name: fields.rest.pop(f"guided_{name}", None) for name in _GUIDED}
    wanted.rest |= {name: value for name, value in older.items() if value is not None}
    wanted.refuse(
        {"structural_tag": "give tools", "whitespace_pattern": "the model chooses the layout of JSON"}
    )
    kinds = [name for name in _GUIDED if wanted.rest.get(name, False) is not False]
    schema = fields.take("json_schema", dict)
    if len(both := [*kinds, *(["json_schema"] if schema else [])]) > 1:
        raise BadSetting(f"{both[0]} and {both[1]} are both given", hint="leave out one of them")
    # As in llama-server, ignore an empty schema if the request has a grammar.
    if schema or (schema == {} and "grammar" not in fields.rest):
        return {"json_schema": schema}
    if not (guided := bool(kinds)):
        wanted = Fields(fields.take("response_format", dict, {}), "response_format")
        kinds = [wanted.take("type", str, "text")]
    match kind := kinds[0]:
        case "text":
            return {}
        case "choice" if guided:
            return {"regex": "|".join(map(re.escape, wanted.texts("choice")))}
        case "json" if guided:
            return {"json_schema": wanted.rest["json"]}
        case "json_object":
            return {"json_schema": wanted.take("schema", dict, {"type": "object"})}
        case "json_schema":
            inner = wanted.rest.get("json_schema")
            holder = Fields(inner, "json_schema") if isinstance(inner, dict) else wanted
            return {"json_schema": holder.need("schema", dict)}
        case "regex" | "grammar":
            return {kind: wanted.need(kind, str)}
    hint = "give the type text, json_object, json_schema, regex or grammar"
    raise BadSetting(f"response_format cannot be of type {cut(kind)}", hint=hint)


def tool_options(fields: Fields) -> dict[str, Any]:
    """Return tools and tool_choice. Raises BadSetting."""
    given = fields.take("tools", list, [])
    tools = [tool for tool in given if is_function(tool)]
    kinds = dict.fromkeys(cut(tool["type"]) for tool in given if not is_function(tool))
    fields.notices += [f"tools of the type {kind} are not functions and were left out" for kind in kinds]
    choice = fields.rest.pop("tool_choice", "auto")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        inner = choice.get("allowed_tools", choice)
        allowed = Fields(inner if isinstance(inner, dict) else {}, "tool_choice")
        names, choice = [*map(name_of, allowed.take("tools", list, []))], allowed.take("mode", str, "auto")
        if missing := [name for name in names if name not in map(name_of, tools)]:
            what = f"tool_choice allows {cut(missing[0])}, which is not one of the tools"
            raise BadSetting(what, hint="add it to the tools, or leave it out")
        tools = [tool for tool in tools if name_of(tool) in names]
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if isinstance(kind, str) and kind in _CHOICES:
        choice = _CHOICES[kind]
    elif isinstance(choice, dict):
        choice = name_of(choice) if kind in ("function", "tool", None) else choice
        if choice not in map(name_of, tools):
            what = f"tool_choice names {cut(choice)}, which is not one of the tools"
            raise BadSetting(what, hint="give the name of one of the tools")
    else:
        raise BadSetting(f"tool_choice cannot be {cut(choice)}", hint="use auto, required, none or a tool")
    if choice == "required" and not tools:
        raise BadSetting("tool_choice is required, but there are no tools", hint="give tools")
    return {"tools": tools, "tool_choice": choice} if tools else {}


def is_function(tool: object) -> bool:
    """Return whether a tool is a function. Other tools run on a vendor's servers, or take free text."""
    return not isinstance(tool, dict) or "input_schema" in tool or tool.get("type", "function") == "function"


def name_of(tool: object) -> object:
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    return function.get("name") if isinstance(function, dict) else None
