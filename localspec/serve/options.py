"""The options of a reply, as each interface names them, translated into localspec's own."""

from collections.abc import Mapping
from typing import Any, Final

from localspec.chat.options import request_from
from localspec.errors import BadSetting
from localspec.options import REPLY
from localspec.sampler.sampling import Sampling
from localspec.serve.bodies import Fields, cut, whole

_READ_APART: Final = {  # their fields have other names or forms here
    "seed", "max_tokens", "stop", "system", "template_arguments", "json_schema", "tools", "tool_choice",
    "prediction", "logprobs", "background",
}  # fmt: skip
_OPTIONS: Final = {
    **{name: name for name in REPLY if name not in _READ_APART},
    "repetition_penalty": "repeat_penalty",
    "chat_template_kwargs": "template_arguments",
}
_WITHOUT_EFFECT: Final = (  # they say who asks, or how a service in the cloud works
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "prompt_cache_options", "verbosity", "cache_prompt", "id_slot",
    "timings_per_token", "return_progress", "reasoning_format", "parse_tool_calls", "sse_ping_interval",
    "response_fields", "samplers",
    # They only tune samplers that are refused.
    "mirostat_tau", "mirostat_eta", "xtc_threshold", "dry_base", "dry_allowed_length", "dry_penalty_last_n",
    "dry_sequence_breakers", "dynatemp_exponent",
)  # fmt: skip
_ANOTHER_SAMPLER: Final = "localspec has penalties, top-k, top-p, min-p and temperature"
_OTHER_SAMPLERS: Final = (
    "mirostat", "xtc_probability", "dry_multiplier", "dynatemp_range", "typical_p", "tfs_z", "top_n_sigma",
)  # fmt: skip
_NEUTRAL: Final = {"typical_p": 1, "tfs_z": 1, "top_n_sigma": -1}
_REFUSED: Final = {
    **dict.fromkeys(_OTHER_SAMPLERS, _ANOTHER_SAMPLER),
    "ignore_eos": "a reply ends where the model ends it",
    "audio": "models read and write text",
    "web_search_options": "nothing is looked up",
    "functions": "it was replaced by tools",
    "function_call": "it was replaced by tool_choice",
    "lora": "adapters are not loaded",
}
_MOST_REPLIES: Final = 16  # to each prompt
_CHOICES: Final = ("auto", "required", "none")
_CHOICE_HINT: Final = "give auto, required, none, or a function"


def openai_options(fields: Fields, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The options in a request of OpenAI's kind, and `more` that were read already. Raises BadSetting."""
    options = shape(fields) | own(fields, "stop") | length_and_seed(fields)
    if (effort := fields.take("reasoning_effort", str)) is not None:
        options |= effort_options(effort)
    if fields.rest.get("service_tier") == "flex":
        options["background"] = True
    if fields.take("modalities", list, ["text"]) != ["text"]:
        raise BadSetting("modalities has more than text", hint="models read and write text")
    options |= tool_options(fields)
    refuse_others(fields)
    replies = fields.take("n", int, 1)
    if not 1 <= replies <= _MOST_REPLIES:
        raise BadSetting(f"n is {cut(replies)}", hint=f"give a whole number from 1 to {_MOST_REPLIES}")
    return {**checked({**options, **(more or {})}), "n": replies}


def own(fields: Fields, stop: str) -> dict[str, Any]:
    """Options that every interface takes; `stop` names the field of stop texts. Raises BadSetting."""
    options = {ours: fields.rest.pop(name) for name, ours in _OPTIONS.items() if name in fields.rest}
    options |= {name: whole(value) for name, value in options.items() if REPLY[name].kind is int}
    for name in ("grammar", "regex"):  # clients write "" for none
        if options.get(name) == "":
            del options[name]
    if stops := fields.texts(stop):
        options["stop"] = stops
    return options | prediction(fields)


def prediction(fields: Fields) -> dict[str, Any]:
    """The predicted reply: a text, or OpenAI's object with a text or parts of one."""
    given = fields.rest.pop("prediction", None)
    if isinstance(given, dict):
        content: Any = given.get("content")
        parts: list[Any] = content if isinstance(content, list) else [{"text": content}]
        if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts):
            raise BadSetting(f"prediction is {cut(given)}", hint='give {"type": "content", "content": "..."}')
        given = "".join(part["text"] for part in parts)
    return {} if given is None else {"prediction": given}


