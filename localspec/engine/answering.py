"""Requests of programs, which the endpoint passes on: replies to messages or texts, prompts, tokens."""

from collections.abc import Callable, Sequence
from typing import Any, assert_never

from localspec.chat.session import Session
from localspec.chat.vocabulary import Vocabulary
from localspec.engine.messages import (
    Answer,
    Describe,
    Description,
    Detokenize,
    Render,
    Rendered,
    Report,
    Text,
    Tokenize,
    Tokens,
)
from localspec.errors import BadSetting
from localspec.events import Cycle

Asked = Render | Tokenize | Detokenize | Describe
INFILL_NAMES = (  # of the tokens before a beginning, an end and a middle, in the vocabularies of several families
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
)


def answer(
    session: Session, request: Answer, send: Callable[[Report], None], cancelled: Callable[[], bool]
) -> None:
    """Generate the reply; programs read the text, so cycles are not sent."""
    options = dict(request.options)
    if request.messages:
        events = session.stream(list(request.messages), cancelled=cancelled, **options)
    else:
        text = request.text if request.tokens is None else request.tokens
        events = session.stream_complete(text or "", cancelled=cancelled, **options)
    for event in events:
        if not isinstance(event, Cycle):
            send(event)


def told(session: Session, request: Asked) -> Rendered | Tokens | Text | Description:
    """What can be said without generating anything."""
    vocabulary = session.engine.vocabulary
    match request:
        case Render():
            prompt = session.prompt_of(request.messages, **request.options)
            return Rendered(prompt.text, tuple(prompt.tokens))
        case Tokenize():
            tokens = vocabulary.tokenize(
                request.text, parse_special=request.parse_special, add_special=request.add_special
            )
            return Tokens(tuple(tokens), tuple(map(session.text_of, tokens)))
        case Detokenize():
            return Text(text_of(session, request.tokens))
        case Describe():
            return description(session)
    assert_never(request)


def text_of(session: Session, tokens: Sequence[int]) -> str:
    """The text of tokens, control tokens by their names."""
    vocabulary = session.engine.vocabulary
    if not all(0 <= token < vocabulary.size for token in tokens):
        raise BadSetting("a token is none of the model's", hint=f"tokens are numbers below {vocabulary.size}")
    pieces = (vocabulary.piece(token) or vocabulary.text(token).encode() for token in tokens)
    return b"".join(pieces).decode(errors="replace")


def infill_marks(vocabulary: Vocabulary) -> tuple[int, ...]:
    """The tokens with which models of code are asked for a middle; none where the vocabulary lacks them."""
    known = vocabulary.control_texts()
    found = (names for names in INFILL_NAMES if all(name in known for name in names))
    return tuple(known[name] for name in next(found, ()))


def description(session: Session) -> Description:
    engine = session.engine
    vocabulary, template = engine.vocabulary, engine.template
    model: Any = getattr(engine.target, "model", None)
    return Description(
        template=template.source,
        bos="" if vocabulary.bos is None else vocabulary.text(vocabulary.bos),
        eos="" if vocabulary.eos is None else vocabulary.text(vocabulary.eos),
        vocabulary_size=vocabulary.size,
        metadata={k: v for k, v in (model.metadata if model else {}).items() if len(v) <= 500},
        reasons=template.thinking_style("") is not None,
        infill_marks=infill_marks(vocabulary),
    )
