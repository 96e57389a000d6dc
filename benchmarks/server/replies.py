"""Greedy chat replies, token by token, against llama.cpp's server on the same file; prints Markdown.

    python -m benchmarks.server.replies --server DIR/bin/llama-server --target FILE [--draft FILE] [--threads N]

50 chats (chats.toml), turn by turn: the server's chat endpoint, localspec plain, localspec drafting. Every turn
continues what the server answered, so that each is compared on its own. A difference is explained here:

- The prompts differ: the server is asked again with localspec's prompt tokens, and must then answer alike. The
  reason is a control token that a user wrote, which localspec keeps as text, or else the template.
- The tokens part: the gap between the two likeliest tokens there is at most twice D, the largest difference of
  logits that batch widths alone make on that text: kernels differ with the width, and a near-tie flips.
- The same tokens are other text.
"""

import argparse
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import localspec
from benchmarks.server.chats import Chat, LocalChats, Messages, ServerChats, Told, chats
from benchmarks.server.sides import Flags, ServerSide
from localspec.chat.prompt import guarded_texts
from localspec.measure.compare import first_difference, row_after, top_two_gap, width_difference_on
from localspec.measure.summary import this_machine

CONTEXT = 2048
CONTROL = "control tokens in a message stay text"
TEMPLATE = "another prompt: template"
NEAR_TIE = "near-tie"
OTHER_TEXT = "same tokens, other text"
UNEXPLAINED = "UNEXPLAINED"
SIDES = ("plain", "drafting")


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a reply of localspec is not the server's, and why."""

    reason: str
    details: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a chat on one side of localspec, against the server."""

    chat: int  # from 1
    turn: int  # from 1
    kind: str
    side: str
    told: Told
    differences: tuple[Difference, ...]


def main() -> None:
    options = parse()
    began = perf_counter()
    with ExitStack() as opened:
        home = opened.enter_context(TemporaryDirectory())
        os.environ["LOCALSPEC_HOME"] = home  # what this teaches is not the user's
        threads = options.threads or this_machine().threads
        server = ServerSide(
            options.server,
            options.target,
            options.target,
            Flags(0),
            threads=threads,
            context=CONTEXT,
            log=Path(home, "server.log"),
            clock="wall",
        )
        opened.enter_context(server)
        session = opened.enter_context(
            localspec.load(
                target=options.target, draft=options.draft, context_length=CONTEXT, threads=threads
            )
        )
        turns = compare(session, ServerChats(server, options.tokens), options)
        last = turns[-1].told
        widths = width_difference_on(session.pair, [*last.prompt, *last.tokens])
    print(f"{this_machine(threads).sentence()}\n")
    print(markdown(turns))
    print(f"\nOn the last chat batch widths alone change a logit by at most D = {widths:.2g}.")
    print(f"{perf_counter() - began:.0f} seconds.")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", type=Path, required=True, help="see benchmarks/server/build.py")
    parser.add_argument("--target", type=Path, required=True, help="a GGUF, for both programs")
    parser.add_argument("--draft", type=Path, help="for localspec alone; lookup drafts without one")
    parser.add_argument("--depth", type=int, default=None, help="of the drafts; automatic without")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--tokens", type=int, default=48, help="of a reply, at most")
    parser.add_argument("--chats", type=int, default=None, help="only so many")
    return parser.parse_args()


def compare(session: localspec.Session, server: ServerChats, options: argparse.Namespace) -> list[Turn]:
    """All chats; on each side a chat is told from its first turn to its last, so that caches are reused."""
    turns = []
    for number, chat in enumerate(chats()[: options.chats], start=1):
        conversations, theirs = converse(server, chat)
        for side, depth in zip(SIDES, (0, options.depth), strict=True):
            ours = LocalChats(session, depth=depth, most=options.tokens)
            for turn, (messages, their) in enumerate(zip(conversations, theirs, strict=True), start=1):
                our = ours.tell(messages)
                found = tuple(differences(session, server, messages, our, their))
                turns.append(Turn(number, turn, chat.kind, side, our, found))
    return turns


def converse(server: ServerChats, chat: Chat) -> tuple[list[Messages], list[Told]]:
    """The server's conversation: the messages before each of its replies, and the replies."""
    history = [] if chat.system is None else [{"role": "system", "content": chat.system}]
    conversations, replies = list[Messages](), list[Told]()
    for ask in chat.asks:
        history = [*history, {"role": "user", "content": ask}]
        conversations.append(history)
        replies.append(server.tell(history))
        history = [*history, {"role": "assistant", "content": replies[-1].text}]
    return conversations, replies


