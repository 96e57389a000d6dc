"""Random JSON schemas: nested objects, enums, unions, patterns, unicode, bounds, recursion."""

from random import Random

NAMES = (
    "id",
    "name",
    "größe",
    "名前",
    "street address",
    "is_open",
    "tags",
    'naïve "quote"',
    "🙂",
    "next/prev",
    "x",
)
WORDS = ("red", "grün", "青い", "a b", "", "\\", "tab\there", "🙂🙃", "l'été", '"')
PATTERNS = (
    "^[a-z]{2,6}$",
    "^[A-Z]{3}-\\d{4}$",
    "^(north|south)(east|west)?$",
    "^[0-9a-f]{8}$",
    "^\\+?[0-9]{6,9}$",
    "^[α-ω]{1,4}$",
)


def schema_of(seed: int) -> dict:
    """One schema; the same seed gives the same one."""
    random = Random(seed)
    kind = seed % 8
    if kind == 0:
        return _recursive(random)
    if kind in (1, 2):
        return _array(random, 3)
    return _object(random, 3)


def _any(random: Random, depth: int) -> dict:
    deep = [_object, _array, _union] if depth else []
    simple = [_string, _string, _enum, _integer, _number, _pattern, _plain, _const]
    return random.choice(simple + deep)(random, depth - 1)


def _object(random: Random, depth: int) -> dict:
    names = random.sample(NAMES, random.randint(1, 5))
    properties = {name: _any(random, depth) for name in names}
    schema = {"type": "object", "properties": properties}
    if random.random() < 0.8:
        schema["required"] = [name for name in names if random.random() < 0.8]
    if random.random() < 0.3:
        schema["additionalProperties"] = False
    return schema


def _array(random: Random, depth: int) -> dict:
    least = random.randint(0, 3)
    schema = {"type": "array", "minItems": least, "maxItems": least + random.randint(0, 3)}
    if random.random() < 0.2:
        first = [_any(random, 0) for _ in range(2)]
        return {"type": "array", "prefixItems": first, "items": False, "minItems": 2}
    return {**schema, "items": _any(random, depth)}


def _union(random: Random, depth: int) -> dict:
    if random.random() < 0.3:
        return {"type": ["integer", "null", "boolean"]}
    return {"anyOf": [_any(random, depth) for _ in range(random.randint(2, 3))]}


def _string(random: Random, depth: int) -> dict:
    least = random.randint(0, 3)
    return {"type": "string", "minLength": least, "maxLength": least + random.randint(0, 30)}


def _pattern(random: Random, depth: int) -> dict:
    return {"type": "string", "pattern": random.choice(PATTERNS)}


def _enum(random: Random, depth: int) -> dict:
    return {"enum": random.sample([*WORDS, 1, -2.5, None, True], random.randint(1, 5))}


def _const(random: Random, depth: int) -> dict:
    return {"const": random.choice([*WORDS, 7, {"größe": [1, None]}])}


def _integer(random: Random, depth: int) -> dict:
    least = random.randint(-1000, 1000)
    schema = {"type": "integer", "minimum": least, "maximum": least + random.randint(0, 5000)}
    return (
        {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 500}
        if random.random() < 0.2
        else schema
    )


def _number(random: Random, depth: int) -> dict:
    least = random.randint(-10, 10)
    bounds = {"minimum": least} if random.random() < 0.5 else {"exclusiveMinimum": least}
    return {"type": "number", **bounds, "exclusiveMaximum": least + random.randint(1, 100)}


def _plain(random: Random, depth: int) -> dict:
    return {"type": random.choice(["boolean", "null", "integer", "number", "string"])}


def _recursive(random: Random) -> dict:
    """A tree, or a list that links to itself."""
    value = _any(random, 1)
    if random.random() < 0.5:
        node = {
            "type": "object",
            "properties": {
                "value": value,
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
            },
            "required": ["value", "children"],
        }
    else:
        rest = {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}
        node = {"type": "object", "properties": {"value": value, "next": rest}, "required": ["value", "next"]}
    return {"$defs": {"node": node}, "$ref": "#/$defs/node"}
