"""Make any history fit a chat template: probes show what the template takes, and a pure function changes the rest.

A message that the template would refuse or lose stays at its place in another form: a late system message, or a
result without its call, becomes a message of the user that names its role. If the template refuses two neighbours,
they are joined, or the turns that it expects between them are filled in.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise, product, takewhile

from localspec.events import ToolCall
from localspec.prompt.messages import Message, made_id

BEGIN, SYSTEM, USER, ANSWER, CALL, RESULT, STRAY, END = (
    "begin", "system", "user", "answer", "call", "result", "stray", "end",
)  # fmt: skip
Render = Callable[[Sequence[Message]], str]  # returns the prompt; "" if the template refuses the messages

# The order that every template takes: for each kind of message, the kinds that may follow it.
_USUAL = {
    BEGIN: (SYSTEM, USER), SYSTEM: (USER,), USER: (END, ANSWER, CALL), ANSWER: (END, USER), CALL: (RESULT,),
    RESULT: (END, ANSWER, RESULT, CALL),
}  # fmt: skip
_PAIRS = frozenset((before, kind) for before, kinds in _USUAL.items() for kind in kinds)
_ROLES = {
    SYSTEM: "system", USER: "user", ANSWER: "assistant", CALL: "assistant", RESULT: "tool", STRAY: "tool",
}  # fmt: skip
_FILLING = {
    SYSTEM: "(no instructions)", USER: "(no question)", ANSWER: "(no answer)", RESULT: "(no result)",
}  # fmt: skip


def _between(before: str, kind: str, pairs: Collection[tuple[str, str]] = ()) -> Sequence[str]:
    """Return the kinds that the usual order has between two kinds; none if `pairs` contains the two."""
    paths: list[tuple[str, ...]] = [(before,)] if (before, kind) not in pairs else []
    for path in paths:
        if kind in _USUAL[path[-1]]:
            return path[1:]
        paths += [(*path, each) for each in _USUAL[path[-1]] if each not in (END, SYSTEM, *path)]
    return ()


# For each kind of message, in the usual order: the kinds up to it, and those from it to a later answer and question.
_TO = {BEGIN: (), **{kind: (*_between(BEGIN, kind), kind) for kind in _ROLES if kind != STRAY}}
_FROM = {kind: (*_between(kind, ANSWER), ANSWER, USER) for kind in _TO}
_STRAYS = (
    (STRAY, USER), (USER, STRAY), (USER, STRAY, ANSWER, USER), (USER, ANSWER, STRAY, ANSWER, USER),
    (USER, ANSWER, STRAY, USER, STRAY, CALL, RESULT, STRAY, USER), (SYSTEM, STRAY, STRAY, USER),
    (USER, CALL, RESULT, ANSWER, STRAY, USER), (USER, CALL, RESULT, CALL, RESULT, USER, STRAY),
)  # fmt: skip
# Where a text beside a call is rendered: before some answer, after the last answer, and there beside reasoning.
BEFORE, AFTER, BOTH = "before", "after", "both"
_PLACES = frozenset((BEFORE, AFTER, BOTH))


@dataclass(frozen=True, slots=True)
class Taken:
    """The histories that a template renders completely and in order, as probes showed."""

    calls: bool = True  # whether calls are rendered at all
    system: bool = True  # whether a system message may be first
    late_systems: bool = False  # whether system messages may follow any message
    strays: bool = False  # whether results may follow any message
    beside: frozenset[str] = _PLACES  # where texts beside calls are rendered
    pairs: frozenset[tuple[str, str]] = _PAIRS  # pairs of message kinds; the second may follow the first
    empty: frozenset[str] = frozenset()  # the kinds of messages that may have no text
    one_call: bool = False  # whether the template takes only one call in a message
    short_ids: bool = False  # whether the ids of calls must have nine letters and digits


def fitted(messages: Sequence[Message], taken: Taken) -> "Fitting":
    """Return the messages in an order and form that the template takes; most histories need no change."""
    fitting = Fitting(taken)
    systems = [*takewhile(lambda message: message.role == "system", messages)]
    if len(systems) > 1 and not taken.late_systems:
        content = "\n\n".join(message.content for message in systems if message.content)
        messages = [replace(systems[0], content=content), *messages[len(systems) :]]
    entries = _paired(_texts_apart(messages, taken), taken)
    for kind, message in _one_call_each(entries) if taken.one_call else entries:
        if kind == SYSTEM and not fitting.groups:
            kind = SYSTEM if taken.system else USER
            fitting.add(kind, replace(message, role=_ROLES[kind]))
        elif taken.late_systems if kind == SYSTEM else taken.strays and kind == STRAY:
            fitting.groups.append([message])
        elif kind == SYSTEM:
            fitting.add_named("System message", message, "late system messages are messages of the user")
        elif kind == STRAY:
            fitting.add_named("Tool result", message, "tool results without a call are messages of the user")
        else:
            fitting.add(kind, message)
    fitting.fill(END)
    unread = sum(bool(call.unreadable) for message in messages for call in message.tool_calls)
    fitting.changes["calls whose arguments are no JSON object have their text as one argument"] += unread
    return fitting


@dataclass(slots=True)
class Fitting:
    """The fitted history so far."""

    taken: Taken
    groups: list[list[Message]] = field(default_factory=list)  # the messages of a group are joined into one
    changes: Counter[str] = field(default_factory=Counter)
    _kind: str = BEGIN  # the kind of the newest message; messages that may be anywhere do not count

    @property
    def messages(self) -> list[Message]:
        return [*map(_joined, self.groups)]

    @property
    def notice(self) -> str:
        """A sentence about all changes; "" if nothing was changed."""
        changes = "; ".join(f"{what}: {count}" for what, count in self.changes.items() if count)
        return changes and f"the history was changed to fit the chat template: {changes}"

    def add(self, kind: str, message: Message) -> None:
        if not message.content.strip() and kind in _FILLING and kind not in self.taken.empty:
            message = replace(message, content=_FILLING[kind])
        last = self.groups[-1][0] if self.groups else None
        follows = last is not None and (last.role, bool(last.tool_calls)) == (_ROLES[kind], kind == CALL)
        stays = kind in (RESULT, CALL if self.taken.one_call else "") or (kind, kind) in self.taken.pairs
        if last and follows and kind == self._kind and not stays:
            self.groups[-1].append(message)
        else:
            self.fill(kind)
            self.groups.append([message])
        self._kind = kind

    def add_named(self, role: str, message: Message, change: str) -> None:
        """Add a message of the user that names the role of another message."""
        self.changes[change] += 1
        self.add(USER, Message("user", f"{role}:\n{message.content}", images=message.images))

    def fill(self, kind: str) -> None:
        """Add the turns that the template expects between the newest message and one of this kind."""
        for missing in _between(self._kind, kind, self.taken.pairs):
            calls = self.groups[-1][0].tool_calls if missing == RESULT else ()
            filling = Message(_ROLES[missing], _FILLING[missing], tool_call_id=calls[0].id if calls else "")
            self.groups.append([filling])
            self.changes["missing turns were filled in"] += 1


def _joined(group: Sequence[Message]) -> Message:
    content = "\n\n".join(message.content for message in group if message.content)
    reasoning = "\n\n".join(message.reasoning for message in group if message.reasoning)
    calls = tuple(call for message in group for call in message.tool_calls)
    return replace(group[-1], content=content, reasoning=reasoning, tool_calls=calls)


def _texts_apart(messages: Sequence[Message], taken: Taken) -> list[Message]:
    """Move texts that the template would lose beside calls into their own messages, or to the text before them."""
    moved = list[Message]()
    latest = max((n for n, message in enumerate(messages) if _kind_of(message) == ANSWER), default=-1)
    for number, message in enumerate(messages):
        place = BEFORE if number < latest else AFTER
        text = message.content if message.tool_calls else ""
        if text and place == AFTER and message.reasoning and {AFTER, BOTH} & taken.beside == {AFTER}:
            message = replace(message, content="", reasoning=f"{message.reasoning}\n\n{text}")
        elif text and place not in taken.beside:
            if (ANSWER, CALL) in taken.pairs or not moved or moved[-1].tool_calls:
                moved.append(Message("assistant", text))
            else:
                both = f"{moved[-1].content}\n\nThe assistant before its call:\n{text}"
                moved[-1] = replace(moved[-1], content=both)
            message = replace(message, content="")
        moved.append(message)
    return moved


def _kind_of(message: Message) -> str:
    kinds = {"system": SYSTEM, "user": USER, "tool": RESULT}
    return CALL if message.tool_calls else kinds.get(message.role, ANSWER)


def _paired(messages: Sequence[Message], taken: Taken) -> list[tuple[str, Message]]:
    """Return the messages with their kinds, and with a unique id for each call, which its result repeats.

    A result belongs to the call with its id, else to a call of its function, else to the first call without a result.
    """
    paired, used = list[tuple[str, Message]](), set[str]()
    waiting = dict[
        str, tuple[str, str]
    ]()  # given id and function of each call without a result, by its new id
    near = dict[str, None]()  # new ids of the calls in the messages right before

    def own_id(given: str, made: str) -> str:
        """Return the given id in the form that the template takes; if it is used already, return the made id."""
        if taken.short_ids and given and not (len(given) == 9 and given.isalnum()):
            given = hashlib.sha256(given.encode()).hexdigest()[:9]
        used.add(own := given if given and given not in used else made)
        return own

    for number, message in enumerate(messages):
        kind = _kind_of(message)
        if kind == RESULT:
            given = message.tool_call_id
            own = next((each for each in chain(near, waiting) if given and given in waiting[each]), "")
            own = own or next(iter(near), "")
            kind = RESULT if own in near else STRAY
            near = near if kind == RESULT else {}
            near.pop(own, None)
            waiting.pop(own, None)
            message = replace(message, tool_call_id=own or own_id(given, made_id(number, 0)))
        elif kind == CALL:
            own_ids = [own_id(call.id, made_id(number, n)) for n, call in enumerate(message.tool_calls)]
            calls = (replace(call, id=own) for call, own in zip(message.tool_calls, own_ids, strict=True))
            message = replace(message, tool_calls=tuple(calls))
            near = near if paired and paired[-1][0] == CALL else {}
            near |= dict.fromkeys(own_ids)
            waiting |= zip(own_ids, ((call.id, call.name) for call in message.tool_calls), strict=True)
        else:
            near = {}
        paired.append((kind, message))
    return paired


def _one_call_each(entries: Sequence[tuple[str, Message]]) -> Iterator[tuple[str, Message]]:
    """Move each tool call into its own message, followed by its result if the results have the same order."""
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


def taken_by(render: Render, *, one_call: bool, short_ids: bool) -> Taken:
    """Find the histories that a template takes: render short ones whose messages all have different words."""

    def takes(*kinds: str, empty: int = -1, side: int = 0, thinks: bool = False) -> bool:
        messages, words = _history(kinds, empty, side, thinks)
        text = render(messages)
        places = [text.find(word) for word in words]
        return bool(text) and places == sorted(places) and all(text.count(word) == 1 for word in words)

    def begins_alike(kinds: Sequence[str], *more: str) -> bool:
        """Return whether further messages leave the prompt unchanged up to the last word before them."""
        messages, words = _history((*kinds, *more))
        before, word = render(messages[: len(kinds)]), words[len(kinds) - 1]
        return render(messages).startswith(before[: before.find(word) + len(word)])

    def may_follow(before: str, kind: str) -> bool:
        probes = [(*_TO[before], *((kind, *_FROM[kind]) if kind != END else ()))]
        # A template may count rounds of calls as turns, require a question, or require results right after their calls.
        if (before, kind) == (CALL, CALL):
            probes.append((USER, CALL, CALL, RESULT, RESULT, ANSWER, USER))
        if kind == CALL:
            probes.append((*_TO[before], CALL, RESULT, CALL, RESULT, ANSWER, USER))
        if before in (BEGIN, SYSTEM) and kind != END:
            probes.append((*_TO[before], kind, *_FROM[kind][: kind == CALL]))
        return all(takes(*probe) for probe in probes)

    calls = takes(USER, CALL, RESULT, CALL, RESULT, ANSWER, USER)
    system = takes(SYSTEM, USER, ANSWER, USER)
    kinds = [*([SYSTEM] if system else []), USER, ANSWER, *([CALL, RESULT] if calls else [])]
    unusual = {*product((BEGIN, *kinds), (USER, ANSWER, *([CALL] if calls else []), END))} - _PAIRS
    pairs = {pair for pair in unusual if may_follow(*pair)} - {(USER, USER) if not system else ()}
    late = takes(USER, SYSTEM, USER, ANSWER, SYSTEM, ANSWER, USER) and begins_alike((USER,), SYSTEM)
    late = late and all(
        takes(*_TO[kind], *(SYSTEM,) * count, *rest)
        for kind, count in product(kinds, (1, 2))
        for rest in (_FROM[kind], *(((),) if kind != CALL else ()))
    )
    strays = all(takes(*each) for each in _STRAYS if {*each} <= {*kinds, STRAY})
    strays = strays and (not (late and calls) or takes(USER, CALL, RESULT, SYSTEM, STRAY, USER))
    strays = strays and begins_alike((STRAY, USER, CALL if calls else ANSWER), USER, USER)
    empty = {
        kind
        for kind in {*kinds} - {CALL}
        if takes(*_TO[kind], *_FROM[kind], empty=len(_TO[kind]) - 1)
        and (kind == SYSTEM or takes(*_TO[kind], empty=len(_TO[kind]) - 1))
    }
    beside = {
        place
        for place, more in ((BEFORE, (ANSWER, USER)), (AFTER, ()), (BOTH, ()))
        if any(takes(USER, CALL, RESULT, *more, side=side, thinks=place == BOTH) for side in (-1, 1))
    }
    taken = Taken(calls, system, late, strays, frozenset(beside) if calls else _PLACES)
    return replace(
        taken, pairs=_PAIRS | pairs, empty=frozenset(empty), one_call=one_call, short_ids=short_ids
    )


def _history(
    kinds: Sequence[str], empty: int = -1, side: int = 0, thinks: bool = False
) -> tuple[list[Message], list[str]]:
    """Return a history of these kinds of messages, and its words in order.

    `empty`: index of a message without content. `side`: -1 for a word before each call, 1 for a word after it.
    `thinks`: whether calls follow reasoning.
    """
    messages, words, ids, latest = list[Message](), list[str](), list[str](), "foreign01"
    for number, kind in enumerate(kinds):
        word, call_id = "" if number == empty else f"probe{number:03}w", f"probe{number:04}"
        if kind == CALL:
            ids, latest = [*ids, call_id], call_id
            text = f"beside{number:03}w" if side else ""
            calls = (ToolCall("localspec_asks", {"what": word}, call_id),)
            messages.append(Message("assistant", text, "localspec thinks" if thinks else "", calls))
            words += [text, word][::-side] if side else [word]
        else:
            answered = ids.pop(0) if kind == RESULT else latest if kind == STRAY else ""
            messages.append(Message(_ROLES[kind], word, tool_call_id=answered))
            words += [word] * bool(word)
    return messages, words
