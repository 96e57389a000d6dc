"""The rooms keep to their import directions, and nothing heavy is loaded before it is needed."""

import ast
import functools
import re
import subprocess
import sys

import pytest

from localspec.llama import lifetimes
from tests.sources import ROOT, SOURCES, nodes_of, text_of

# What each room may import from localspec besides itself, those below first.
ROOMS = {
    "demo": "",
    "errors": "",
    "display": "errors",
    "files": "errors",
    "options": "errors files",
    "events": "",
    "stopping": "errors",
    "machine": "errors files options",
    "gguf": "display errors files",
    "models": "demo display errors files gguf options",
    "sampler": "errors options",
    "caches": "files sampler",
    "algorithm": "errors events sampler stopping",
    "llama": "algorithm caches demo display errors files gguf machine options sampler stopping",
    "control": "algorithm events",
    "drafters": "algorithm control errors events gguf sampler",
    "structure": "algorithm errors events files sampler",
    "prompt": "algorithm errors events structure",
    "conversations": "caches errors events files options prompt",
    "chat": "algorithm control errors events options prompt sampler stopping structure",
    "loading": (
        "algorithm caches chat control conversations display drafters errors files gguf "
        "llama machine models options prompt sampler stopping"
    ),
    "embedding": "errors files gguf llama machine models options stopping",
    "api": "chat errors events files gguf llama loading machine models options prompt stopping",
    "measure": "algorithm api chat control display errors events options prompt sampler",
    "fit": "algorithm chat errors files gguf llama measure models sampler",
    "engine": "algorithm api caches chat embedding errors events llama loading machine measure models prompt stopping",
    "tui": "control conversations display engine errors events files loading measure models options prompt",
    "serve": "control engine errors events models options prompt",
    "cli": (
        "api caches chat conversations demo display engine errors events files fit gguf llama loading machine "
        "measure models options prompt sampler serve tui"
    ),
    "__init__": "api embedding errors events measure",
    "__main__": "cli",
}
ROOMS = {room: {*names.split()} for room, names in ROOMS.items()}
# The rooms of tui/, each of which may import those before it; the app is what stands in no folder.
TUI_ROOMS = ("state", "status", "commands", "plain", "widgets", "dialogs", "lists", "screen", "app")
# The lines of each room when they were last recorded. A change of SLACK lines needs no word about them.
SLACK = 30
LINES = {
    "demo": 11,
    "errors": 78,
    "display": 301,
    "files": 345,
    "options": 389,
    "events": 393,
    "stopping": 179,
    "machine": 440,
    "gguf": 1329,
    "sampler": 747,
    "caches": 567,
    "algorithm": 1299,
    "llama": 3570,
    "control": 962,
    "drafters": 1458,
    "structure": 2190,
    "prompt": 2057,
    "conversations": 465,
    "chat": 2069,
    "models": 2310,
    "loading": 1782,
    "embedding": 268,
    "api": 241,
    "measure": 1440,
    "fit": 878,
    "engine": 1107,
    "tui": 4189,
    "serve": 3282,
    "cli": 2979,
    "__init__": 93,
    "__main__": 7,
}
MOST_LINES = 37_440  # of all rooms: one grows only where another shrinks
MOST_FILES = 205
HEAVY = ("llama_cpp", "llguidance", "textual", "huggingface_hub", "numpy", "jinja2", "starlette")
HEAVY += ("uvicorn", "gguf")


def room_of(path):
    parts = path.relative_to(ROOT).parts
    return "tui" if parts[0] == "tui" else parts[1].removesuffix(".py")


