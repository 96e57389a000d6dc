"""Python: requests for short functions, and the standard library of the Python that runs this script."""

# ruff: noqa: E501 - tables of text read best with a row in a line

import ast
import re
import sysconfig
from functools import cache
from pathlib import Path
from random import Random

from .spin import Turn, pick, spin, typed, words

MODULES = words("""
abc argparse base64 bisect calendar cmd code codecs collections/__init__ colorsys configparser contextlib copy csv
dataclasses difflib dis enum filecmp fileinput fnmatch fractions functools genericpath getopt getpass glob gzip hashlib
heapq html/__init__ html/parser inspect io json/__init__ json/decoder json/encoder json/scanner keyword linecache
numbers operator pathlib pickle pkgutil posixpath pprint queue random re/__init__ reprlib sched selectors shelve shlex
shutil signal socket socketserver stat statistics string struct subprocess tempfile textwrap threading timeit token
tokenize traceback types typing urllib/parse uuid warnings wave weakref zipfile
""")
RENAMES = {
    "text": ("string", "s", "word"),
    "numbers": ("values", "nums"),
    "items": ("values", "elements"),
    "result": ("output",),
    "n": ("number",),
}
ASKS = (
    "write a {python |}function that {x}",
    "{please |}write a {python |}function that {x}",
    "can you write a {python |}function that {x}",
    "give me a {python |}function that {x}",
    "show me a {python |}function that {x}",
    "i need a {python |}function that {x}",
    "python function that {x}",
)
SHORT_ASKS = ("{y} in python", "python {y}", "{y}", "show me {y} in python", "how do i {y} in python", "python code: {y}",
              "write {y} in python", "code for {y}", "python code for {y}")  # fmt: skip
LEADS = (
    "{Here is|This is} a {|short |small |simple }function that <x>:",
    "{Sure|Certainly|Gladly|Of course}! {This|The following} function <x>:",
    "{This one|My version|The code below} <x>:",
)
CLASS_LEADS = (
    "{Here is|This is} a {short|small|simple} example:",
    "{Sure|Certainly|Gladly}, {here is|this is} an example:",
)
TAILS = ("", "", "", "\n\nTry it with a few values of your own.")
STDLIB_ASKS = (
    "show me code like `{m}.{f}`",
    "show me `{m}.{f}`",
    "how is {m}.{f} written",
    "show me the source of {m}.{f}",
    "what does the code of {m}.{f} look like",
)
MODULE_ASKS = (
    "show me some code from the {m} module",
    "show me code from {m}",
    "give me an example from the {m} module",
    "some code from the standard library please",
    "show me some standard library code",
)


@cache
def functions() -> list[tuple[str, list[str], str]]:
    """Every entry of functions.txt: what it does, short names for it, its source."""
    found = []
    for block in (Path(__file__).parent / "functions.txt").read_text(encoding="utf-8").split("===\n"):
        head, source = block.strip().split("\n", 1)
        does, *names = head.split("; ")
        ast.parse(source)
        found.append((does, names, source))
    return found


def renamed(source: str, rng: Random) -> str:
    """The same code with one variable called something else."""
    names = [name for name in RENAMES if re.search(rf"\b{name}\b", source)]
    if not names:
        return source
    old = rng.choice(names)
    new = rng.choice(RENAMES[old])
    return source if re.search(rf"\b{new}\b", source) else re.sub(rf"\b{old}\b", new, source)


def fenced(source: str) -> str:
    """Code as it stands in a reply."""
    return f"```python\n{source}\n```"


def requests(rng: Random) -> list[Turn]:
    """Ask for a function; sometimes ask what it does, or for one more."""
    does, names, source = rng.choice(functions())
    whole = rng.random() < 0.5 or not names
    if does.startswith(("is a ", "is an ")) and whole:
        ask = f"write {does[3:]}" if rng.random() < 0.5 else f"show me {does[3:]} in python"
    else:
        ask = (
            rng.choice(ASKS).replace("{x}", does)
            if whole
            else rng.choice(SHORT_ASKS).replace("{y}", rng.choice(names))
        )
    leads = CLASS_LEADS if does.startswith("is ") else LEADS
    code = renamed(source, rng) if rng.random() < 0.1 else source
    reply = f"{spin(pick(leads, rng), rng).replace('<x>', does)}\n\n{fenced(code)}{rng.choice(TAILS) if rng.random() < 0.3 else ''}"
    turns = [Turn(typed(spin(ask, rng, 0.0), rng), reply)]
    if rng.random() < 0.12 and not does.startswith("is "):
        ask = rng.choice(
            (
                "what does it do",
                "explain it",
                "explain the code",
                "what does this function do",
                "how does it work",
            )
        )
        turns.append(Turn(typed(ask, rng), f"It {does}. {docstring(source)}"))
    return turns


def docstring(source: str) -> str:
    """The first docstring of a source, as a sentence."""
    found = re.search(r'"""(.*?)"""', source)
    return f"Its docstring says: {found[1]}" if found else ""


@cache
def library() -> dict[str, str]:
    """The source of each standard library module that is used, by its dotted name."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = {name: root / f"{name}.py" for name in MODULES}
    return {name.replace("/__init__", "").replace("/", "."): path.read_text(encoding="utf-8")
            for name, path in paths.items() if path.exists()}  # fmt: skip


@cache
def library_functions() -> list[tuple[str, str, str]]:
    """Short public functions of those modules: module, name, source."""
    found = []
    for module, source in library().items():
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                text = ast.get_source_segment(source, node) or ""
                if 3 <= text.count("\n") <= 14 and len(text) < 600:
                    found.append((module, node.name, text))
    return found


def library_requests(rng: Random) -> list[Turn]:
    """Ask for a function of the standard library, by name or at random."""
    module, name, source = rng.choice(library_functions())
    ask = (
        rng.choice(STDLIB_ASKS if rng.random() < 0.6 else MODULE_ASKS)
        .replace("{m}", module)
        .replace("{f}", name)
    )
    return [Turn(typed(ask, rng), f"This is `{module}.{name}`:\n\n{fenced(source)}")]


def library_text(rng: Random) -> str:
    """A piece of a standard library module, from the start of a definition."""
    source = rng.choice(list(library().values()))
    starts = [
        found.start() for found in re.finditer(r"^(def|class|    def|import|from)\b", source, re.M)
    ] or [0]
    start = rng.choice(starts)
    return source[start : start + 1500]
