"""The constraint of each reply: the grammar of its answer or its calls, and of the reasoning before them."""

from dataclasses import replace
from functools import cached_property

from localspec.algorithm.protocols import Vocabulary
from localspec.chat.options import Request
from localspec.chat.template import ChatTemplate
from localspec.chat.thinking import A, R, ThinkingStyle
from localspec.errors import BadSetting
from localspec.structure.call_form import GENERIC, CallForm
from localspec.structure.call_grammar import calls_grammar
from localspec.structure.constraint import Constrained, GrammarTokens
from localspec.structure.grammar import lead_of, lenient


class ConstraintBuilder:
    """Makes the constraint of each reply; prepares the vocabulary once, at first use."""

    def __init__(self, vocabulary: Vocabulary, template: ChatTemplate) -> None:
        self._vocabulary = vocabulary
        self._template = template

    def call_form(self, request: Request) -> CallForm | None:
        """The format of the model's tool calls, from its template; None without tools."""
        if not request.tools:
            return None
        native = self._template.call_form.native and self._template.shows(request.tools)
        return self._native_form if native else GENERIC

    @cached_property
    def _native_form(self) -> CallForm:
        """The format without the tokens that end a reply."""
        controls = self._vocabulary.control_texts().items()
        ends = [text for text, token in controls if text and self._vocabulary.is_end(token)]
        return self._template.call_form.without(ends)

    def constraint(self, request: Request, style: ThinkingStyle | None, start: int) -> Constrained | None:
        """The constraint of a reply that begins after `start` tokens; None without a grammar.

        Raises BadSetting for an unusable grammar.
        """
        grammar, calls = request.grammar, self.call_form(request)
        markers = style.markers.items() if style else ()
        opening, closing = ([m for m, kind in markers if kind is wanted] for wanted in (R, A))
        framing = style is not None and not style.quotable
        if calls:
            grammar = calls_grammar(
                calls if request.parallel_tool_calls else replace(calls, between=None),
                request.functions,
                choice=request.tool_choice if request.tool_choice in ("auto", "none") else "required",
                names=self._names,
                frames=closing if framing else (),
                answer=grammar,
            )
        if grammar is None:
            return None
        lead = None
        if style is not None and opening and (style.opened or request.think is not False):
            lead = lead_of(opening, closing, opened=style.opened, framing=framing, names=self._names)
        tokens = self._tokens
        ignored = ""
        try:
            matcher = tokens.matcher(grammar, lead)
        except BadSetting as error:
            matcher = tokens.matcher(lenient(grammar), lead)
            ignored = str(error).replace("cannot be used", "holds only in part", 1)
            ignored = ignored.replace("Unimplemented keys:", "no grammar can follow", 1)
        return Constrained(
            matcher, grammar.name, size=tokens.size, ends=tokens.ends, start=start, ignored=ignored
        )

    @cached_property
    def _tokens(self) -> GrammarTokens:
        return GrammarTokens(self._vocabulary)

    @cached_property
    def _names(self) -> dict[str, int]:
        """The names of control tokens."""
        controls = self._vocabulary.control_texts().items()
        return {text: token for text, token in controls if text and not self._vocabulary.piece(token)}