def module_of(path):
    """The name under which a file is imported; tui/ is localspec.tui."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "localspec" else ("localspec", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_of(path): path for path in SOURCES if path != ROOT / "localspec" / "tui.py"}


@functools.cache
def imported(path):
    """Every module that a file imports: relative imports too, and wherever the import stands."""
    found = set()
    package = module_of(path) if path.name == "__init__.py" else module_of(path).rpartition(".")[0]
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *filter(None, [node.module])])
            names = {f"{source}.{alias.name}" for alias in node.names}
            modules = names & FILES.keys() if source != "localspec" else names
            found |= modules
            if modules != names:
                found.add(source)
    return found


def rooms_imported(path):
    return {name.split(".")[1] for name in imported(path) if name.startswith("localspec.")} - {room_of(path)}


def test_imports_point_one_way():
    above = {str(path.relative_to(ROOT)): rooms_imported(path) - ROOMS[room_of(path)] for path in SOURCES}
    assert {path: rooms for path, rooms in above.items() if rooms} == {}, (
        "a file imports what is above its room"
    )


def test_every_direction_that_is_permitted_is_used():
    used = {room: set() for room in ROOMS}
    for path in SOURCES:
        used[room_of(path)] |= rooms_imported(path)
    assert {room: ROOMS[room] - used[room] for room in ROOMS if ROOMS[room] - used[room]} == {}


def test_every_room_stands_on_those_below_it():
    known = set()
    for room, imports in ROOMS.items():
        assert imports <= known, room
        known.add(room)


def test_only_the_c_boundary_imports_llama_cpp():
    offenders = [
        p for p in SOURCES if room_of(p) != "llama" and any(m.startswith("llama_cpp") for m in imported(p))
    ]
    assert offenders == []


def test_the_rooms_of_the_terminal_ui_know_those_below():
    above = {}
    for path in sorted(ROOT.glob("tui/**/*.py")):
        permitted = {*TUI_ROOMS[: TUI_ROOMS.index(tui_room_of(module_of(path))) + 1]}
        known = {tui_room_of(name) for name in imported(path) if name.startswith("localspec.tui.")}
        above[str(path.relative_to(ROOT))] = known - permitted
    assert {path: rooms for path, rooms in above.items() if rooms} == {}, (
        "a file imports what is above its room"
    )


def tui_room_of(module):
    """The room of a module of the terminal UI; what stands in none is the app."""
    parts = module.split(".")
    return parts[2] if len(parts) > 2 and parts[2] in TUI_ROOMS else "app"


@pytest.mark.parametrize("room", ["state", "status", "commands", "plain"])
def test_what_the_chat_knows_says_and_can_do_needs_no_screen(room):
    for path in (path for name, path in FILES.items() if f"{name}.".startswith(f"localspec.tui.{room}.")):
        assert not any(name.split(".")[0] in ("textual", "rich") for name in imported(path)), path


def test_no_files_import_each_other_in_a_circle():
    """Imports for types alone count as well."""
    assert not circles({name: imported(path) & FILES.keys() for name, path in FILES.items()})


def test_a_circle_is_found_wherever_it_begins():
    imports = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"e", "a"}}
    assert circles(imports) == {frozenset("bc")}


def circles(imports):
    """Sets of modules that reach each other by imports."""
    reached = {name: set(names) for name, names in imports.items()}
    for through in imports:
        for names in reached.values():
            if through in names:
                names |= reached[through]
    found = {frozenset(other for other in reached[name] if name in reached[other]) for name in imports}
    return {circle for circle in found if len(circle) > 1}


def modules_after(code):
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint('\\n'.join(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return set(done.stdout.split())


@pytest.mark.process
def test_importing_localspec_loads_nothing_heavy():
    assert not modules_after("import localspec") & set(HEAVY)


@pytest.mark.process
def test_help_loads_nothing_heavy():
    code = (
        "import localspec.cli as c, contextlib, io\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        "    c.main(['--help'])"
    )
    assert not modules_after(code) & set(HEAVY)


@pytest.mark.process
def test_what_run_and_chat_do_before_the_engine_answers_loads_nothing_heavy():
    code = "import localspec.chat.request, localspec.cli.commands.chat, localspec.cli.commands.run"
    assert not modules_after(code) & set(HEAVY)


@pytest.mark.process
@pytest.mark.parametrize(
    "code",
    [
        "from localspec.cli import main\nassert main(['run', 'Hi', '--pair', 'demo', '-n', '4']) == 0",
        "from localspec import api\nwith api.load('demo') as session: session.run('Hi', max_tokens=4)\n"
        "import localspec.engine.server, localspec.engine.requests, localspec.serve.server",
        "import localspec.tui.app, localspec.tui.screen, localspec.tui.state.engine, localspec.tui.status",
    ],
    ids=["run", "engine", "chat"],
)
@pytest.mark.usefixtures("home")
def test_a_reply_loads_nothing_that_measures(code):
    assert not {
        name for name in modules_after(code) if name.startswith(("localspec.measure", "localspec.fit"))
    }


@pytest.mark.process
def test_the_top_level_tui_folder_is_only_known_as_localspec_tui():
    assert "tui" not in modules_after("import localspec.tui")


def test_files_and_functions_stay_readable():
    """Files of at most 600 lines, functions of at most 60."""
    for path in SOURCES:
        assert len(text_of(path).splitlines()) <= 600, path
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno - node.lineno < 60, f"{path}:{node.lineno} {node.name}"


def lines_of_rooms():
    """The lines of each room, in the order of the table."""
    counts = dict.fromkeys(LINES, 0)
    for path in SOURCES:
        counts[room_of(path)] += len(text_of(path).splitlines())
    return counts


def test_at_exit_a_thread_in_any_room_that_calls_llama_cpp_is_waited_for():
    """The program's own threads end by themselves: those of the commands, of the engine and of the interface."""
    callers = {room_of(path) for path in SOURCES if "from localspec.llama" in text_of(path)}
    assert callers - {"api", "cli", "engine", "fit"} <= {*lifetimes._USERS}


