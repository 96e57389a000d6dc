"""What a grammar cannot express is left out of the grammar of a tool, with a notice, and refused if it is strict."""

import json
import random
from dataclasses import replace

import jsonschema
import pytest

from localspec.errors import BadSetting
from localspec.events import Notice
from localspec.prompt.tools import read_tools
from localspec.structure import expressible as module
from localspec.structure.call_grammar import calls_grammar
from localspec.structure.constraint import GrammarTokens
from localspec.structure.expressible import expressible
from localspec.structure.grammar import json_grammar
from localspec.structure.schema import kinds_of, resolved
from localspec.structure.tool_call_format import GENERIC
from tests.structure.characters import Characters, scripted_session, session_of
from tests.structure.schemas import schema_of
from tests.structure.test_tools import CODER, FORMS

ZOD = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
BAD = {  # a property, and the keyword that a grammar cannot express
    "pattern": {"type": "string", "pattern": ZOD},
    "backreference": {"type": "string", "pattern": r"^(a)\1$"},
    "no regular expression": {"type": "string", "pattern": "[a-"},
    "patternProperties": {"type": "object", "patternProperties": {"^(?!a)": {}}},
    "remote $ref": {"$ref": "https://example.org/a.json"},
    "type any": {"type": "any"},
    "minimum": {"type": "integer", "minimum": 2**63},
    "maximum": {"type": "number", "maximum": -1e308},
    "multipleOf": {"type": "number", "multipleOf": 0.123456789},
    "maxLength": {"type": "string", "maxLength": -1},
    "enum": {"enum": []},
    "not": {"not": {"type": "string"}},
    "uniqueItems": {"type": "array", "uniqueItems": True},
    "format": {"type": "string", "format": "uri-template"},
    "contradiction": {"type": "number", "minimum": 5, "maximum": 1},
    "itself": {"$ref": "#/properties/to"},
}


def tool_with(prop, **more):
    properties = {"to": prop, "days": {"type": "integer", "minimum": 1, "maximum": 7}}
    parameters = {"type": "object", "properties": properties, "required": ["to", "days"]}
    return {"type": "function", "function": {"name": "send", "parameters": parameters, **more}}


@pytest.mark.parametrize("name", BAD)
def test_a_keyword_is_left_out_with_a_notice_and_the_others_stay(name):
    given = tool_with(BAD[name])
    (tool,) = read_tools([given])
    assert "send" in tool.notice
    assert any(keyword in tool.notice for keyword in BAD[name])
    assert tool.given["function"] == given["function"]  # the model reads the whole schema
    found = json_grammar(tool.schema)
    assert taken(found, '{"to": 3, "days": 9}') < len('{"to": 3, "days": 9}')
    for form in FORMS.values():
        GrammarTokens(Characters()).matcher(
            calls_grammar(form, {"send": tool.schema}, choice="required", names={})
        )
    with pytest.raises(BadSetting, match="send"):
        read_tools([tool_with(BAD[name], strict=True)])


def test_a_notice_reaches_the_reader_and_the_other_tools_are_whole():
    tools = [tool_with(BAD["pattern"]), {"name": "now"}]
    events = list(session_of().stream("go", tools=tools, max_tokens=3))
    (notice,) = [event.text for event in events if isinstance(event, Notice) and "send" in event.text]
    assert "pattern" in notice
    assert read_tools(tools)[1].notice == ""


@pytest.mark.parametrize("parameters", [3, [], "no JSON", {"type": "string"}, {"a": object()}, {"type": 5}])
def test_an_invalid_schema_takes_any_object(parameters):
    for wrong in (parameters, json.loads("[" * 200 + "]" * 200)):
        (tool,) = read_tools([{"name": "send", "parameters": wrong or [0]}])
        assert "send" in tool.notice
        assert taken(json_grammar(tool.schema), '{"a": [1]}') == len('{"a": [1]}')


@pytest.mark.parametrize("seed", range(20))
def test_a_schema_with_random_faults_is_always_expressible(seed):
    rng = random.Random(seed)
    schema = {
        "type": "object",
        "properties": {name: broken(schema_of(seed * 3 + n), rng) for n, name in enumerate("abc")},
    }
    found, left_out = expressible(json.dumps(schema))
    json_grammar(found)
    taken(json_grammar(found, compact=True), "{}")
    again, nothing = expressible(json.dumps(found))
    assert again == found
    assert set(nothing) <= set(left_out)


