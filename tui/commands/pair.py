"""Commands about pairs: choose, fetch and load one, and start the engine again."""

import asyncio
from dataclasses import replace

from localspec.errors import NotOnDisk

from .protocol import Chat


async def pair(chat: Chat, argument: str) -> None:
    """Load a pair that is here; the one that is loaded goes only once that is known."""
    if not argument:
        await chat.choose_pair()
        return
    engine = chat.state.engine
    try:
        await asyncio.to_thread(chat.state.setup.find_pair, argument)
    except NotOnDisk as error:
        await offer_pull(chat, argument, str(error), error.hint)
        return
    engine.load(replace(engine.load_request, pair=argument, target=None, draft=None))
    chat.refresh_state()


async def pull(chat: Chat, argument: str) -> None:
    engine, downloads = chat.state.engine, chat.state.downloads
    name = argument or engine.wanted or engine.pair_name
    if not name:
        chat.notify("Which pair? ^o lists them.", severity="warning")
    elif downloads.progress is not None:
        chat.notify(f"{downloads.progress.name} is being fetched; one pair at a time.")
    else:
        downloads.pull(name)


async def restart(chat: Chat, _argument: str) -> None:
    await chat.end_reply("died")
    chat.state.engine.reload()
    chat.refresh_state()


async def offer_pull(chat: Chat, name: str, what: str, hint: str) -> None:
    """A pair that was asked for is known but not here: say how to fetch it, or do."""
    chat.state.engine.wanted = name
    await chat.remark(what, f"{hint}\nhere: /pull fetches it, ^o lists all pairs", "error")
    if chat.state.setup.pull:
        await chat.run_command("pull")
