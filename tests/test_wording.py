"""Words are plain, every error has a hint, and the public interface explains every name."""

import ast
import io
import re
import tokenize
from functools import cache
from importlib import import_module
from pathlib import Path
from statistics import mean

import localspec
from localspec import errors
from localspec.cli.commands import HELP
from tests.sources import ROOT, SOURCES, last_name, nodes_of, text_of, tree_of

FIRST_WORDS = "of|so|what|that|who|whose|whoever|whatever|those|which"
VERBS = "told|heard|said|stands|stood"  # of people, not of data
NAMELESS = {"found", "each", "known", "given", "wanted", "told", "said"}  # words for "it", not for a result
OUTSIDE_THE_TREE = {"Failure", "Died"}  # errors on their way from the engine process
INTERFACE = {ROOT / (home.replace(".", "/") + ".py") for home in localspec.HOMES.values()}
INTERFACE |= {ROOT / "localspec" / name for name in ("errors.py", "chat/session.py", "chat/request.py")}


def error_names():
    """The classes of the tree, and those that other files derive from them."""
    known = {name for name, value in vars(errors).items() if isinstance(value, type)} | OUTSIDE_THE_TREE
    for path in SOURCES:
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef) and {last_name(base) for base in node.bases} & known:
                known.add(node.name)
    return known


