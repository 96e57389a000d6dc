"""The real chat on a scripted engine process, for real terminals: `python scripted_chat.py FOLDER [NAME|--plain]`."""

import sys
from pathlib import Path

from scripted_pairs import ScriptedPairs, called

from localspec.conversations import conversations
from localspec.engine.client import EngineProcess
from localspec.engine.messages import LoadPair

COMMAND = (sys.executable, str(Path(__file__).parent / "scripted_engine.py"))


def main() -> None:
    folder = Path(sys.argv[1])
    engine = EngineProcess(COMMAND)
    engine.start()
    load = LoadPair(called())
    engine.send(load)
    from localspec.tui.state.chat import Setup

    if "--plain" in sys.argv:
        from localspec.tui.plain import chat
    else:
        from localspec.tui.app import chat
    resumed = None
    if len(sys.argv) > 2 and "--plain" not in sys.argv:
        resumed = conversations.resume(folder, conversations.find(folder, sys.argv[2]))
    sys.exit(chat(Setup(engine, folder, load, resumed=resumed, downloads=ScriptedPairs())))


if __name__ == "__main__":
    main()
