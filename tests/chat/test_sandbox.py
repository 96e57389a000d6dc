"""Whatever a template calls, and with whatever: bytes and time are bounded."""

import tracemalloc
from contextlib import suppress
from itertools import cycle, islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import Markup

from localspec.chat import allowance
from localspec.chat.sandbox import Sandbox

# Small limits, so that what escapes them is far beyond them.
LIMITS = {
    "LARGEST_VALUE": 4_000,
    "LARGEST_PARTED": 1_000,
    "LARGEST_WORK": 200_000,
    "LARGEST_OUTPUT": 60_000,
    "MOST_SECONDS": 1.0,
}
MOST_BYTES = 8_000_000  # a value may be made, and be twenty times as large, before it is refused
pytestmark = pytest.mark.timeout(300)  # on a busy machine; what is not bounded takes hours


def deep(depth: int = 40) -> tuple:
    """A list of lists that has 2 ** 40 texts when it is written, compared or hashed."""
    return (deep(depth - 1),) * 2 if depth else ("a", "b")


# What v is at first: texts that grow when they are escaped, taken apart or turned, and what is no text.
BASES = (
    lambda: "&<\n é&" * 150,
    lambda: "a " * 450,
    lambda: "<>" * 450,
    lambda: "\U0001f600 " * 450,
    lambda: "a" * 950,
    lambda: "9" * 950,
    lambda: ["b", "a"] * 30,
    deep,
    lambda: {"a": "x" * 950, "b": [1] * 20, "c": deep()},
    lambda: 64**64,
    lambda: (str(number) for number in range(99)),
    lambda: Markup("&<a " * 200),
)
ARGUMENTS = ("v", "deep", "9999999999", "-1", "'a'", "'x' * 950", "['x' * 950]", "v, 9999999999", "'a', v")
TEMPLATE = (
    "{% set n = namespace(v=v) %}"
    "{% for i in range(16) %}{% set v = n.v %}{% set n.v = EXPRESSION %}{% endfor %}{{ n.v }}"
)


def operations():
    """Every filter, test and operator, and every public name of every type that a template comes by; %s: arguments."""
    for name in sorted(Sandbox().filters):
        yield f"v | {name}(%s)" if " " not in name else f"[v] | map('{name}') | list"
    for name in sorted(Sandbox().tests):
        yield f"v is {name}(%s)" if name[0].isalpha() else f"[v] | select('{name}', %s) | list"
    kinds = (str, Markup, list, tuple, dict, int, float, bytes, range, type({}.items()), type)
    for name in sorted({name for kind in kinds for name in dir(kind) if not name.startswith("_")}):
        yield f"v.{name}(%s)"
    for operator in ("+", "-", "*", "/", "//", "%", "**", "~", "==", "<", "in", "and"):
        yield f"v {operator} (%s)"
    yield from (
        "loop.cycle(%s)",
        "loop.changed(%s)",
        "cycler(v).next(%s)",
        "joiner(v)(%s)",
        "namespace(a=v).a",
    )
    yield from (
        "v[::-1]",
        "v[(%s)]",
        "{(%s): v}",
        "{v: 1}",
        "dict(a=v)",
        "dict([[v, 1]])",
        "[v] * 99",
        "(v, v)",
    )
    yield from (
        "v == other",
        "v in [other]",
        "v in {'a': other}.values()",
        "'{0}{0}'.format(v)",
        "'{0!r}'.format(v)",
    )
    yield from (
        "v | tojson(indent=16)",
        "[[v]] | tojson(16)",
        "v | tojson(separators=(v, v))",
        "v | round(%s, 'ceil')",
    )
    yield from ("v | map('string') | list", "v | map('replace', 'a', 'x' * 950) | list", "raise_exception(v)")


OPERATIONS = tuple(operations())


@pytest.fixture(autouse=True, scope="module")
def bounds():
    with pytest.MonkeyPatch.context() as patch:
        for name, limit in LIMITS.items():
            patch.setattr(allowance, name, limit)
        yield


def check(expression: str) -> None:
    """Apply an expression to each base, and sixteen times to its own result; whether that succeeds does not matter."""
    sandbox = Sandbox()
    with suppress(Exception):
        template = sandbox.from_string(TEMPLATE.replace("EXPRESSION", expression))
        for base in BASES:
            values = {"v": base(), "deep": deep(), "other": deep()}
            sandbox.start()
            tracemalloc.start()
            with suppress(Exception):
                template.render(values)
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert most < MOST_BYTES, base()


def test_limits_let_ordinary_expressions_through():
    sandbox = Sandbox()
    template = sandbox.from_string(TEMPLATE.replace("EXPRESSION", "(v ~ 'a')[1:] | trim"))
    assert template.render(v="b" * 900) == "b" * 884 + "a" * 16


@pytest.mark.parametrize("number", range(len(OPERATIONS)), ids=lambda number: OPERATIONS[number])
def test_every_filter_test_method_and_operator_is_bounded(number):
    operation = OPERATIONS[number]
    some = islice(cycle(ARGUMENTS), number, number + 1)  # the next test takes others
    for argument in ("", *some) if "%s" in operation else ("",):
        check(operation.replace("%s", argument))


@settings(max_examples=60)
@given(st.sampled_from(OPERATIONS), st.sampled_from(ARGUMENTS))
def test_so_is_each_with_other_arguments(operation, argument):
    check(operation.replace("%s", argument))


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.sampled_from(ARGUMENTS)), min_size=2, max_size=4))
def test_so_is_every_chain_of_them(chain):
    expression = "v"
    for operation, argument in chain:
        expression = operation.replace("%s", argument).replace("v", f"({expression})", 1)
    check(expression)