def texts(node):
    """What is written out in an expression, with {} for what is not."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
        return ["".join(parts)]
    if isinstance(node, ast.IfExp):
        return [*texts(node.body), *texts(node.orelse)]
    if isinstance(node, ast.BinOp):
        return texts(node.left)
    return []


@cache
def messages():
    """Every message and hint with the place where it is made."""
    return list(found_messages())


def found_messages():
    known = error_names()
    for path in SOURCES:
        assigned = {
            node.targets[0].id: node.value
            for node in nodes_of(path)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        for node in nodes_of(path):
            name = last_name(node.func) if isinstance(node, ast.Call) else ""
            if name in known:
                given = [*node.args, *(k.value for k in node.keywords if k.arg == "hint")]
                given = given[1:] if name == "Failure" else given  # its first field is the class of the error
                for value in given:
                    value = assigned.get(value.id, value) if isinstance(value, ast.Name) else value
                    yield from ((f"{path.relative_to(ROOT)}:{node.lineno}", text) for text in texts(value))


def test_no_message_sends_the_reader_to_a_file_that_an_installed_localspec_lacks():
    assert [m for m in messages() if "docs/" in m[1] or ".md" in m[1]] == []


def docstrings(path):
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return [text for node in nodes_of(path) if isinstance(node, kinds) and (text := ast.get_docstring(node))]


def comments(text):
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [token.string.lstrip("#: ") for token in tokens if token.type == tokenize.COMMENT]


def test_sentences_name_their_subject():
    """No genitive fragment, no headless relative, and no data that is told, said, heard or stands somewhere."""
    habits = re.compile(rf"(?i:{FIRST_WORDS})\b|.*\b(?:{VERBS})\b", re.DOTALL)
    offenders = []
    for path in SOURCES:
        sentences = (*docstrings(path), *comments(text_of(path)))
        offenders += [f"{path.relative_to(ROOT)}: {found}" for found in sentences if habits.match(found)]
    assert offenders == []


def test_a_result_has_the_name_of_what_it_is():
    offenders = set()
    for path in SOURCES:
        for function in [n for n in nodes_of(path) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]:
            returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
            names = set().union(*map(names_of_result, returned))
            names -= {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}
            offenders |= {f"{path.name}:{function.lineno} {name}" for name in names & NAMELESS}
    assert offenders == set()


def names_of_result(value):
    """The names in a returned expression whose values the result holds, as in `tuple(found)` or {**found}."""
    match value:
        case ast.Name():
            return {value.id}
        case ast.Tuple() | ast.List():
            parts = value.elts
        case ast.Starred():
            parts = [value.value]
        case ast.Dict():
            parts = [part for key, part in zip(value.keys, value.values, strict=True) if key is None]
        case ast.BinOp():
            parts = [value.left, value.right]
        case ast.IfExp():
            parts = [value.body, value.orelse]
        case ast.Call(func=ast.Name(id="tuple" | "replace")):
            parts = value.args[:1]
        case _:
            parts = []
    return set().union(*map(names_of_result, parts))


def test_the_sentences_of_help_and_messages_are_short():
    described = [import_module(f"localspec.cli.commands.{name}").__doc__ for name in HELP]
    texts = [text for text in (*described, *(text for _, text in messages())) if text]
    long = [sentence for text in texts for sentence in sentences(text) if len(sentence.split()) > 25]
    assert long == []
    assert mean(len(sentence.split()) for text in described for sentence in sentences(text)) <= 15


def sentences(text):
    return [" ".join(part.split()) for part in re.split(r"(?<=[.;!?])\s", text) if part.strip()]


def test_every_error_says_what_to_do():
    missing = []
    for path in SOURCES:
        for node in nodes_of(path):
            raised = node.exc if isinstance(node, ast.Raise) else None
            if not isinstance(raised, ast.Call) or last_name(raised.func) not in vars(errors):
                continue
            if not any(keyword.arg == "hint" for keyword in raised.keywords):
                missing.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert missing == []


def test_every_public_name_is_explained():
    for path in sorted(INTERFACE):
        named = public(tree_of(path).body)
        for node in [node for node in named if isinstance(node, ast.ClassDef)]:
            named += public(node.body)
        assert [f"{path.name}: {node.name}" for node in named if not ast.get_docstring(node)] == []


def public(nodes):
    """The classes and functions among them that are no detail."""
    kinds = ast.ClassDef | ast.FunctionDef
    return [node for node in nodes if isinstance(node, kinds) and not node.name.startswith("_")]


# Words of our own for which the field has one; each is wrong as a whole part of a name.
HOME_MADE = (
    "lane", "lanes", "company", "seat", "seated", "plight", "haste", "arbiter", "contender", "contenders",
    "offer", "anchor", "price", "prices", "dear", "lesson", "lessons", "teach", "taught", "gift", "stake", "debt",
    "patience", "calm", "wild", "catch", "law", "said", "reach", "toy", "standing", "parting", "parted",
    "companion", "cuts", "holding", "replayed", "room", "rooms", "way", "ways", "wishes", "heed", "heeds", "heeded",
    "trial", "proof", "hazard", "guarded", "told", "heard", "crowded", "stood", "aside", "remark", "note", "notes",
    "picker", "inspection", "places",
)  # fmt: skip


def parts(name):
    return {part.lower() for part in re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).split("_")}


def names(path):
    """The names of a file: its own, of classes, functions and fields."""
    yield path.stem
    for node in nodes_of(path):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def test_names_are_the_words_of_the_field():
    assert offending_names(SOURCES, {*HOME_MADE}) == []


def test_tests_and_pages_use_none_of_the_oldest_home_made_words():
    """Also in comments and texts of tests, and in prose."""
    old = r"toys?|laws?|lanes?|arbiters?|told|said"
    of_tests = [path for path in ROOT.glob("tests/**/*.py") if path.name != Path(__file__).name]
    found = re.compile(
        rf"(?<![a-z])(?i:{old})(?![a-z])|(?<=[a-z])(?:{old.title()})(?![a-z])"
    )  # also parts of names
    pages = [*of_tests, *ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    lines = ((path, line) for path in pages for line in text_of(path).splitlines() if found.search(line))
    rule = "`tests/test_wording.py` finds these habits"  # its line has to name the words
    assert [f"{path.relative_to(ROOT)}: {line}" for path, line in lines if rule not in line] == []


def offending_names(paths, words):
    """Names with one of these words as a whole part, each with its file."""
    named = ((path, name) for path in paths for name in sorted({*names(path)}))
    return [f"{path.relative_to(ROOT)}: {name}" for path, name in named if parts(name) & words]