def broken(value, rng):
    """Put invalid keywords at random places."""
    if isinstance(value, list):
        return [broken(part, rng) for part in value]
    if not isinstance(value, dict):
        return value
    found = {key: broken(part, rng) for key, part in value.items()}
    faults = [*({"pattern": "(?!a)"}, {"type": "any"}, {"required": 5}, {"enum": []}, {"$ref": "#/nowhere"})]
    return {**found, **rng.choice(faults)} if rng.random() < 0.2 else found


def test_a_definition_is_mended_where_it_is_used():
    defined = {"a": {"type": "object", "properties": {"x": {"type": "string", "pattern": "(?!a)"}}}}
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": defined}
    found, left_out = expressible(json.dumps(schema))
    assert left_out == ("pattern",)
    assert resolved(found["properties"]["a"], found)["properties"] == {"x": {"type": "string"}}


NAMES = ["mcp/files/read", "two words", "schön", "a" * 200, 'q"uote', "<tool_call>", "a" * 199 + "b"]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_is_mapped_for_the_model_and_back(name):
    tools = [{"name": each} for each in NAMES]
    read = {tool.called: tool.name for tool in read_tools(tools)}
    assert len(set(read.values())) == len(NAMES)
    assert all(each.isascii() and len(each) <= 128 for each in read.values())
    written = GENERIC.written([(read[name], {})])
    session = scripted_session(written)
    reply = session.run("go", tools=tools, tool_choice=name)
    assert [call.name for call in reply.tool_calls] == [name]
    assert read[name] in session.prompt_of([*session.messages], tools=tools).text


def test_usual_names_stay():
    names = ["a" * 128, "mcp__files__read", "a.b-c_d"]
    assert [tool.name for tool in read_tools([{"name": name} for name in names])] == names


@pytest.mark.parametrize(
    "parameters",
    [
        {
            "$ref": "#/$defs/all",
            "$defs": {"all": {"type": "object", "properties": {"city": {"type": "string"}}}},
        },
        {"allOf": [{"properties": {"city": {"type": "string"}}}, {"required": ["city"]}]},
        {"allOf": [{"$ref": "#/definitions/a~1b"}], "definitions": {"a/b": {"properties": {"city": {}}}}},
    ],
)
def test_parameters_behind_references_reach_the_model(parameters):
    (tool,) = read_tools([{"name": "f", "parameters": parameters}])
    assert list(tool.given["function"]["parameters"]["properties"]) == ["city"]
    assert list(tool.definition["function"]["parameters"]["properties"]) == ["city"]


def test_a_reference_to_itself_is_spelled_out_once():
    tree = {"type": "object", "properties": {"leaf": {"type": "string"}, "next": {"$ref": "#/$defs/tree"}}}
    (tool,) = read_tools([{"name": "f", "parameters": {**tree, "$defs": {"tree": tree}}}])
    spelled = tool.definition["function"]["parameters"]["properties"]["next"]
    assert spelled["properties"]["leaf"] == {"description": "", "type": "string"}
    assert "$ref" in spelled["properties"]["next"]


def test_a_value_without_a_type_is_text_where_nothing_tells_it_from_a_number():
    root = {"properties": {"any": {}, "number": {"type": "number"}, "both": {"type": ["string", "number"]}}}
    for key, value in (("any", "42"), ("other", "42"), ("number", 42), ("both", 42)):
        schema = CODER.schema_of(key, "", root)
        assert CODER.read("42", str, schema, root) == value
    assert kinds_of({"allOf": [{"$ref": "#/$defs/n"}]}, {"$defs": {"n": {"type": "integer"}}}) == {"number"}


FORMATS = ("email", "hostname", "uri", "date-time", "time", "date", "duration", "ipv4", "ipv6", "uuid")


@pytest.mark.parametrize(
    "schema",
    [{"type": "string", "format": name} for name in FORMATS]
    + [
        {"type": "number", "minimum": low, "maximum": low + room}
        for low in (0.0001, 1.5)
        for room in (1e-2, 1e-4, 1e-6, 1e-8, 1e-11, 0)
    ],
)
def test_formats_and_numbers_between_close_bounds_end(schema):
    session = session_of(seed=3)
    reply = session.run("go", json_schema=schema, max_tokens=5_000, compact_json=True)
    assert reply.finish_reason == "stop"
    jsonschema.validate(json.loads(reply.text), schema)


def taken(grammar, text):
    matcher = GrammarTokens(Characters()).matcher(replace(grammar, rules=grammar.lenient()))
    return matcher.try_consume_tokens(Characters().tokenize(text, parse_special=False))


def test_only_schemas_of_a_bounded_size_are_cached():
    before = module._known.cache_info().currsize
    large = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(1_000)}}
    text = json.dumps(large)
    assert len(text) > module._CACHED
    assert module.expressible(text) == (large, ())
    assert module._known.cache_info().currsize == before
