"""The mixture: conversations and plain pieces of Python, drawn topic by topic from one seed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from .code import library_requests, library_text, requests
from .open_ended import open_ended
from .records import records
from .spin import Card, Turn, answer, pick, read_cards, spin, typed
from .stories import games, stories
from .sums import arithmetic
from .tables import animals, calendar, countries, elements, opposites
from .unknown import unknown

CARDS = {name: read_cards(f"{name}.txt") for name in ("topics", "talk", "facts")}
MORE = (
    "tell me more",
    "more",
    "go on",
    "more please",
    "can you say more",
    "explain more",
    "and then",
    "more details",
)
BRIEF = (
    "in short",
    "shorter please",
    "in one sentence",
    "make it short",
    "short version",
    "tldr",
    "be brief",
    "in brief",
)
AGAIN = ("another one", "one more", "another", "again", "one more please", "another one please", "next")
THANKS = ("thanks", "thank you", "thank you!", "great, thanks", "ok", "cool")
WELCOME = ("You are welcome!", "You are welcome! Is there anything else?", "My pleasure!")
OPENERS = "{Sure|Gladly|Of course|Certainly|Good question|Happy to help|Let me explain|Let me see|With pleasure}{!|.}"
CLOSERS = (
    "{Would you like|Do you want|Shall I give you} {an example|more details|a shorter version}?",
    "{Ask|Just ask|Feel free to ask} {if|when|whenever} {something is unclear|you want more|anything is missing}.",
    "{I hope|Hopefully} {that|this} {helps|answers it|makes sense|is clear}{.|!}",
    "{Is there anything|Anything|What} else?",
)
CHATTY = 0.35
"""Share of the answers with words of courtesy in front, and of those with some behind."""
SYSTEMS = (
    "You are a helpful assistant.",
    "You are the demo model of localspec.",
    "Answer briefly.",
    "You are a friendly assistant that answers in English.",
    "Be helpful and honest.",
)


@dataclass(frozen=True, slots=True)
class Document:
    """A conversation, or plain text when there are no turns."""

    topic: str
    system: str = ""
    turns: tuple[Turn, ...] = ()
    text: str = ""


def card_turns(card: Card, rng: Random) -> list[Turn]:
    """A question on a card, and sometimes what naturally follows it."""
    turns = [Turn(typed(spin(rng.choice(card.asks), rng, 0.0), rng), answer(card, rng))]
    roll = rng.random()
    if card.even and roll < 0.55:
        rest = rng.sample(card.says, rng.randint(1, 2))
        turns += [Turn(typed(rng.choice(AGAIN), rng), spin(said, rng)) for said in rest]
    elif card.more and roll < 0.3:
        more = card.more if rng.random() < 0.3 else card.more[:1]
        turns += [Turn(typed(rng.choice(MORE), rng), spin(said, rng)) for said in more]
    elif card.brief and roll < 0.45:
        turns.append(Turn(typed(rng.choice(BRIEF), rng), spin(card.brief[0], rng)))
    return turns


def courteous(turn: Turn, rng: Random) -> Turn:
    """The same answer, sometimes with a word before or after it."""
    before = f"{spin(OPENERS, rng)} " if rng.random() < CHATTY else ""
    after = f" {spin(pick(CLOSERS, rng), rng)}" if rng.random() < CHATTY and "\n" not in turn.says else ""
    return Turn(turn.asks, before + turn.says + after)


def from_cards(name: str) -> Callable[[Random], list[Turn]]:
    """A maker of turns from one file of cards; the first cards are what people ask first."""

    def make(rng: Random) -> list[Turn]:
        cards = CARDS[name]
        turns = card_turns(cards[int(len(cards) * rng.random() ** 1.25)], rng)
        return turns if name == "talk" else [courteous(turns[0], rng), *turns[1:]]

    return make


MAKERS: dict[str, tuple[tuple[float, Callable[[Random], list[Turn]]], ...]] = {
    "chat": (
        (5, from_cards("topics")),
        (4, from_cards("talk")),
        (2.2, stories),
        (2.2, open_ended),
        (1.4, games),
        (1.4, unknown),
    ),
    "facts": (
        (4, from_cards("facts")),
        (3, countries),
        (0.5, elements),
        (0.7, animals),
        (0.7, opposites),
        (1.4, calendar),
    ),
    "arithmetic": ((1, arithmetic),),
    "code": ((3, requests), (1, library_requests)),
    "json": ((1, records),),
}
SHARES = {"chat": 0.40, "facts": 0.20, "arithmetic": 0.23, "code": 0.10, "json": 0.06}
"""Share of the exchanges, not of the tokens: code is long, sums are short. The rest is plain library code."""


def exchange(topic: str, rng: Random) -> list[Turn]:
    """A question on a topic with its follow-ups."""
    weights, makers = zip(*MAKERS[topic], strict=True)
    return rng.choices(makers, weights)[0](rng)


def document(rng: Random) -> Document:
    """One conversation of one to four exchanges, or a piece of plain code."""
    topics = [*SHARES, "plain"]
    topic = rng.choices(topics, [*SHARES.values(), 1 - sum(SHARES.values())])[0]
    if topic == "plain":
        return Document(topic, text=library_text(rng))
    turns = exchange(topic, rng)
    while rng.random() < 0.3 and len(turns) < 6:
        turns += exchange(rng.choices(list(SHARES), SHARES.values())[0], rng)
    if rng.random() < 0.06:
        turns.append(Turn(typed(rng.choice(THANKS), rng), pick(WELCOME, rng)))
    return Document(topic, rng.choice(SYSTEMS) if rng.random() < 0.2 else "", tuple(turns))


def documents(seed: int, part: int) -> Iterator[Document]:
    """The endless stream of documents of one part; the same for the same seed and part."""
    rng = Random(f"{seed}/{part}")
    while True:
        yield document(rng)


def plain(document: Document) -> str:
    """The text of a document without its marks, as the tokenizer sees it."""
    turns = (text for turn in document.turns for text in (turn.asks, turn.says))
    return document.text or "\n".join(turns)
