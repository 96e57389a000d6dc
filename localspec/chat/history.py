"""Makes any history fit a chat template: probes show what the template takes, and a pure function changes the rest.

A message that the template would refuse or lose at its place stays there in another form: a late system message or a
result without its call becomes a message of the user that names its role. Two neighbours that the template refuses are
joined, or the turns that it expects between them are filled in.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product

from localspec.chat.messages import Message, made_id
from localspec.events import ToolCall

BEGIN, SYSTEM, USER, ANSWER, CALL, RESULT, STRAY, END = (
    "begin", "system", "user", "answer", "call", "result", "stray", "end",
)  # fmt: skip
Render = Callable[[Sequence[Message]], str]  # returns the prompt; "" if the template refuses the messages

# The order that every template takes: by a kind of message, the kinds that may follow it.
_USUAL = {
    BEGIN: (SYSTEM, USER),
    SYSTEM: (USER,),
    USER: (END, ANSWER, CALL),
    ANSWER: (END, USER),
    CALL: (RESULT,),
    RESULT: (END, ANSWER, RESULT, CALL),
}
_PAIRS = frozenset((before, kind) for before, kinds in _USUAL.items() for kind in kinds)
# The kinds that lead from the begin to a kind in this order, and from a kind to a later answer and question.
_TO = {
    BEGIN: (), SYSTEM: (SYSTEM,), USER: (USER,), ANSWER: (USER, ANSWER), CALL: (USER, CALL),
    RESULT: (USER, CALL, RESULT),
}  # fmt: skip
_FROM = {
    BEGIN: (USER,), SYSTEM: (USER, ANSWER, USER), USER: (ANSWER, USER), ANSWER: (USER, ANSWER, USER),
    CALL: (RESULT, ANSWER, USER), RESULT: (ANSWER, USER), END: (),
}  # fmt: skip
_ROLES = {SYSTEM: "system", USER: "user", ANSWER: "assistant", RESULT: "tool", STRAY: "tool"}
_FILLING = {
    SYSTEM: "(no instructions)", USER: "(no question)", ANSWER: "(no answer)", RESULT: "(no result)",
}  # fmt: skip
_HEADINGS = {SYSTEM: "System message:\n", STRAY: "Tool result:\n"}
_STRAYS = (
    (STRAY, USER), (USER, STRAY), (USER, STRAY, ANSWER, USER), (USER, ANSWER, STRAY, ANSWER, USER),
    (USER, ANSWER, STRAY, USER, STRAY, CALL, RESULT, STRAY, USER), (SYSTEM, STRAY, STRAY, USER),
    (USER, CALL, RESULT, ANSWER, STRAY, USER), (USER, CALL, RESULT, CALL, RESULT, USER, STRAY),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Taken:
    """The histories that a template renders whole and in order, as probes showed."""

    calls: bool = True  # whether calls and results are rendered at all
    system: bool = True  # whether a system message may be first
    late_systems: bool = False  # whether system messages may be anywhere
    strays: bool = False  # whether results may be anywhere
    text_beside_calls: bool = True
    pairs: frozenset[tuple[str, str]] = _PAIRS  # the kinds that may follow each other
    empty: frozenset[str] = frozenset()  # the kinds that may be empty
    one_call: bool = False  # whether a message has at most one call
    short_ids: bool = False  # whether the ids of calls must have nine letters and digits


@dataclass(slots=True)
class Fitting:
    """The history as far as it is made."""

    messages: list[Message] = field(default_factory=list)
    changes: Counter[str] = field(default_factory=Counter)
    kind: str = (
        BEGIN  # the kind of the newest message, besides late system messages and results in other places
    )
    open_ids: list[str] = field(default_factory=list)  # ids of the calls that have no result yet
    joins: bool = False  # whether the next message of the user continues the system message
    apart: bool = False  # whether the newest message is not of `kind`

    @property
    def notice(self) -> str:
        """One sentence about all that was changed; "" if nothing was."""
        found = "; ".join(what.format(count) for what, count in self.changes.items())
        return found and f"the history was changed to fit the chat template: {found}"


def fitted(messages: Sequence[Message], taken: Taken) -> Fitting:
    """Return the messages in an order and form that the template takes; most histories stay as they are."""
    found = Fitting()
    entries = _paired(messages if taken.text_beside_calls else [*_text_apart(messages)], taken)
    for kind, message in _one_call_each(entries) if taken.one_call else entries:
        if kind == SYSTEM:
            _add_system(found, message, taken)
        elif kind == STRAY and not taken.strays:
            found.changes["tool results without their call are messages of the user: {}"] += 1
            _add_named(found, message, STRAY, taken)
        elif kind == STRAY:
            found.messages.append(message)
            found.apart = True
        else:
            _add(found, message, kind, taken)
    _fill(found, END, taken)
    unread = sum(bool(call.unreadable) for message in messages for call in message.tool_calls)
    if unread:
        found.changes["calls whose arguments are no JSON object have their text as one argument: {}"] = unread
    return found


def taken_by(render: Render, *, one_call: bool, short_ids: bool) -> Taken:
    """Return what a template takes, from prompts of short histories with a word of their own in each message."""

    def takes(*kinds: str, empty: int = -1, beside: str = "") -> bool:
        messages, words = _history(kinds, empty, beside)
        text = render(messages)
        places = [text.find(word) for word in words]
        return bool(text) and places == sorted(places) and all(text.count(word) == 1 for word in words)

    def begins_alike(kinds: Sequence[str], *more: str) -> bool:
        """Return whether more messages leave the prompt as it is up to the last word before them."""
        messages, words = _history((*kinds, *more), -1, "")
        before = render(messages[: len(kinds)])
        end = before.find(words[len(kinds) - 1]) + len(words[len(kinds) - 1])
        return render(messages).startswith(before[:end])

    calls = takes(USER, CALL, RESULT, CALL, RESULT, ANSWER, USER)
    system = takes(SYSTEM, USER, ANSWER, USER)
    kinds = [USER, ANSWER, *([CALL, RESULT] if calls else [])]
    unusual = product((BEGIN, *([SYSTEM] if system else []), *kinds), (*kinds, END))
    pairs = {
        (before, kind)
        for before, kind in unusual
        if (before, kind) not in _PAIRS and kind != RESULT
        if takes(*_TO[before], *((kind,) if kind != END else ()), *_FROM[kind])
        # Rounds of calls may be counted as turns, or need a question somewhere, or their results right behind them.
        if (before, kind) != (CALL, CALL) or takes(USER, CALL, CALL, RESULT, RESULT, ANSWER, USER)
        if kind != CALL or takes(*_TO[before], CALL, RESULT, CALL, RESULT, ANSWER, USER)
        if kind == END
        or before not in (BEGIN, SYSTEM)
        or takes(*_TO[before], kind, *_FROM[kind][: kind == CALL])
    }
    late = takes(USER, SYSTEM, USER, ANSWER, SYSTEM, ANSWER, USER) and begins_alike((USER,), SYSTEM)
    late = late and all(
        takes(*_TO[kind], *(SYSTEM,) * count, *rest)
        for kind, count in product((SYSTEM, *kinds) if system else kinds, (1, 2))
        for rest in (_FROM[kind], *(((),) if kind != CALL else ()))
    )
    strays = all(takes(*each) for each in _STRAYS if {*each} <= {*kinds, SYSTEM * system, STRAY})
    strays = strays and (not late or takes(USER, CALL, RESULT, SYSTEM, STRAY, USER))
    strays = strays and begins_alike((STRAY, USER, CALL), USER, USER)
    empty = {
        kind
        for kind in ({SYSTEM} if system else set()) | {*kinds} - {CALL}
        if takes(*_TO[kind], *_FROM[kind], empty=len(_TO[kind]) - 1)
        and (kind == SYSTEM or takes(*_TO[kind], empty=len(_TO[kind]) - 1))
    }
    return Taken(
        calls,
        system,
        late,
        strays,
        not calls or takes(USER, CALL, RESULT, ANSWER, USER, beside="localspec adds"),
        _PAIRS | pairs,
        frozenset(empty),
        one_call,
        short_ids,
    )


def _history(kinds: Sequence[str], empty: int, beside: str) -> tuple[list[Message], list[str]]:
    """Return a history of these kinds of messages, and its words in order."""
    messages, words, ids, latest = list[Message](), list[str](), list[str](), "foreign01"
    for number, kind in enumerate(kinds):
        word, call_id = "" if number == empty else f"probe{number:03}w", f"probe{number:04}"
        if kind == CALL:
            ids, latest = [*ids, call_id], call_id
            words += [beside] * bool(beside)
            calls = (ToolCall("localspec_asks", {"what": word}, call_id),)
            messages.append(Message("assistant", beside, tool_calls=calls))
        else:
            answered = ids.pop(0) if kind == RESULT else latest if kind == STRAY else ""
            messages.append(Message(_ROLES[kind], word, tool_call_id=answered))
        words += [word] * bool(word)
    return messages, words


def _paired(messages: Sequence[Message], taken: Taken) -> list[tuple[str, Message]]:
    """Return the messages with their kinds. Each call has an id of its own, which its result repeats.

    A result belongs to the call with its id, and otherwise to the first call before it that has no result yet.
    """
    found, used = (
        list[tuple[str, Message]](),
        set[str](),
    )  # `used`: ids of calls and of results without a call
    waiting, near = dict[str, str](), list[str]()  # given ids of calls without a result; those right before
    for number, message in enumerate(messages):
        kind = {"system": SYSTEM, "user": USER}.get(message.role, CALL if message.tool_calls else ANSWER)
        if message.role == "tool":
            given = message.tool_call_id
            own = next((each for each in [*near, *waiting] if given and waiting[each] == given), "")
            own = own or next(iter(near), "")
            kind = RESULT if own in near else STRAY
            near = [each for each in near if each != own and kind == RESULT]
            waiting.pop(own, None)
            message = replace(message, tool_call_id=own or _own_id(given, made_id(number, 0), used, taken))
        elif kind == CALL:
            calls = [
                replace(call, id=_own_id(call.id, made_id(number, place), used, taken))
                for place, call in enumerate(message.tool_calls)
            ]
            near = [*(near if found and found[-1][0] == CALL else []), *(call.id for call in calls)]
            waiting |= {own.id: call.id for own, call in zip(calls, message.tool_calls, strict=True)}
            message = replace(message, tool_calls=tuple(calls))
        else:
            near = []
        found.append((kind, message))
    return found


def _text_apart(messages: Iterable[Message]) -> Iterator[Message]:
    """Give the text beside calls a message of its own."""
    for message in messages:
        if message.tool_calls and message.content:
            yield Message("assistant", message.content)
            message = replace(message, content="")
        yield message


def _own_id(given: str, made: str, used: set[str], taken: Taken) -> str:
    """Return the given id in the form of the template, or else the made one if it is used already."""
    own = _in_form(given, taken)
    own = own if own and own not in used else made
    used.add(own)
    return own


def _in_form(call_id: str, taken: Taken) -> str:
    is_taken = not taken.short_ids or not call_id or (len(call_id) == 9 and call_id.isalnum())
    return call_id if is_taken else hashlib.sha256(call_id.encode()).hexdigest()[:9]


def _one_call_each(entries: Sequence[tuple[str, Message]]) -> Iterator[tuple[str, Message]]:
    """Give each tool call a message of its own, followed by its result if the results come in this order."""
    place = 0
    while place < len(entries):
        kind, message = entries[place]
        place += 1
        yield kind, replace(message, tool_calls=message.tool_calls[:1])
        for before, call in pairwise(message.tool_calls):
            if place < len(entries) and entries[place][1].tool_call_id == before.id:
                yield entries[place]
                place += 1
            yield CALL, Message("assistant", "", tool_calls=(call,))


def _add(found: Fitting, message: Message, kind: str, taken: Taken) -> None:
    if not message.content.strip() and kind in _FILLING and kind not in taken.empty:
        message = replace(message, content=_FILLING[kind])
    refused = kind not in (RESULT, CALL if taken.one_call else "") and (kind, kind) not in taken.pairs
    if kind == found.kind and not found.apart and (found.joins or refused):
        last = found.messages[-1]
        texts, thoughts = (last.content, message.content), (last.reasoning, message.reasoning)
        content, reasoning = ("\n\n".join(filter(None, parts)) for parts in (texts, thoughts))
        calls = (*last.tool_calls, *message.tool_calls)
        found.messages[-1] = replace(message, content=content, reasoning=reasoning, tool_calls=calls)
    else:
        _fill(found, kind, taken)
        found.messages.append(message)
    found.kind, found.joins, found.apart = kind, False, False
    if kind == RESULT:
        found.open_ids = [each for each in found.open_ids if each != message.tool_call_id]
    else:
        found.open_ids = [call.id for call in found.messages[-1].tool_calls]


def _fill(found: Fitting, kind: str, taken: Taken) -> None:
    """Add the turns that the template expects between the newest message and one of this kind."""
    for missing in _between(found.kind, kind, taken.pairs):
        call_id = found.open_ids.pop(0) if missing == RESULT and found.open_ids else ""
        found.messages.append(Message(_ROLES[missing], _FILLING[missing], tool_call_id=call_id))
        found.changes["missing turns were filled in: {}"] += 1


def _between(before: str, kind: str, pairs: Collection[tuple[str, str]]) -> Sequence[str]:
    paths: list[tuple[str, ...]] = [(before,)] if before != kind or (kind, kind) not in pairs else []
    for path in paths:
        if kind in _USUAL[path[-1]] or (len(path) == 1 and (before, kind) in pairs):
            return path[1:]
        paths += [
            (*path, following) for following in _USUAL[path[-1]] if following not in (END, SYSTEM, *path)
        ]
    return ()


def _add_system(found: Fitting, message: Message, taken: Taken) -> None:
    if found.kind == BEGIN and not found.messages:
        _add(
            found,
            message if taken.system else replace(message, role="user"),
            SYSTEM if taken.system else USER,
            taken,
        )
        found.joins = not taken.system
    elif (
        found.messages
        and len(found.messages) == 1
        and (found.joins or (found.kind == SYSTEM and not taken.late_systems))
    ):
        first = found.messages[0]
        found.messages[0] = replace(first, content=f"{first.content}\n\n{message.content}")
    elif taken.late_systems:
        found.messages.append(message)
        found.apart = True
    else:
        found.changes["late system messages are messages of the user: {}"] += 1
        _add_named(found, message, SYSTEM, taken)


def _add_named(found: Fitting, message: Message, kind: str, taken: Taken) -> None:
    """Add a message of the user that names the role of another message."""
    content = _HEADINGS[kind] + message.content
    _add(found, replace(message, role="user", content=content, tool_call_id=""), USER, taken)
