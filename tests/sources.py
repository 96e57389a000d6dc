"""The source files of localspec and the terminal UI, each read and parsed once."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted([*ROOT.glob("localspec/**/*.py"), *ROOT.glob("tui/**/*.py")])


@cache
def text_of(path):
    return path.read_text(encoding="utf-8")


@cache
def tree_of(path):
    return ast.parse(text_of(path))


@cache
def nodes_of(path):
    return tuple(ast.walk(tree_of(path)))


def last_name(node):
    """Return the last part of a name with dots, or nothing."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
