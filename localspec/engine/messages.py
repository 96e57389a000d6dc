"""The messages between the engine process and its client: requests and reports, each as one line of JSON.

Each report has the serial of its request, or 0.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_args

import msgspec

from localspec.errors import EngineDied
from localspec.events import Event, Reply
from localspec.models.local_models import ModelFile
from localspec.models.registry import Pair
from localspec.prompt.messages import Infill, Messages

Options = Mapping[str, Any]  # values of options by name


@dataclass(frozen=True, slots=True)
class LoadPair:
    pair: Pair
    options: Options = field(default_factory=dict)  # values of localspec.options.LoadOptions
    speculate: bool = True  # whether to load the draft model
    spare_cores: int = 1  # number of CPU cores to leave to the client, on a machine with enough cores
    draws: bool = False  # whether the client draws on the screen during replies, and so needs a core
    rpc_required: bool = True  # whether a lost RPC server is an error
    owner: str = ""  # only loads with the same owner share prompt caches on disk


@dataclass(frozen=True, slots=True)
class Generate:
    serial: int  # the number of the request; its reports and a Cancel repeat this number
    messages: Messages = ()
    options: Options = field(default_factory=dict)  # values of localspec.options.ReplyOptions
    cycles: bool = False  # whether Cycle events are reported
    continued: str | tuple[int | str, ...] | Infill = ""  # the text to continue, in place of messages
    line_end_after_seconds: float | None = None  # after this time, the reply ends at its next line end
    stops_loops: bool = False  # whether a reply that repeats itself ends, with the finish reason REPETITION
    owner: str = ""  # the client; reasoning of other clients' replies is never added to messages
    conversation: str = ""  # name of the stored conversation; if set, its prompt caches go to the disk
    ignore_eos: bool = False  # whether end-of-generation tokens are banned
    compares: bool = False  # whether to compare two replies: one with drafting, one without


@dataclass(frozen=True, slots=True)
class Question:
    """A request for the prompt of `asked`, the text of `tokens`, or the tokens of `text`, without a reply."""

    serial: int
    asked: Generate | None = None
    tokens: tuple[int | str, ...] | None = None  # token ids and texts, to join to one text
    text: str = ""
    parse_special: bool = True  # whether a text like "<think>" becomes one special token
    add_special: bool = False  # whether to add bos and eos where the model file requires them
    with_pieces: bool = False  # whether the report also has the tokens' texts, which take much memory


@dataclass(frozen=True, slots=True)
class Embed:
    """A request for the vectors of texts, or the scores of documents, from a small model beside the pair.

    A request without texts frees the model.
    """

    serial: int
    file: ModelFile
    texts: tuple[str | tuple[int | str, ...], ...]
    pooling: str = ""  # "": the file's pooling
    query: str | None = None  # if set, the texts are documents to score
    norm: int = 2  # order of the vectors' norm, as in embedding/model.py
    dimensions: int | None = None
    truncate: bool = False  # whether to cut texts that are too long
    first: int = 0  # index of the first text in the client's whole request, for error messages


@dataclass(frozen=True, slots=True)
class Typed:
    """A conversation whose last message the user is typing. The engine may prefill the text, and sends no report."""

    messages: Messages = ()  # the last message ends after its last whole word; (): nothing is typed
    options: Options = field(default_factory=dict)
    conversation: str = ""  # as `Generate.conversation`


@dataclass(frozen=True, slots=True)
class Cancel:
    serial: int


@dataclass(frozen=True, slots=True)
class Quit:
    """A request to free all memory and exit."""


Request = LoadPair | Generate | Question | Embed | Typed | Cancel | Quit


@dataclass(frozen=True, slots=True)
class Hello:
    """The first report of an engine process."""


@dataclass(frozen=True, slots=True)
class LoadStage:
    text: str


@dataclass(frozen=True, slots=True)
class Ready:
    pair: str
    target: str
    draft: str  # name of the draft model; "" without one
    context_length: int  # in tokens
    seconds: float  # how long the load took
    parallel: int = 1  # largest number of replies at once
    machine: str = ""  # text that names devices, operating system, and version of localspec
    # The next fields, up to `reasons`, describe the model file of the target.
    path: str = ""
    template: str = ""  # the chat template in Jinja
    bos: str = ""
    eos: str = ""
    vocabulary_size: int = 0
    end_tokens: tuple[int, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    reasons: bool = False  # whether the chat template lets the model think
    reads_images: bool = False
    fills_gaps: bool = False  # whether the model has infill tokens
    settings: Options = field(default_factory=dict)  # default options of replies


@dataclass(frozen=True, slots=True)
class Rendered:
    text: str
    tokens: tuple[int, ...] = ()
    pieces: tuple[str | tuple[int, ...], ...] = ()  # each token's text, or its bytes if they are not UTF-8


@dataclass(frozen=True, slots=True)
class Embedded:
    rows: bytes  # the bytes of float32 numbers, little-endian
    width: int
    tokens: tuple[int, ...]  # number of tokens of each text


@dataclass(frozen=True, slots=True)
class ProposalText:
    """The draft tokens of the latest cycle, as text."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Compared:
    drafted: Reply
    plain: Reply
    verdict: str  # lines that compare speeds and texts of both replies, then notices


@dataclass(frozen=True, slots=True)
class ComparisonStopped:
    """A report that a comparison was cancelled before both of its replies had enough tokens for a verdict."""


@dataclass(frozen=True, slots=True)
class Failure:
    error: str  # name of a class in localspec.errors
    what: str
    hint: str
    serial: int = 0  # serial of the request that failed; 0 without a request
    numbers: Mapping[str, int] = field(default_factory=dict)  # the numbers of a ContextFull, by name


@dataclass(frozen=True, slots=True)
class Died:
    """The client's own report that the engine process ended without a Quit."""

    what: str
    hint: str


@dataclass(frozen=True, slots=True)
class Saving:
    """A report that the process is ending and stores prompt caches. The pipe closes once the memory is free."""


End = Compared | ComparisonStopped | Failure | Saving | Died
Report = Hello | LoadStage | Ready | Event | Rendered | Embedded | ProposalText | End

_KINDS: dict[str, Any] = {kind.__name__: kind for kind in get_args(Request) + get_args(Report)}
_NAMES = {name: {field.name for field in fields(kind)} for name, kind in _KINDS.items()}


def encode(message: object, serial: int = 0) -> bytes:
    # Use `json`, because msgspec's encoder refuses infinity, numbers above 2**64, and file names that are not UTF-8.
    return json.dumps([type(message).__name__, serial, msgspec.to_builtins(message)]).encode() + b"\n"


def decode(line: bytes) -> tuple[int, Any]:
    """Return the serial and the message in a line. Raises EngineDied for an invalid line."""
    try:
        kind, serial, values = json.loads(line)
        if values.keys() - _NAMES[kind]:
            raise ValueError("unknown field")
        return msgspec.convert(serial, int), msgspec.convert(values, _KINDS[kind])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = f"invalid message between localspec and its engine process: {line[:80]!r}"
        raise EngineDied(
            what, hint="restart localspec; if this happens again, reinstall localspec"
        ) from error


def read_messages(source: Iterable[bytes]) -> Iterator[tuple[int, Any]]:
    """Return the serial and the message of each line until the pipe closes; drop an unfinished last line."""
    return map(decode, filter(lambda line: line.endswith(b"\n"), source))  # lazy: no line is kept
