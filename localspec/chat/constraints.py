"""Make the prompt of a reply and the reply's form: text, thinking budget, and a grammar."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

from localspec.algorithm.protocols import Vocabulary
from localspec.chat.request import Request
from localspec.chat.text import TextStream
from localspec.chat.thinking_budget import ThinkingBudget
from localspec.errors import BadSetting
from localspec.prompt.images import NO_IMAGES, ReadImage, with_marks, without_earlier_images
from localspec.prompt.messages import Message, Messages
from localspec.prompt.spelling import Spellings
from localspec.prompt.template import ChatTemplate
from localspec.prompt.thinking import A, R, ThinkingStyle
from localspec.prompt.tokens import Prompt, encode, opening_of, with_shown_images
from localspec.prompt.tools import calls_as_texts, spelled_out, with_names
from localspec.structure.call_grammar import calls_grammar
from localspec.structure.constraint import Constrained, GrammarTokens
from localspec.structure.grammar import rules_around
from localspec.structure.json_calls import JsonCallReader
from localspec.structure.read_calls import CallReader
from localspec.structure.tool_call_format import GENERIC, ToolCallFormat

# `branch_points` renders this question, which no user writes, to find where prompts of other conversations differ.
_OTHER = "\u2063"
_LONG = 256  # tokens; a shorter system message with tools gets no checkpoint, because it is read fast


class Ending(NamedTuple):
    finished: bool  # whether the reply must end here, by its grammar
    complete: bool  # whether the reply may end here, by its grammar
    budget_spent: bool  # whether a thinking budget was spent
    closed: bool  # whether the answer was closed early, because the limit of tokens was near


_UNLIMITED = [Ending(False, True, spent, False) for spent in (False, True)]  # for replies without a grammar


@dataclass(frozen=True, slots=True)
class ReplyForm:
    """The form of one reply: how its tokens become text, and which tokens may follow."""

    text: TextStream
    constraint: Constrained | None
    generic_calls: bool  # whether the prompt describes a tool-call format that is not the model's own
    budget: ThinkingBudget | None = None  # a thinking budget, which also applies the constraint

    @property
    def forcer(self) -> ThinkingBudget | Constrained | None:
        return self.budget or self.constraint

    def ends(self) -> Ending:
        spent, g = self.budget is not None and self.budget.times_ended > 0, self.constraint
        return Ending(g.finished, g.complete, spent, g.closed) if g else _UNLIMITED[spent]


class PromptBuilder:
    """A maker of prompts and reply forms. The first grammar takes 1 s more, to prepare the vocabulary."""

    def __init__(
        self, vocabulary: Vocabulary, template: ChatTemplate, read_image: ReadImage | None = None
    ) -> None:
        self._vocabulary = vocabulary
        self._template = template
        self._read_image = read_image
        self._spellings = Spellings(vocabulary)

    def encode(self, request: Request) -> Prompt:
        messages = request.messages
        rendered, arguments, images = self._rendered(request)
        variables: dict[str, Any] = {"think": request.think, "arguments": arguments}
        prompt = encode(self._vocabulary, self._template, rendered, **variables, images=images)
        unread = 0 if self._read_image else sum(len(message.images) for message in messages)
        called, kept = (sum(bool(m.tool_calls) for m in each) for each in (messages, rendered))
        changes = {
            "images of earlier messages were left out, because this model reads none": unread,
            "calls of tools became texts, because the chat template has no place for them": called - kept,
        }
        notices = filter(None, (prompt.notice, *(f"{what}: {n}" for what, n in changes.items() if n)))
        return replace(prompt, notice="; ".join(notices))

    def branch_points(self, request: Request, prompt: Prompt) -> Sequence[int]:
        """Return the positions in `prompt` at which other conversations, or later prompts of this one, may differ."""

        def shared(messages: Messages) -> int:
            rendered, arguments, images = self._rendered(replace(request, messages=messages))
            variables = {**arguments, "add_generation_prompt": False}
            closed = self._template.render(rendered, think=request.think, arguments=variables)
            closed = with_shown_images(closed, images, self._vocabulary)
            return opening_of(prompt, closed, self._vocabulary)

        messages = request.messages
        system = messages[:1] if messages[0].role == "system" else ()
        other = shared((*system, Message("user", _OTHER))) if system or request.tools else 0
        return (*([other] if other >= _LONG else []), shared(messages))

    def _rendered(
        self, request: Request
    ) -> tuple[Sequence[Message], dict[str, Any], dict[str, Sequence[int]]]:
        """Return the messages with marks in place of images, the template's variables, and each mark's image."""
        messages = request.messages if self._read_image else without_earlier_images(request.messages)
        messages, images = with_marks(messages)
        if images and self._read_image is None:
            raise BadSetting("this model reads no images", hint=NO_IMAGES)
        read = {mark: self._read_image(image.data) for mark, image in images.items() if self._read_image}
        form = self.tool_call_format(request) or self._template.tool_call_format
        tools = self._template.tool_variables(request.tools) if form.native and request.tools else None
        messages = with_names(messages, request.tools)
        rendered: Sequence[Message] = messages if tools else spelled_out(messages, request.tools, form)
        if form.native and not self._template.taken(bool(tools)).calls:
            rendered = calls_as_texts(rendered, form)
        return rendered, {**(tools or {}), **request.template_arguments}, read

    def spelled(self, request: Request) -> tuple[tuple[int, ...], ...]:
        """Return texts to draft from: parts of messages, in the tokens with which a reply would write them."""
        form = self.tool_call_format(request)
        reply = GENERIC if request.grammar else form if request.tool_choice != "none" else None
        return self._spellings.of(request.messages, form or self._template.tool_call_format, reply)

    def tool_call_format(self, request: Request) -> ToolCallFormat | None:
        if not request.tools:
            return None
        template = self._template
        native = template.tool_call_format.native
        native = native and bool(template.repeats_calls or template.tool_variables(request.tools))
        return self._native_format if native else GENERIC

    @cached_property
    def _native_format(self) -> ToolCallFormat:
        special = self._vocabulary.special_tokens().items()
        ends = [text for text, token in special if text and self._vocabulary.is_end(token)]
        return self._template.tool_call_format.without(ends)

    def form(self, request: Request, style: ThinkingStyle | None, start: int) -> ReplyForm:
        """Return the form of a reply to a prompt of `start` tokens. Raises BadSetting."""
        constraint, calls = self.constraint(request, style, start), self.tool_call_format(request)
        is_raw = request.continued is not None
        text = TextStream(
            self._vocabulary,
            style,
            (*(() if is_raw else self._template.stops), *request.stop),
            # A space at the beginning of a text stays, because the text must match its grammar exactly.
            continues_text=is_raw or constraint is not None or bool(request.begun),
            calls=calls if request.tool_choice != "none" else None,
            functions=request.functions,
            reader=partial(JsonCallReader, several=request.parallel_tool_calls)
            if request.json_calls and request.tool_choice == "auto" and request.grammar is None
            else partial(CallReader, distinct=request.tool_choice == "required"),
            fenced=request.grammar is not None and request.grammar.closes,
        )
        text.resume(request.begun)
        budget = None
        if not (is_raw or isinstance(request.think, bool | None)):
            budget = ThinkingBudget(constraint, request, text, self._template.thinking_ending, start)
        return ReplyForm(text, constraint, calls is GENERIC, budget)

    def constraint(self, request: Request, style: ThinkingStyle | None, start: int) -> Constrained | None:
        """Return the constraint of a reply to a prompt of `start` tokens, or None. Raises BadSetting.

        Calls may begin in the text that the reply continues, unless the grammar forbids it.
        """
        grammar, calls = request.grammar, self.tool_call_format(request)
        markers = style.markers.items() if style else ()
        opening, closing = ([m for m, kind in markers if kind is wanted] for wanted in (R, A))
        framing = style is not None and not style.quotable
        if calls:
            named = request.tool_choice not in ("auto", "required", "none")
            grammar = calls_grammar(
                calls if request.parallel_tool_calls and not named else replace(calls, between=None),
                request.functions,
                choice="required" if named else request.tool_choice,
                names=self._names,
                frames=closing if framing else (),
                answer=grammar,
                strict=any(tool.strict for tool in request.tools),
            )
        if grammar is None:
            return None
        around = None
        if style is not None and opening and (style.opened or not (style.closed or request.think is False)):
            unclosed = grammar.has_unclosed_calls
            around = rules_around(
                opening, closing, opened=style.opened, framing=framing, names=self._names, unclosed=unclosed
            )
        tokens, ignored = self._tokens, ""
        try:
            matcher = tokens.matcher(grammar, around)
        except BadSetting as error:
            if grammar.lenient is None:
                raise
            matcher = tokens.matcher(replace(grammar, rules=grammar.lenient()), around)
            ignored = str(error).replace("cannot be used", "is followed only in part", 1)
            ignored = ignored.replace("Unimplemented keys:", "a grammar cannot express", 1)
        before = self._vocabulary.tokenize(request.begun, parse_special=False) if calls else []
        if (resumed := matcher.deep_copy()).try_consume_tokens(before) == len(before):
            matcher = resumed
        closes = grammar.closes and around is None
        return Constrained(matcher, grammar.name, tokens, start=start, ignored=ignored, closes=closes)

    @cached_property
    def _tokens(self) -> GrammarTokens:
        return GrammarTokens(self._vocabulary)

    @cached_property
    def _names(self) -> dict[str, int]:
        special = self._vocabulary.special_tokens().items()
        return {text: token for text, token in special if text and not self._vocabulary.piece(token)}