def refuse_others(fields: Fields) -> None:
    """Drop the fields without effect, refuse those that localspec cannot obey. Raises BadSetting."""
    fields.drop(
        *_WITHOUT_EFFECT, *(name for name, value in _NEUTRAL.items() if fields.rest.get(name) == value)
    )
    fields.refuse(_REFUSED)


def checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, if a reply can have them all. Raises BadSetting."""
    kept = {"overflow": "error"} | {name: value for name, value in options.items() if value is not None}
    request_from(kept, Sampling())
    return kept


def length_and_seed(fields: Fields) -> dict[str, Any]:
    """-1 means no limit and a fresh seed; other negative seeds count down from 2**64. Raises BadSetting."""
    limits = [fields.take(name, int) for name in ("max_completion_tokens", "max_tokens", "n_predict")]
    limit = next((value for value in limits if value is not None), -1)
    seed = fields.take("seed", int, -1)
    options = {} if limit == -1 else {"max_tokens": limit}
    return options if seed == -1 else {**options, "seed": seed % 2**64}


def effort_options(effort: str) -> dict[str, Any]:
    """Without effort a thinking model answers at once."""
    if effort in ("none", "minimal"):
        return {"think": False}
    return {"think": True, "template_arguments": {"reasoning_effort": effort}}


def shape(fields: Fields) -> dict[str, Any]:
    """The form of the answer, from response_format or llama-server's json_schema."""
    schema = fields.take("json_schema", dict)
    # Beside a grammar an empty schema is llama-server's "none".
    if schema or (schema == {} and "grammar" not in fields.rest):
        return {"json_schema": schema}
    wanted = Fields(fields.take("response_format", dict, {}), "response_format")
    kind = wanted.take("type", str, "text")
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_schema": wanted.take("schema", dict, {"type": "object"})}
    if kind == "json_schema":
        inner = wanted.rest.get("json_schema")
        holder = Fields(inner, "json_schema") if isinstance(inner, dict) else wanted
        return {"json_schema": holder.need("schema", dict)}
    if kind in ("regex", "grammar"):
        return {kind: wanted.need(kind, str)}
    hint = "types are text, json_object, json_schema, regex and grammar"
    raise BadSetting(f"response_format is of type {cut(kind)}", hint=hint)


def tool_options(fields: Fields) -> dict[str, Any]:
    """tools and tool_choice; every tool stays in the prompt, so that its beginning is the same. Raises BadSetting."""
    given = fields.take("tools", list, [])
    tools = [tool for tool in given if is_function(tool)]
    kinds = dict.fromkeys(cut(tool["type"]) for tool in given if not is_function(tool))
    fields.notices += [f"tools of the type {kind} are no functions and were left out" for kind in kinds]
    choice = fields.rest.pop("tool_choice", "auto")
    if isinstance(choice, dict):
        named, choice = choice, name_of(choice) if is_function(choice) else None
        if choice is None:
            raise BadSetting(f"tool_choice is {cut(named)}", hint=_CHOICE_HINT)
        if choice not in map(name_of, tools):
            raise BadSetting(
                f"tool_choice names {cut(choice)}, which is no tool", hint="name one of the tools"
            )
    elif choice not in _CHOICES:
        raise BadSetting(f"tool_choice is {cut(choice)}", hint=_CHOICE_HINT)
    if choice == "required" and not tools:
        raise BadSetting("tool_choice is required, and there are no tools", hint="give tools")
    return {"tools": tools, "tool_choice": choice} if tools else {}


def is_function(tool: object) -> bool:
    """Whether a tool is a function; other kinds run at a vendor, or take text of any form."""
    return not isinstance(tool, dict) or tool.get("type", "function") == "function"


def name_of(tool: object) -> object:
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    return function.get("name") if isinstance(function, dict) else None