def test_no_room_grows_beyond_its_lines():
    more = {room: lines - LINES[room] for room, lines in lines_of_rooms().items()}
    grown = {room: lines for room, lines in more.items() if lines > SLACK}
    assert grown == {}, (
        f"these rooms grew by more than {SLACK} lines: make them smaller, or raise their figures in LINES to what "
        "`python -m tests.test_architecture` prints and say in the commit what the lines are for"
    )


def test_the_house_stays_within_its_lines_and_files():
    assert sum(LINES.values()) <= MOST_LINES
    assert len(SOURCES) <= MOST_FILES


def test_no_class_name_stands_twice():
    """A name that two rooms use for two things cannot be searched for."""
    places = {}
    for path in SOURCES:
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_the_page_of_the_rooms_names_files_that_exist():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[\w-]+/)*[\w-]+\.(?:py|toml|md)|(?:[\w-]+/)+)`", page))
    there = [name for name in named if any((ROOT / at / name).exists() for at in ("", "localspec"))]
    assert sorted(named - set(there) - {"config.toml"}) == []


def test_the_page_of_the_rooms_says_what_each_stands_on():
    """The nearest rooms: those that no other room which it imports stands on."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = [row.split("|") for row in page.split("## The way")[0].splitlines() if row.startswith("| `")]
    reported = {
        name: set(re.findall(r"`(\w+)`", row[3])) for row in rows for name in re.findall(r"`(\w+)/?`", row[1])
    }
    small = set(re.findall(r"`(\w+)`", rows[0][1]))
    above = {room: imports - small for room, imports in ROOMS.items() if not room.startswith("__")}
    reached = {room: set[str]() for room in above}
    for room, imports in above.items():  # those below come first
        reached[room] = imports.union(*(reached[name] for name in imports))
    nearest = {
        room: {name for name in imports if not any(name in reached[other] for other in imports)}
        for room, imports in above.items()
    }
    assert reported == nearest


if __name__ == "__main__":
    for name, count in lines_of_rooms().items():
        print(f"{name:12}{count:7,} of {LINES[name]:6,}")
    print(f"{'sum':12}{sum(lines_of_rooms().values()):7,} of {MOST_LINES:6,} in {len(SOURCES)} files")
