"""What a request asks of the form of a reply, compiled for the model that writes it."""

from functools import cached_property

from localspec.chat.options import Request
from localspec.chat.thinking import ThinkingStyle
from localspec.chat.vocabulary import Vocabulary
from localspec.events import Kind
from localspec.structure.constraint import Constrained
from localspec.structure.lead import Marks, lead_of
from localspec.structure.tokens import GrammarTokens


class Shaping:
    """Makes the constraint of each reply; the vocabulary is prepared once, when it is first needed."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def constraint(self, request: Request, style: ThinkingStyle | None, start: int) -> Constrained | None:
        """The constraint of a reply that begins after `start` tokens; None where none is asked.

        With a thinking model it begins after the thinking. Raises BadSetting where the grammar is unusable.
        """
        if request.grammar is None:
            return None
        lead = None
        if style is not None and (style.opened or request.think is not False):
            lead = lead_of(marks_of(style), self._names)
        matcher = self._tokens.matcher(request.grammar, lead)
        tokens = self._tokens
        return Constrained(matcher, request.grammar.name, size=tokens.size, ends=tokens.ends, start=start)

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
