"""The rooms keep to their import directions, and nothing heavy is loaded before it is needed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# What each room may import from localspec, besides itself.
BASE = {"errors", "events", "files", "passes", "stats", "timing", "typed_json"}
ALGORITHM = BASE | {"speculation"}
ROOMS = {
    "errors": set(),
    "timing": set(),
    "stats": {"events", "timing"},
    "events": {"stats"},
    "files": {"errors"},
    "locks": set(),
    "passes": set(),
    "terminal_text": set(),
    "typed_json": set(),
    "settings": {"errors", "files"},
    "health": {"demo", "errors", "files", "settings", "typed_json"},
    "llama": {"errors", "health", "passes", "terminal_text"},
    "speculation": BASE,
    "drafters": ALGORITHM,
    "structure": ALGORITHM | {"drafters"},
    "chat": ALGORITHM | {"drafters", "structure"},
    "models": {"errors", "events", "files", "health", "locks", "settings", "terminal_text", "typed_json"},
    "demo": set(),
    "conversations": {"errors", "files", "locks"},
    "drafting": ALGORITHM | {"chat", "drafters", "llama", "models", "settings", "structure"},
    "compose": ALGORITHM | {"chat", "demo", "drafters", "drafting", "health", "llama", "models"},
}
HEAVY = ("llama_cpp", "llguidance", "textual", "huggingface_hub", "numpy", "jinja2")


def python_files():
    return sorted([*ROOT.glob("localspec/**/*.py"), *ROOT.glob("tui/**/*.py")])


def room_of(path):
    parts = path.relative_to(ROOT).parts
    return "tui" if parts[0] == "tui" else parts[1].removesuffix(".py")


def imported(path):
    """Every module name that a file imports, wherever the import stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (
                [f"localspec.{alias.name}" for alias in node.names]
                if node.module == "localspec"
                else [node.module]
            )


def rooms_imported(path):
    return {name.split(".")[1] for name in imported(path) if name.startswith("localspec.")} - {room_of(path)}


@pytest.mark.parametrize("path", python_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path):
    room = room_of(path)
    if room in ROOMS:
        assert rooms_imported(path) <= ROOMS[room], f"{room} imports what is above it"


def test_only_the_c_boundary_imports_llama_cpp():
    offenders = [
        p
        for p in python_files()
        if room_of(p) != "llama" and any(m.startswith("llama_cpp") for m in imported(p))
    ]
    assert offenders == []


def test_the_terminal_ui_touches_neither_llama_nor_the_algorithm():
    for path in python_files():
        if room_of(path) == "tui":
            assert not rooms_imported(path) & {"llama", "speculation", "drafters"}, path


def modules_after(code):
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint('\\n'.join(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return set(done.stdout.split())


def test_importing_localspec_loads_nothing_heavy():
    assert not modules_after("import localspec") & set(HEAVY)


def test_help_loads_nothing_heavy():
    code = (
        "import localspec.cli as c, contextlib, io\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        "    c.main(['--help'])"
    )
    assert not modules_after(code) & set(HEAVY)


def test_what_chat_checks_before_its_screen_opens_loads_nothing_heavy():
    assert not modules_after("import localspec.chat.options, localspec.cli.chat") & set(HEAVY)


def test_the_top_level_tui_folder_is_only_known_as_localspec_tui():
    assert "tui" not in modules_after("import localspec.tui")


def test_files_and_functions_stay_readable():
    """Files of at most 400 lines, functions of at most 60."""
    for path in python_files():
        source = path.read_text(encoding="utf-8")
        assert len(source.splitlines()) <= 400, path
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno - node.lineno < 60, f"{path}:{node.lineno} {node.name}"
