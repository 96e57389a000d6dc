"""Chat templates: they render messages to the prompt text that a model was trained on."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from localspec.algorithm.protocols import Vocabulary
from localspec.errors import BadTemplate
from localspec.events import ToolCall
from localspec.prompt.history import Fitting, Taken, fitted, taken_by
from localspec.prompt.messages import Message, arguments_of
from localspec.prompt.sandbox import Sandbox, rendered, unchangeable
from localspec.prompt.thinking import THINK, A, ThinkingStyle, after_prompt, style_of, thinking_variables
from localspec.prompt.tools import Tool
from localspec.structure.derive_format import format_of
from localspec.structure.tool_call_format import GENERIC, ToolCallFormat

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
PLAIN = (
    "{% for message in messages %}{{ message.role + ': ' + message.content + '\\n\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
_MARKUP = re.compile(r"\s*(<[^<>\s]+>|\[[^\[\]\s]+\])")
_THOUGHTS_PROBE = "localspec thinks"
_PROBE = Message("user", "localspec asks")
_TURNS = (_PROBE, Message("assistant", "localspec answers"), Message("user", "localspec continues"))
_CALL_PROBE = ToolCall("localspec_asks", {"what": "time"}, "probe0001")
_TOOL_PROBE = {
    "type": "function",
    "function": {
        "name": _CALL_PROBE.name,
        "description": "localspec",
        "parameters": {"type": "object", "properties": {"what": {"type": "string", "description": ""}}},
    },
}


@dataclass(frozen=True, slots=True)
class Dialect:
    text_arguments: bool = False  # whether the template reads arguments as JSON text
    short_ids: bool = False  # whether the ids of calls must have nine letters and digits
    one_call: bool = False  # whether the template takes only one call in a message
    thinking_parts: bool = False  # whether reasoning is one of the parts of a message's content


class ChatTemplate:
    """A chat template, and the forms of messages that it takes; threads may share it. Raises BadTemplate."""

    def __init__(
        self,
        source: str,
        *,
        bos_text: str,
        eos_text: str,
        end_texts: Collection[str] = (),
        style: ThinkingStyle | None = None,
    ) -> None:
        """`end_texts`: texts of the tokens that end a reply. `style`: used if `source` shows no style."""
        self.source = source
        self._end_texts, self._usual_style = end_texts, style
        self._changes_lists = "append" in source or "pop" in source
        self._latest_tools: tuple[tuple[Tool, ...], dict[str, Any] | None] | None = None
        self._taken: dict[
            bool, Taken
        ] = {}  # histories that the template takes without tools (False), and with tools (True)
        self._special = {"bos_token": bos_text, "eos_token": eos_text}
        self._sandbox = Sandbox()
        self._template, self._names, self.literals, tested = self._sandbox.read(source)
        # If a template does not test whether `enable_thinking` is given, a missing value switches reasoning off.
        self._always = {"enable_thinking": True} if "enable_thinking" in self._names - tested else {}

    @cached_property
    def _style(self) -> ThinkingStyle | None:
        return style_of(self.source) or self._usual_style

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        think: bool | int | None = None,
        arguments: Mapping[str, Any] | None = None,
        fit: bool = True,
    ) -> str:
        """Render the prompt; `think` sets the template's variables for reasoning, `arguments` any variables.

        Messages that the template would refuse or lose get another form (`history.py`). `fit`: False for messages that
        fit already.
        """
        messages = self.fitted(messages, arguments or {}).messages if fit else messages
        thinks = {} if think is None else thinking_variables(think, self._names, self.literals)
        given = {"add_generation_prompt": add_generation_prompt, **(arguments or {})}
        return self._with(self._forms(messages), {**self._without_tools, **self._always, **thinks, **given})

    def fitted(
        self, messages: Sequence[Message], arguments: Mapping[str, Any], *, usual: bool = False
    ) -> Fitting:
        """Return messages that fit the template; `usual`: whether to use the order that every template takes."""
        taken = self.taken(bool(arguments.get("tools") or arguments.get("functions")))
        if usual:
            taken = Taken(taken.calls, taken.system, one_call=taken.one_call, short_ids=taken.short_ids)
        return fitted(messages, taken)

    @cached_property
    def tool_call_format(self) -> ToolCallFormat:
        """The tool-call format, derived from calls that the template renders, else the generic format."""

        def render(answer: str, calls: Sequence[ToolCall]) -> str:
            messages = [_PROBE, Message("assistant", answer, tool_calls=tuple(calls))]
            return self._with(self._forms(messages), self._without_tools)

        return format_of(self.source, render, self._style.markers if self._style else ()) or GENERIC

    def tool_variables(self, tools: Sequence[Tool]) -> dict[str, Any] | None:
        """Return the variables that give the tools to the template; None if the template ignores tools."""
        if self._latest_tools is None or self._latest_tools[0] != tools:
            given = self._tool_variables([tool.given for tool in tools])
            self._latest_tools = tuple(tools), given or self._tool_variables([t.definition for t in tools])
        return self._latest_tools[1]

    def _tool_variables(self, definitions: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        functions = [given["function"] for given in definitions]
        variables: dict[str, Any] = {"tools": unchangeable(definitions)}
        if "functions" in self._without_tools:
            variables["functions"] = json.dumps(functions, ensure_ascii=False, indent=4)
        text = self._tried([_PROBE], variables)
        return variables if all(function["name"] in text for function in functions) else None

    @cached_property
    def dialect(self) -> Dialect:
        """The form of calls, ids and reasoning that the template takes; Hugging Face's form is tried first."""
        form, written = Dialect(), json.dumps(_CALL_PROBE.arguments)
        text = self._past(form, _CALL_PROBE)
        if not text or (str(_CALL_PROBE.arguments) in text and written not in text):
            form, text = Dialect(text_arguments=True), self._past(Dialect(text_arguments=True), _CALL_PROBE)
            if written not in text:
                return Dialect()
        long = replace(_CALL_PROBE, id="call_localspec_asks")
        other = replace(_CALL_PROBE, arguments={"what": "place"}, id="probe0002")
        one_call = _CALL_PROBE.name in text and "place" not in self._past(form, _CALL_PROBE, other)
        form = replace(form, short_ids=not self._past(form, long), one_call=one_call)
        parts = replace(form, thinking_parts=True)
        parted = "" if _THOUGHTS_PROBE in text else self._past(parts, _CALL_PROBE)
        read = _THOUGHTS_PROBE in parted and not re.search(f"""['"]{_THOUGHTS_PROBE}['"]""", parted)
        return parts if read else form

    @cached_property
    def repeats_calls(self) -> bool:
        """Whether the template renders earlier calls. Some templates render them but ignore tools."""
        return _CALL_PROBE.name in self._past(self.dialect, _CALL_PROBE)

    def _past(self, dialect: Dialect, *calls: ToolCall) -> str:
        results = [Message("tool", "noon", tool_call_id=call.id) for call in calls]
        return self._tried((_PROBE, Message("assistant", "", _THOUGHTS_PROBE, calls), *results), {}, dialect)

    def _tried(
        self, messages: Sequence[Message], variables: Mapping[str, Any], dialect: Dialect | None = None
    ) -> str:
        """Return the rendered messages, or "" if the template refuses them."""
        return self._attempt(self._forms(messages, dialect), {**self._without_tools, **variables})

    def thinking_style(self, prompt: str) -> ThinkingStyle | None:
        return after_prompt(self._style, prompt) if self._style else None

    @cached_property
    def thinking_ending(self) -> str:
        """The text between reasoning and answer: a closing marker with white space, or several markers."""
        closing = [marker for marker, kind in self._style.markers.items() if kind is A] if self._style else []
        with suppress(BadTemplate):
            turns = _PROBE, replace(_TURNS[1], reasoning=_THOUGHTS_PROBE)
            text = self.render(turns, think=True, add_generation_prompt=False)
            between, answered, _ = text.partition(_THOUGHTS_PROBE)[2].partition(_TURNS[1].content)
            if answered and between.strip().startswith(tuple(closing)):
                return between
        return (self._style.ending if self._style else "") or "".join(closing[:1])

    @cached_property
    def stops(self) -> tuple[str, ...]:
        """The stop strings for a model that ends its turn with a text instead of an end token."""
        _, answered, rest = self._tried(_TURNS, {}).partition(_TURNS[1].content)
        after, goes_on, _ = rest.partition(_TURNS[2].content)
        if not (answered and goes_on) or any(text in after for text in self._end_texts):
            return ()
        if found := _MARKUP.match(after):
            parts = self._style.markers if self._style else ()  # a marker begins a part; it is no stop
            return () if any(found[1] in marker for marker in parts) else (found[1],)
        begin, end = "\n" if after[:1].isspace() else "", after.strip()
        return (begin + end,) if len(end) >= 3 else ()  # a shorter text may be part of an answer

    def taken(self, with_tools: bool) -> Taken:
        """Return the histories that the template takes, with the variables of tools or without them."""
        if with_tools not in self._taken:
            form, variables = self.dialect, self._tool_variables([_TOOL_PROBE]) if with_tools else {}
            if variables is None:
                return self.taken(with_tools=False)
            given = {"add_generation_prompt": True, **self._always, **variables}
            render = partial(self._tried, variables=given)
            self._taken[with_tools] = taken_by(render, one_call=form.one_call, short_ids=form.short_ids)
        return self._taken[with_tools]

    @cached_property
    def _takes_text(self) -> bool:
        """Whether the content of a message may be text: some templates take only lists of parts."""
        probes = ([_as_dictionary(_PROBE, Dialect(), parts=parts)] for parts in (False, True))
        text, parts = (self._attempt(probe, self._without_tools) for probe in probes)
        return _PROBE.content in text or _PROBE.content not in parts

    @cached_property
    def _without_tools(self) -> Mapping[str, Any]:
        probe = [_as_dictionary(_PROBE, Dialect(), parts=False)]
        forms: tuple[Mapping[str, Any], ...] = ({"tools": None, "documents": None}, {}, {"functions": "[]"})
        return next((form for form in forms if self._attempt(probe, form)), forms[0])

    def _attempt(self, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> str:
        with suppress(BadTemplate):
            return self._with(messages, variables)
        return ""

    def _forms(self, messages: Sequence[Message], dialect: Dialect | None = None) -> list[dict[str, Any]]:
        forms = (dialect or (self.dialect if m.tool_calls or m.reasoning else Dialect()) for m in messages)
        pairs = zip(messages, forms, strict=True)
        return [_as_dictionary(message, form, parts=not self._takes_text) for message, form in pairs]

    def _with(self, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> str:
        given = unchangeable(messages) if self._changes_lists else messages
        return rendered(self._template, {"messages": given, **self._special, **variables})


NO_TEMPLATE = "the model file has no chat template"


def template_of(source: str | None, vocabulary: Vocabulary) -> tuple[ChatTemplate, tuple[str, ...]]:
    """Return the model file's chat template, or a substitute with a notice about it."""
    controls = vocabulary.special_tokens()
    notices: tuple[str, ...] = ()
    if not source:
        chatml = {"<|im_start|>", "<|im_end|>"} <= controls.keys()
        source = CHATML if chatml else PLAIN
        form = "ChatML, whose special tokens it has" if chatml else "plain text: it may not be a chat model"
        notices = (f"{NO_TEMPLATE}; messages are written as {form}",)
    bos, eos = ("" if t is None else vocabulary.text(t) for t in (vocabulary.bos, vocabulary.eos))
    ends = [text for text, token in controls.items() if text and vocabulary.is_end(token)]
    style = THINK if THINK.name in controls else None
    return ChatTemplate(source, bos_text=bos, eos_text=eos, end_texts=ends, style=style), notices


def _as_dictionary(message: Message, dialect: Dialect, *, parts: bool) -> dict[str, Any]:
    text = [{"type": "text", "text": message.content}]
    fields: dict[str, Any] = {"role": message.role, "content": text if parts else message.content}
    if message.reasoning:
        # Set all three keys, because templates read the reasoning from different keys.
        fields |= dict.fromkeys(("reasoning_content", "reasoning", "thinking"), message.reasoning)
        if dialect.thinking_parts:
            thoughts = {"type": "thinking", "thinking": message.reasoning}
            fields["content"] = [thoughts, *(text if message.content else [])]
    for call in message.tool_calls:
        arguments = arguments_of(call)
        given = json.dumps(arguments, ensure_ascii=False) if dialect.text_arguments else arguments
        function = {"name": call.name, "arguments": given}
        fields.setdefault("tool_calls", []).append({"type": "function", "id": call.id, "function": function})
    return fields | ({"tool_call_id": message.tool_call_id} if message.tool_call_id else {})