def differences(
    session: localspec.Session, server: ServerChats, messages: Messages, ours: Told, theirs: Told
) -> list[Difference]:
    """What is different, and why; nothing where the replies are the same."""
    found = []
    if ours.prompt != theirs.prompt:
        found.append(Difference(*another_prompt(session, server, messages)))
        theirs = server.complete(ours.prompt)
    index = first_difference(said(ours), said(theirs))
    if index is not None:
        found.append(parted(session, ours, theirs, index))
    elif ours.text != theirs.text:
        found.append(Difference(OTHER_TEXT, f"{ours.text[-20:]!r} for {theirs.text[-20:]!r}"))
    return found


def said(told: Told) -> tuple[int, ...]:
    """The tokens with one for the end, whichever token it was."""
    return (*told.tokens, -1) if told.ended else told.tokens


def another_prompt(session: localspec.Session, server: ServerChats, messages: Messages) -> tuple[str, str]:
    """Why the prompts differ, and where."""
    tokens, text = LocalChats(session, depth=0, most=1).prompt(messages)
    their_tokens, their_text = server.prompt(messages)
    if text != their_text:
        index = next((n for n, (a, b) in enumerate(zip(text, their_text, strict=False)) if a != b), -1)
        return TEMPLATE, f"{text[index : index + 20]!r} for {their_text[index : index + 20]!r}"
    vocabulary = session.pair.vocabulary
    written = [c for c in guarded_texts(vocabulary) if any(c in m["content"] for m in messages)]
    if written and tuple(vocabulary.tokenize(text, parse_special=True)) == their_tokens:
        return CONTROL, f"{', '.join(written)}: {len(tokens) - len(their_tokens)} tokens more"
    index = first_difference(tokens, their_tokens) or 0
    return UNEXPLAINED, f"prompt token {index + 1}: {tokens[index]} for {their_tokens[index]}"


def parted(session: localspec.Session, ours: Told, theirs: Told, index: int) -> Difference:
    """What the first difference of two replies to one prompt is worth."""
    engine = session.pair
    text = [*ours.prompt, *ours.tokens[:index]]
    gap = top_two_gap(row_after(engine.target, text))
    difference = width_difference_on(engine, text)
    names = [
        repr(engine.vocabulary.text(said[index])) if index < len(said) else "the end"
        for said in (ours.tokens, theirs.tokens)
    ]
    details = (
        f"token {index + 1}: {names[0]} for {names[1]}; gap {gap:.4f} here, {theirs.gaps[index]:.4f} there"
    )
    return Difference(NEAR_TIE if gap <= 2 * difference else UNEXPLAINED, f"{details}; D = {difference:.2g}")


def markdown(turns: Sequence[Turn]) -> str:
    """How many replies are the same, and every difference."""
    lines = ["| | turns | " + " | ".join(f"{side}, the same" for side in SIDES) + " |", "|---|---|---|---|"]
    for kind in (*dict.fromkeys(turn.kind for turn in turns), None):
        some = [turn for turn in turns if kind in (turn.kind, None)]
        same = (sum(not t.differences for t in some if t.side == side) for side in SIDES)
        lines.append(f"| {kind or 'all'} | {len(some) // len(SIDES)} | {' | '.join(map(str, same))} |")
    told = [turn.told for turn in turns if turn.side == "drafting"]
    drafted, accepted = sum(t.drafted for t in told), sum(t.accepted for t in told)
    lines += [
        "",
        f"{sum(len(t.tokens) for t in told)} tokens a side; {drafted} drafted, {accepted} of them kept.",
    ]
    reasons = Counter((d.reason, t.side) for t in turns for d in t.differences)
    lines += ["", "| reason | " + " | ".join(SIDES) + " |", "|---|---|---|"]
    for reason in sorted({reason for reason, _ in reasons}):
        lines.append(f"| {reason} | " + " | ".join(str(reasons[reason, side]) for side in SIDES) + " |")
    lines += ["", "| chat, turn | side | why | |", "|---|---|---|---|"]
    for t in turns:
        for d in t.differences:
            details = d.details.replace("|", "\\|")
            lines.append(f"| {t.chat}, {t.turn} | {t.side} | {d.reason} | {details} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
