"""The wire between the engine process and its client: requests one way, reports the other, a line of JSON each.

Each line of a report has the serial of its request; 0 where that has none.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, BinaryIO, Final, get_args

import msgspec

from localspec.errors import EngineDied
from localspec.events import Event, Reply
from localspec.options import LOAD

Messages = tuple[Mapping[str, Any], ...]  # in OpenAI's form
Options = Mapping[str, Any]  # by name

PROTOCOL: Final = 7  # raised when a message changes its meaning; both ends compare it in the hello


@dataclass(frozen=True, slots=True)
class LoadPair:
    """Bring a pair into memory."""

    pair: str | None = None  # None: the pair used or fetched last, else the demo
    target: str | None = None
    draft: str | None = None
    options: Options = field(default_factory=dict)  # localspec.options.LoadOptions
    speculate: bool = True  # False: no draft model is loaded
    spare_cores: int = 1  # left to a terminal that draws, where there are many
    rpc_required: bool = True  # False: servers that do not answer are left out
    owner: str = ""  # of caches on disk: others have their own
    died_of: str = ""  # what ended the process before; this one repacks no weights

    @classmethod
    def of(cls, **keywords: Any) -> "LoadPair":  # noqa: ANN401
        """The request that has the keywords of `localspec.load`."""
        options = {name: value for name in LOAD if (value := keywords.pop(name, None)) is not None}
        return cls(**keywords, options=options)


@dataclass(frozen=True, slots=True)
class Infill:
    """A text with a hole, and other files that belong to it."""

    before: str
    after: str
    begun: str = ""  # of the middle
    files: tuple[tuple[str, str], ...] = ()  # names and texts, the most important last


@dataclass(frozen=True, slots=True)
class Answer:
    """Generate a reply to a conversation, or continue a text, tokens or an infill."""

    serial: int  # counts up; a cancel names the request that it means
    messages: Messages = ()
    options: Options = field(default_factory=dict)  # localspec.options.ReplyOptions
    cycles: bool = False  # whether each cycle is reported
    text: str | None = None
    parts: tuple[int | str, ...] | None = None  # tokens, and texts between them
    infill: Infill | None = None  # whose middle is to be written
    line_end_after_seconds: float | None = None  # of writing: from then on the next line end is the reply's


@dataclass(frozen=True, slots=True)
class Render:
    """Report the prompt of these messages; nothing is generated."""

    serial: int
    messages: Messages
    options: Options = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tokenize:
    """Report the tokens of a text."""

    serial: int
    text: str
    parse_special: bool = True  # whether control texts in it are control tokens
    add_special: bool = False  # whether bos and eos are added as the model file asks


@dataclass(frozen=True, slots=True)
class Detokenize:
    """Report the text of tokens."""

    serial: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CompareReplies:
    """Generate the same reply with and without drafting."""

    serial: int
    messages: Messages
    options: Options = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop the request of that serial, and keep its text."""

    serial: int


@dataclass(frozen=True, slots=True)
class Quit:
    """Free everything and exit."""


Request = LoadPair | Answer | Render | Tokenize | Detokenize | CompareReplies | Cancel | Quit


@dataclass(frozen=True, slots=True)
class Hello:
    """The first report of a process."""

    protocol: int
    pid: int


@dataclass(frozen=True, slots=True)
class LoadStage:
    """What loading is doing now."""

    text: str


@dataclass(frozen=True, slots=True)
class Ready:
    """A pair is in memory."""

    pair: str
    target: str
    draft: str  # "" when there is none
    context_length: int  # tokens
    seconds: float  # since the request
    parallel: int = 1  # replies at once
    machine: str = ""  # its devices, its system and the program
    # The target, as its file gives it
    template: str = ""  # Jinja
    bos: str = ""
    eos: str = ""
    vocabulary_size: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)
    reasons: bool = False


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt."""

    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tokens:
    """A text's tokens, and the text of each."""

    tokens: tuple[int, ...]
    pieces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Text:
    """The text of tokens."""

    text: str


@dataclass(frozen=True, slots=True)
class ProposalText:
    """The drafted tokens of the cycle just reported, as text."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """The outcome of a comparison."""

    drafted: Reply
    plain: Reply
    verdict: str  # lines: the speed and the text, then what there is to know about either


@dataclass(frozen=True, slots=True)
class Stopped:
    """A comparison was cancelled before both sides had replied in full."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A request ended in an error that `localspec run` would print as a sentence."""

    error: str  # class name in localspec.errors
    what: str
    hint: str
    serial: int = 0  # of the request; 0 where it has none


@dataclass(frozen=True, slots=True)
class Died:
    """The process ended without a request to; made by the client, never sent."""

    what: str
    hint: str


@dataclass(frozen=True, slots=True)
class Saving:
    """The process stores caches before it ends; its memory is free when it closes its pipe."""


Report = (
    Hello
    | LoadStage
    | Ready
    | Event
    | Rendered
    | Tokens
    | Text
    | ProposalText
    | Compared
    | Stopped
    | Failure
    | Saving
    | Died
)

_KINDS: dict[str, Any] = {kind.__name__: kind for kind in get_args(Request) + get_args(Report)}
_NAMES = {name: {field.name for field in fields(kind)} for name, kind in _KINDS.items()}


def encode(message: object, serial: int = 0) -> bytes:
    """A message as one line, with the serial of its request."""
    # Text is escaped to ASCII, so newlines and encodings cannot break the line.
    # Python's JSON: msgspec's own has no infinity, no file name that is not UTF-8, and no number above 2**64.
    return json.dumps([type(message).__name__, serial, msgspec.to_builtins(message)]).encode() + b"\n"


def decode(line: bytes) -> tuple[int, Any]:
    """The serial and the message in a line. Raises EngineDied for another line: the stream cannot be trusted."""
    try:
        kind, serial, values = json.loads(line)
        if values.keys() - _NAMES[kind]:
            raise ValueError("a field that it does not have")
        return msgspec.convert(serial, int), msgspec.convert(values, _KINDS[kind])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise EngineDied(
            f"invalid message between localspec and its engine process: {line[:80]!r}",
            hint="restart it; if it happens again, reinstall localspec",
        ) from error


def read_messages(source: BinaryIO) -> Iterator[tuple[int, Any]]:
    """Serials and messages until the other end closes; an unfinished last line is dropped."""
    for line in source:
        if line.endswith(b"\n"):
            yield decode(line)
