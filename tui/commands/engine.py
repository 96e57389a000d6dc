"""Commands about pairs, and the chat's reactions to the engine's reports."""

import asyncio
from dataclasses import replace

from localspec import events
from localspec.engine import messages
from localspec.errors import NotOnDisk

from .chat import Chat, Refusal


async def pair(chat: Chat, argument: str) -> None:
    """Load a pair that is on disk; the loaded one is unloaded only then."""
    if not argument:
        await chat.choose_pair()
        return
    engine = chat.state.engine
    try:
        await asyncio.to_thread(chat.state.downloads.find, argument)
    except NotOnDisk as error:
        await offer_pull(chat, argument, str(error), error.hint)
        return
    engine.load(replace(engine.load_request, pair=argument, target=None, draft=None))
    chat.refresh_state()


async def pull(chat: Chat, argument: str) -> None:
    engine, downloads = chat.state.engine, chat.state.downloads
    name = argument or engine.wanted or engine.pair_name
    if not name:
        raise Refusal("Which pair? ^o lists them.")
    if downloads.progress is not None:
        raise Refusal(f"{downloads.progress.name} is being fetched; one pair at a time.")
    downloads.pull(name)


async def restart(chat: Chat, _argument: str) -> None:
    await chat.end_reply("died")
    chat.state.engine.reload()
    chat.refresh_state()


async def offer_pull(chat: Chat, name: str, what: str, hint: str) -> None:
    """Say how to fetch a pair that is not on disk, or fetch it."""
    chat.state.engine.wanted = name
    await chat.notice(what, f"{hint}\nhere: /pull fetches it, ^o lists all pairs", "error")
    if chat.state.setup.pull:
        await chat.attempt(pull)


async def receive_all(chat: Chat) -> None:
    """Handle what the engine, and the threads of the downloads, have reported since the last call."""
    for report in chat.state.engine.client.drain():
        await receive(chat, report)
    for name, failure in chat.state.downloads.take_ended():
        await receive_end(chat, name, failure)


async def receive(chat: Chat, report: messages.Report) -> None:
    engine = chat.state.engine
    match report:
        case events.Notice():
            await chat.notice(report.text)
        case events.Finished():
            if not engine.comparing:  # then it is one of two, and no message
                await chat.end_reply(report.reply.finish_reason, report.reply)
        case messages.LoadStage():
            engine.stage = report.text
        case messages.Ready():
            engine.took(report)
            await chat.continue_with_pair()
            chat.refresh_state()
        case messages.Compared():
            engine.end_reply()
            engine.plain_speed = report.plain.stats.tokens_per_second or engine.plain_speed
            chat.refresh_state()
            chat.show_comparison(report)
        case messages.Stopped():
            engine.end_reply()
            chat.notify("The comparison was stopped.")
        case messages.Failure():
            await _take_failure(chat, report)
        case messages.Died():
            await _take_death(chat, report)
        case events.Started() | events.Prefill() | events.Cycle() | events.Piece() | messages.ProposalText():
            engine.absorb(report)
        case _:
            pass  # the hello


async def receive_end(chat: Chat, name: str, failure: messages.Failure | None) -> None:
    """Tell how a pull ended, and load the pair if the user waits for it."""
    if failure is None:
        await chat.notice(f"{name} is on disk.", f"/pair {name} loads it.")
        if chat.state.engine.wanted == name and not chat.state.engine.busy:
            await chat.attempt(pair, name)
    elif failure.error == "PullCancelled":
        what = f"Stopped fetching {name}."
        await chat.notice(what, "The part on disk is kept; the next pull resumes there.")
    else:
        await chat.notice(failure.what, failure.hint, "error")


async def _take_failure(chat: Chat, failure: messages.Failure) -> None:
    engine = chat.state.engine
    if engine.loading and not failure.serial:  # one with a serial is of a question for the pair before
        failed = engine.pair_name
        engine.took(failure)
        if failure.error == "PairNotOnDisk":
            await offer_pull(chat, failed, failure.what, failure.hint)
        else:
            await chat.notice(failure.what, failure.hint, "error")
        if engine.can_go_back:
            await chat.notice(f"Back to {engine.pair_name}.")
            await chat.attempt(restart)
    elif engine.busy:
        await chat.end_reply("failed")
        await chat.notice(failure.what, failure.hint, "error")
    chat.refresh_state()


async def _take_death(chat: Chat, death: messages.Died) -> None:
    """Save the text so far; the next message or /restart starts the engine again."""
    chat.state.engine.took(death)
    hint = f"{death.hint}\nnothing is lost: /restart starts it again, and so does the next message"
    await chat.end_reply("died")
    await chat.notice(death.what, hint.strip(), "error")
    chat.refresh_state()
