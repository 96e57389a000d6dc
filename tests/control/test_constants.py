"""The depth controller and the drafters have few numbers: a new one must earn its place (docs/developers/depth.md)."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / "localspec"
MOST = 58
FREE = (0, 1, 2)


def is_number(node):
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def numbers_of(source):
    """Named constants of a module, each once, and other numbers, those of defaults included."""
    tree, named, inside = ast.parse(source), list[str](), set[ast.AST]()
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            found = {each for each in ast.walk(node.value) if is_number(each)}
            inside |= found
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [name.id for each in targets for name in ast.walk(each) if isinstance(name, ast.Name)]
            named += names if found else []
    loose = [each.value for each in ast.walk(tree) if is_number(each) and each not in inside]
    return named + [number for number in loose if number not in FREE]


def test_a_number_is_counted_wherever_it_stands():
    source = "A, B = 3, (4, 5)\nC: int = 6\ndef f(x=7, y=1):\n    return x + 8\n"
    assert numbers_of(source) == ["A", "B", "C", 7, 8]


def test_the_controller_and_the_drafters_have_few_numbers():
    files = [*ROOT.glob("control/*.py"), *ROOT.glob("drafters/*.py"), ROOT / "loading/drafting.py"]
    found = {path.name: numbers_of(path.read_text(encoding="utf-8")) for path in files}
    assert sum(map(len, found.values())) <= MOST, found
