"""What users write as a schema, pattern or grammar, and what becomes of mistakes and of hostile ones."""

import json

import jsonschema
import numpy as np
import pytest

from localspec import demo
from localspec.errors import BadSetting
from localspec.llama.model import Model
from localspec.structure.constraint import Constrained, GrammarTokens
from localspec.structure.grammar import FENCE, FENCE_END, json_grammar, regex_grammar, written_grammar
from localspec.structure.schema import check_complexity, check_ends, narrowed
from tests.gguf.models import Shape, write_gguf
from tests.structure.schemas import schema_of


@pytest.fixture(scope="module")
def vocab():
    with Model(demo.target_path(), gpu_layers=0) as model:
        yield model.vocab


@pytest.fixture(scope="module")
def tokens(vocab):
    return GrammarTokens(vocab)


@pytest.fixture(scope="module")
def accepts(tokens, vocab):
    def accepts(grammar, text):
        matcher = tokens.matcher(grammar)
        written = vocab.tokenize(text, parse_special=False)
        return matcher.try_consume_tokens(written) == len(written) and matcher.is_accepting()

    return accepts


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
}


class Person:
    """What a Pydantic model class offers."""

    @classmethod
    def model_json_schema(cls):
        return PERSON


@pytest.mark.parametrize("schema", [PERSON, json.dumps(PERSON), Person])
def test_a_schema_is_a_dictionary_its_text_or_a_model_class(schema, accepts):
    grammar = json_grammar(schema)
    assert accepts(grammar, '{"name":"Ann","age":3}')
    assert accepts(grammar, '{"name":"Ann"}')
    assert not accepts(grammar, '{"age":3}')


def test_a_caller_may_choose_compact_json_or_white_space_anywhere(accepts):
    spaced = '{ "name": "Ann",\n  "age": 3 }'
    assert not accepts(json_grammar(PERSON), spaced)
    assert not accepts(json_grammar(PERSON, compact=True), '{"name": "Ann"}')
    assert accepts(json_grammar(PERSON, compact=False), spaced)
    assert not accepts(json_grammar(PERSON, compact=False), '{"name":' + " " * 200 + '"Ann"}')


def begun(tokens, vocab, grammar, written=""):
    """The texts of the tokens that may come next."""
    constraint = Constrained(tokens.matcher(grammar), "it", tokens, start=0, closes=grammar.closes)
    mask = constraint.mask(vocab.tokenize(written, parse_special=False))
    return {vocab.piece(token) for token in np.flatnonzero(mask.allowed)}


def test_a_fence_begins_with_its_own_token_and_not_with_a_part_of_it(tokens, vocab, accepts):
    assert accepts(json_grammar(PERSON), FENCE + '{"name": "Ann"}' + FENCE_END)
    assert begun(tokens, vocab, json_grammar(PERSON)) == {b"{", b"{\n", b'{"', b"```"}


@pytest.mark.parametrize(
    ("kind", "least", "expected"),
    [
        ("string", 1, {b' ["', b" [\n"}),
        ("string", 0, {b' ["', b" [\n", b" [", b" []\n"}),  # no token is [] alone
        ("integer", 1, {b" [\n", b" ["}),  # no token is [ and a digit
    ],
)
def test_a_bracket_is_left_out_where_longer_tokens_begin_all_that_may_follow(
    kind, least, expected, tokens, vocab
):
    words = {"type": "array", "items": {"type": kind}, "minItems": least}
    schema = {"type": "object", "properties": {"words": words}, "required": ["words"]}
    assert begun(tokens, vocab, json_grammar(schema), '{\n  "words":') - {b" "} == expected


def test_a_grammar_of_the_users_own_leaves_no_token_out(tokens, vocab):
    assert b" [" in begun(tokens, vocab, regex_grammar(r' \[("a"|\n"a")\]'))


TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "rest": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["name"],
        }
    },
    "$ref": "#/$defs/node",
}
VALUES = [
    (PERSON, {"name": "Ann", "age": 3}),
    ({"type": "array", "items": PERSON, "minItems": 2}, [{"name": "Ann"}, {"name": "Bo", "age": 3}]),
    (TREE, {"name": "a", "rest": [{"name": "b", "rest": [{"name": "c"}]}, {"name": "d"}]}),
    ({"type": "object"}, {"a": [1, {"größe": None}], "b": {"c": True}}),
    ({"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "integer"}, "maxItems": 1}]}, [7]),
]
LAYOUTS = [{"separators": (",", ":")}, {}, {"indent": 2}, {"indent": 4}, {"indent": "\t"}]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize(("schema", "value"), VALUES)
def test_a_model_may_choose_each_usual_layout(schema, value, layout, accepts):
    assert accepts(json_grammar(schema), json.dumps(value, ensure_ascii=False, **layout))


@pytest.mark.parametrize(("schema", "value"), VALUES)
def test_a_model_may_write_a_space_inside_the_braces_of_objects(schema, value, accepts):
    spaced = json.dumps(value, ensure_ascii=False)
    padded = spaced.replace("{", "{ ").replace("}", " }")
    assert accepts(json_grammar(schema), padded)
    if padded != spaced:
        assert not accepts(json_grammar(schema), padded.removesuffix(" }") + "}")


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_number_of_properties_counts_in_each_layout(layout, accepts):
    schema = {"type": "object", "additionalProperties": {"type": "string"}}
    grammar = json_grammar({**schema, "minProperties": 2, "maxProperties": 3})
    for count in range(1, 5):
        text = json.dumps(dict.fromkeys("abcd"[:count], "x"), **layout)
        assert accepts(grammar, text) == (count in (2, 3))


@pytest.mark.parametrize("seed", range(40))
def test_random_schemas_allow_only_valid_json_in_any_layout(seed, tokens, vocab):
    schema, text = schema_of(seed), []
    walker = Constrained(tokens.matcher(json_grammar(schema)), "it", tokens, start=0)
    random = np.random.default_rng(seed)
    newline = vocab.tokenize("{\n", parse_special=False)[-1]
    while not walker.finished and len(text) < 400:
        allowed = np.flatnonzero(walker.mask(text).allowed)
        text.append(newline if newline in allowed else int(random.choice(allowed)))
        walker.settle(text)
    if walker.finished:
        written = b"".join(map(vocab.piece, text)).decode(errors="replace")
        written = written.removeprefix(FENCE).removesuffix(FENCE_END)
        jsonschema.Draft202012Validator(schema).validate(json.loads(written))


def test_white_space_has_no_end_in_no_layout_and_does_not_mix(accepts):
    grammar = json_grammar(PERSON)
    for text in (
        '{\n\n  "name": "Ann"\n}',
        '{\n  "name":"Ann"\n}',
        '{\n  "name": "Ann",\n    "age": 3\n}',
        '{"name":  "Ann"}',
    ):
        assert not accepts(grammar, text)
    one_line = '[\n  {"name": "Ann", "age": 3},\n  {"name": "Bo"}\n]'
    assert accepts(json_grammar({"type": "array", "items": PERSON}), one_line)


def test_the_first_white_space_decides_and_the_rest_is_forced(tokens, vocab):
    for begun, forced in (
        ('{\n  "name": "A"', ',\n  "age": '),
        ('{"name":"A"', ',"age":'),
        ('{\n\t"name": "A"', ',\n\t"age": '),
    ):
        schema = {**PERSON, "required": ["name", "age"]}
        matcher = tokens.matcher(json_grammar(schema))
        assert matcher.consume_tokens(vocab.tokenize(begun, parse_special=False))
        found = b"".join(map(vocab.piece, matcher.compute_ff_tokens())).decode()
        assert found
        assert forced.startswith(found)


def test_objects_get_no_properties_that_the_schema_does_not_name(accepts):
    assert not accepts(json_grammar(PERSON), '{"name":"Ann","more":1}')
    assert accepts(
        json_grammar({**PERSON, "additionalProperties": {"type": "integer"}}), '{"name":"Ann","more":1}'
    )
    assert accepts(json_grammar({"type": "object"}), '{"more":1}')


def test_parts_that_belong_together_are_not_closed_against_each_other(accepts):
    parts = [{"properties": {name: {"type": "null"}}, "required": [name]} for name in ("a", "b")]
    assert accepts(json_grammar({"type": "object", "allOf": parts}), '{"a":null,"b":null}')


def test_numbers_end():
    number = narrowed({"properties": {"x": {"type": "number"}}})["properties"]["x"]
    assert number == {"type": "number", "minimum": -(10**15), "maximum": 10**15, "multipleOf": 1e-9}
    wide = {"type": "integer", "minimum": -(2**63), "exclusiveMaximum": 2**63}
    assert narrowed(wide) == {"type": "integer", "minimum": -(10**15), "exclusiveMaximum": 10**15}
    for kept in ({"type": "number", "minimum": 1e-8, "maximum": 2e-8}, {"enum": [0.1], "type": "number"}):
        assert "multipleOf" not in narrowed(kept)
    assert narrowed({"type": "number", "multipleOf": 5, "minimum": 0, "maximum": 9})["multipleOf"] == 5


@pytest.mark.parametrize("seed", range(60))
def test_narrowing_adds_limits_and_takes_nothing_away(seed):
    schema = schema_of(seed)
    jsonschema.Draft202012Validator.check_schema(narrowed(schema))
    assert without_limits(narrowed(schema)) == without_limits(schema)


def without_limits(value):
    if isinstance(value, list):
        return [without_limits(part) for part in value]
    if not isinstance(value, dict):
        return value
    limits = {"additionalProperties", "minimum", "maximum", "multipleOf"}
    return {name: without_limits(part) for name, part in value.items() if name not in limits}


def test_names_of_properties_are_not_keywords(accepts):
    schema = {
        "type": "object",
        "properties": {"type": {"const": 1}, "properties": {"const": 2}, "enum": {"type": "null"}},
    }
    assert accepts(json_grammar(schema), '{"type":1,"properties":2,"enum":null}')
    assert narrowed({"const": {"properties": {"a": 1}}}) == {"const": {"properties": {"a": 1}}}


def test_a_pattern_matches_the_whole_reply_with_or_without_anchors(accepts):
    for pattern in (r"\d{3}-[a-z]+", r"^\d{3}-[a-z]+$"):
        assert accepts(regex_grammar(pattern), "123-abc")
        assert not accepts(regex_grammar(pattern), "123-abc!")
    assert accepts(regex_grammar(r"a/b|c\$"), "a/b")
    assert accepts(regex_grammar(r"a/b|c\$"), "c$")


@pytest.mark.parametrize(
    "text",
    [
        'start: "yes" | "no" SPACE "way"\nSPACE: / +/',
        'root ::= "yes" | "no" space "way"\nspace ::= " "+',
    ],
)
def test_a_grammar_is_lark_or_gbnf(text, accepts):
    grammar = written_grammar(text)
    assert accepts(grammar, "yes")
    assert accepts(grammar, "no  way")
    assert not accepts(grammar, "noway")


def test_tokens_inside_a_reply_carry_no_space_that_sentencepiece_puts_before_a_text(tmp_path):
    with Model(write_gguf(tmp_path / "spm.gguf", Shape(vocab="spm")), gpu_layers=0) as model:
        matcher = GrammarTokens(model.vocab).matcher(regex_grammar("hello world"))
        forced = matcher.compute_ff_tokens()
        assert b"".join(map(model.vocab.piece, forced)) == b"hello world"


def chain_of_references(length):
    steps = {
        f"a{i}": {"type": "object", "properties": {"x": {"$ref": f"#/$defs/a{i + 1}"}}} for i in range(length)
    }
    return {"$defs": {**steps, f"a{length}": {"type": "string"}}, "$ref": "#/$defs/a0"}


def chain_of_rules(length):
    return "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(length)) + f'\nr{length}: "a"'


def nested(levels):
    return json.loads('{"items":' * levels + "{}" + "}" * levels)


HOSTILE = {
    "not JSON": lambda: json_grammar("{nope"),
    "not an object": lambda: json_grammar("3"),
    "not serialisable": lambda: json_grammar({"const": object()}),
    "10 MB of text": lambda: json_grammar('{"enum": ["' + "x" * 10_000_000 + '"]}'),
    "10 MB of properties": lambda: json_grammar(
        {"properties": {f"p{i}": {"type": "string"} for i in range(300_000)}}
    ),
    "deep": lambda: json_grammar(nested(500)),
    "very deep text": lambda: json_grammar('{"items":' * 100_000),
    "a contradiction": lambda: json_grammar({"type": "integer", "minimum": 5, "maximum": 3}),
    "itself": lambda: json_grammar({"$ref": "#"}),
    "itself by name": lambda: json_grammar({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
    "keywords of wrong types": lambda: json_grammar({"type": "array", "minItems": "x", "items": []}),
    "many references": lambda: json_grammar(chain_of_references(9_000)),
    "a large automaton": lambda: json_grammar({"type": "integer", "multipleOf": 999_983}),
    "large automata that meet": lambda: json_grammar(
        {"allOf": [{"multipleOf": 997}, {"multipleOf": 991}], "type": "integer"}
    ),
    "exponential branches": lambda: json_grammar(
        {"allOf": [{"anyOf": [{"properties": {f"p{i}_{j}": {}}} for j in range(4)]} for i in range(12)]}
    ),
    "an exponential pattern": lambda: json_grammar(
        {"type": "string", "pattern": "^(a|b)*a(a|b){20}$", "minLength": 30}
    ),
    "look-ahead": lambda: regex_grammar("(?=a)b"),
    "an open parenthesis": lambda: regex_grammar("(a"),
    "deep parentheses": lambda: regex_grammar("(" * 20_000 + "a" + ")" * 20_000),
    "200,000 words": lambda: regex_grammar("|".join(f"w{i}" for i in range(150_000))),
    "no pattern": lambda: regex_grammar(""),
    "not a grammar": lambda: written_grammar("hello"),
    "an unknown rule": lambda: written_grammar("start: nowhere"),
    "no root": lambda: written_grammar('leaf ::= "a"'),
    "deep GBNF": lambda: written_grammar("root ::= " + "(" * 30_000),
    "deep Lark": lambda: written_grammar("start: " + "(" * 30_000),
    "a long chain of rules": lambda: written_grammar(chain_of_rules(20_000)),
    "doubling terminals": lambda: written_grammar(
        "start: R0\n" + "\n".join(f"R{i}: R{i + 1} R{i + 1}" for i in range(40)) + '\nR40: "a"'
    ),
}


@pytest.mark.process
@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_used_is_reported_in_one_sentence(name, tokens):
    with pytest.raises(BadSetting) as caught:
        tokens.matcher(HOSTILE[name]())
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    assert "uniqueItems" not in caught.value.hint, "that is never the reason"


ITSELF, EMPTY = {"$ref": "#"}, {"type": "null"}
BOXED = {"type": "object", "properties": {"in": ITSELF, "of": {}}}
ENDLESS = [
    ITSELF,
    {"anyOf": [ITSELF, {"allOf": [EMPTY, ITSELF]}]},
    {
        "type": ["object", "array"],
        "properties": {"in": ITSELF},
        "required": ["in"],
        "items": ITSELF,
        "minItems": 1,
    },
    {"type": "array", "prefixItems": [{}, ITSELF], "minItems": 2},
    {"$ref": "#/$defs/a", "$defs": {"a": {"oneOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}}},
]
ENDING = [
    BOXED,
    {**BOXED, "required": ["of"]},
    {**BOXED, "required": ["in"], "type": ["object", "null"]},
    {"anyOf": [ITSELF, EMPTY]},
    {"type": "array", "items": ITSELF},
    {"type": "array", "prefixItems": [{}, ITSELF], "minItems": 1},
    {**BOXED, "required": ["of"], "properties": {"of": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"enum": [1]}}},
    {"$ref": "https://elsewhere.example/schema"},
]


@pytest.mark.parametrize("schema", ENDLESS + ENDING)
def test_a_schema_that_no_finite_text_matches_is_refused(schema):
    if schema in ENDING:
        return check_ends(schema)
    with pytest.raises(BadSetting, match="must contain itself"):
        json_grammar(schema)


BEARABLE = {
    "an exponential pattern": lambda: regex_grammar("(a|b)*a(a|b){25}"),
    "nested repetition": lambda: regex_grammar("((a{1,1000}){1,1000}){1,1000}"),
    "left recursion": lambda: written_grammar('start: start start | "a" |'),
    "nested empty loops": lambda: written_grammar('start: x{1,500}\nx: y*\ny: z*\nz: "a"*'),
    "no end": lambda: written_grammar('start: "a" start'),
    "a chain of rules": lambda: written_grammar(chain_of_rules(900)),
    "a chain of references": lambda: json_grammar(chain_of_references(1_500)),
    "a large length": lambda: json_grammar({"type": "string", "maxLength": 10**9}),
    "many items": lambda: json_grammar({"type": "array", "minItems": 10**7, "items": {"type": "integer"}}),
    "many branches": lambda: json_grammar({"anyOf": [{"const": f"w{i}"} for i in range(3_000)]}),
}


@pytest.mark.parametrize("name", BEARABLE)
def test_hard_ones_are_followed_or_end_in_one_sentence(name, tokens):
    complaint = complaint_after_following(tokens.matcher(BEARABLE[name]()), tokens)
    assert "\n" not in complaint
    assert len(complaint) < 400


def complaint_after_following(matcher, tokens):
    """The error while 60 random tokens are drawn, if any."""
    constraint = Constrained(matcher, "it", tokens, start=0)
    random, text = np.random.default_rng(1), []
    try:
        while len(text) < 60 and not constraint.finished:
            row = constraint.permitted(random.normal(size=tokens.size).astype(np.float32), text)
            text.append(int(row.argmax() if isinstance(row, np.ndarray) else row.ids[row.logits.argmax()]))
            constraint.settle(text)
    except BadSetting as error:
        return str(error)
    return ""


def test_references_times_levels_have_a_limit(monkeypatch):
    schema = {"$defs": {"a": {"type": "integer"}}, "items": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}
    monkeypatch.setattr("localspec.structure.schema.LONGEST_PATH", 8)
    check_complexity(schema)
    monkeypatch.setattr("localspec.structure.schema.LONGEST_PATH", 7)
    with pytest.raises(BadSetting, match="2 references in 4 levels"):
        check_complexity(schema)
