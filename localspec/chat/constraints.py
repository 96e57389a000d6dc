"""What a request asks of the form of a reply, compiled for the model that writes it."""

from dataclasses import replace
from functools import cached_property

from localspec.algorithm.protocols import Vocabulary
from localspec.chat.options import Request
from localspec.chat.template import ChatTemplate
from localspec.chat.thinking import ThinkingStyle
from localspec.chat.tools import GENERIC, CallFormat, tools_grammar
from localspec.events import Kind
from localspec.structure.constraint import Constrained, GrammarTokens
from localspec.structure.grammar import Marks, lead_of


class ConstraintBuilder:
    """Makes the constraint of each reply; the vocabulary is prepared once, when it is first needed."""

    def __init__(self, vocabulary: Vocabulary, template: ChatTemplate) -> None:
        self._vocabulary = vocabulary
        self._template = template

    def call_format(self, request: Request) -> CallFormat | None:
        """How the model writes calls, None without tools: as its template shows it, if it tells of tools."""
        if not request.tools:
            return None
        found = self._template.call_format
        return found if found.native and self._template.shows(request.tools) else GENERIC

    def constraint(self, request: Request, style: ThinkingStyle | None, start: int) -> Constrained | None:
        """The constraint of a reply that begins after `start` tokens; None where none is asked.

        With a thinking model it begins after the thinking. Raises BadSetting where the grammar is unusable.
        """
        grammar, calls = request.grammar, self.call_format(request)
        if calls:
            required = request.tool_choice == "required"
            calls = calls if request.parallel_tool_calls else replace(calls, between=None)
            grammar = tools_grammar(request.tools, calls, required=required, names=self._names)
        if grammar is None:
            return None
        lead = None
        if style is not None and (style.opened or request.think is not False):
            lead = lead_of(marks_of(style), self._names)
        matcher = self._tokens.matcher(grammar, lead)
        tokens = self._tokens
        return Constrained(matcher, grammar.name, size=tokens.size, ends=tokens.ends, start=start)

    @cached_property
    def _tokens(self) -> GrammarTokens:
        return GrammarTokens(self._vocabulary)

    @cached_property
    def _names(self) -> dict[str, int]:
        """The texts of tokens that give no text of their own."""
        controls = self._vocabulary.control_texts().items()
        return {text: token for text, token in controls if text and not self._vocabulary.piece(token)}


def marks_of(style: ThinkingStyle) -> Marks:
    return Marks(
        opening=[mark for mark, kind in style.markers.items() if kind is Kind.REASONING],
        closing=[mark for mark, kind in style.markers.items() if kind is Kind.ANSWER],
        opened=style.opened,
        framing=not style.quotable,
    )
