"""What the engine reports, and what the chat does about it: one function each, given the chat screen."""

from typing import TYPE_CHECKING

from localspec.engine.messages import (
    Compared,
    Died,
    Failure,
    ProposalText,
    Pulled,
    Ready,
    Report,
    Stage,
    Stopped,
)
from localspec.events import Cycle, Finished, Notice, Piece, Prefill, Reply, Started

if TYPE_CHECKING:
    from .screens.chat import ChatScreen


async def receive(screen: "ChatScreen", report: Report) -> None:
    """Take in a report of the engine that holds the pair."""
    match report:
        case Started() | Prefill() | Cycle() | Piece() | ProposalText():
            screen.app.conductor.absorb(report)
        case Stage():
            screen.app.conductor.stage = report.text
        case Ready():
            await _take_ready(screen, report)
        case Finished():
            await _take_reply(screen, report.reply)
        case Compared():
            _take_comparison(screen, report)
        case Stopped():
            screen.app.conductor.end_turn()
            screen.notify("The comparison was stopped.")
        case Failure():
            await _take_failure(screen, report)
        case Died():
            await _take_death(screen, report)
        case Notice():
            await screen.remark(report.text)
        case _:
            pass  # the hello; pairs and pulls come from the librarian's process


async def tell_of_pull(screen: "ChatScreen", news: Pulled | Failure) -> None:
    """How a pull ended."""
    match news:
        case Pulled(complete=True):
            await screen.remark(f"{news.name} is on disk.", f"/pair {news.name} loads it.")
            await _load_if_awaited(screen, news.name)
        case Pulled():
            await screen.remark(
                f"Stopped fetching {news.name}.", "What came is kept; pulling again goes on from there."
            )
        case Failure():
            await screen.remark(news.what, news.hint, "error")


async def _take_ready(screen: "ChatScreen", ready: Ready) -> None:
    screen.app.conductor.took(ready)
    await screen.take_up_with_pair()
    screen.refresh_state()


async def _take_reply(screen: "ChatScreen", reply: Reply) -> None:
    if not screen.app.conductor.comparing:  # then it is one of two, and no message
        await screen.exchange.end(reply.finish_reason, reply)


async def _take_failure(screen: "ChatScreen", failure: Failure) -> None:
    conductor = screen.app.conductor
    if conductor.loading and not failure.serial:  # one with a serial is of a question for the pair before
        await _tell_of_failed_load(screen, failure)
    elif conductor.busy:
        await screen.exchange.end("failed")
        await screen.remark(failure.what, failure.hint, "error")
    screen.refresh_state()


async def _tell_of_failed_load(screen: "ChatScreen", failure: Failure) -> None:
    conductor, failed = screen.app.conductor, screen.app.conductor.pair_name
    conductor.took(failure)
    if failure.error == "PairNotOnDisk":
        await tell_of_missing(screen, failed, failure.what, failure.hint)
    else:
        await screen.remark(failure.what, failure.hint, "error")
    if conductor.can_go_back:
        await screen.remark(f"Back to {conductor.pair_name}.")
        await screen.run_command("restart")


async def tell_of_missing(screen: "ChatScreen", name: str, what: str, hint: str) -> None:
    """A pair that was asked for is known but not here: say how to fetch it, or do."""
    screen.app.conductor.wanted = name
    await screen.remark(what, f"{hint}\nhere: /pull fetches it, ^o lists all pairs", "error")
    if screen.app.setup.pull:
        await screen.run_command("pull")


async def _take_death(screen: "ChatScreen", death: Died) -> None:
    """What was written stays and is saved; the next message or /restart brings the engine back."""
    screen.app.conductor.took(death)
    hint = f"{death.hint}\nnothing is lost: /restart starts it again, and so does the next message"
    await screen.exchange.end("died")
    await screen.remark(death.what, hint.strip(), "error")
    screen.refresh_state()


def _take_comparison(screen: "ChatScreen", compared: Compared) -> None:
    from .screens.compare import CompareScreen

    screen.app.conductor.end_comparison(compared)
    screen.refresh_state()
    screen.app.push_screen(CompareScreen(compared))


async def _load_if_awaited(screen: "ChatScreen", name: str) -> None:
    """A pair that was asked for and was not here is loaded once it is."""
    conductor = screen.app.conductor
    if conductor.wanted == name and not conductor.busy:
        await screen.run_command("pair", name)
