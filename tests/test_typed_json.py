"""A file that somebody damaged is no file: what is read has the types that were written, or it is a ValueError."""

import json
from dataclasses import asdict, dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.files import loads_as


@dataclass(frozen=True)
class Part:
    name: str
    size: float
    whole: bool


@dataclass(frozen=True)
class Known:
    parts: tuple[Part, ...]
    sizes: dict[str, int]
    note: str | None


KNOWN = Known((Part("a", 1.5, True), Part("b", 2.0, False)), {"a": 1}, None)


def test_what_was_written_is_read():
    assert loads_as(Known, json.dumps(asdict(KNOWN))) == KNOWN


def places(document, path=()):
    yield path
    if isinstance(document, dict | list):
        for key, value in document.items() if isinstance(document, dict) else enumerate(document):
            yield from places(value, (*path, key))


def replaced(document, path, value):
    if not path:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[path[0]] = replaced(copy[path[0]], path[1:], value)
    return copy


WRITTEN = json.loads(json.dumps(asdict(KNOWN)))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
ANYTHING = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner))


def types_of(value):
    if isinstance(value, dict):
        return {key: types_of(part) for key, part in value.items()}
    return [types_of(part) for part in value] if isinstance(value, list) else type(value)


@given(st.sampled_from([path for path in places(WRITTEN) if path]), ANYTHING)
def test_any_damage_gives_the_right_types_or_a_value_error(path, value):
    try:
        read = loads_as(Known, json.dumps(replaced(WRITTEN, path, value)))
    except ValueError:
        return
    assert all(types_of(asdict(part)) == {"name": str, "size": float, "whole": bool} for part in read.parts)
    assert all(type(size) is int for size in read.sizes.values())
    assert isinstance(read.note, str | None)


@pytest.mark.parametrize("text", ["", "[" * 100_000, '{"parts": []', "NaN", "[1]", "5"])
def test_what_is_no_document_of_the_type_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"."):
        loads_as(Known, text)
