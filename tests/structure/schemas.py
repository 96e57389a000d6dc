"""Random JSON schemas: nested objects, enums, unions, patterns, unicode, bounds, recursion."""

from random import Random

NAMES = ("id", "name", "größe", "名前", "street address", "is_open", "tags", "🙂", "next/prev", "x")
NAMES += ('naïve "quote"',)
WORDS = ("red", "grün", "青い", "a b", "", "\\", "tab\there", "🙂🙃", "l'été", '"')
PATTERNS = ("^[a-z]{2,6}$", "^[A-Z]{3}-\\d{4}$", "^(north|south)(east|west)?$", "^[0-9a-f]{8}$")
PATTERNS += ("^\\+?[0-9]{6,9}$", "^[α-ω]{1,4}$")


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
    simple = [_string, _string, _integer, _number, _plain, *_SIMPLE]
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


_SIMPLE = (
    lambda random, depth: {"type": "string", "pattern": random.choice(PATTERNS)},
    lambda random, depth: {"enum": random.sample([*WORDS, 1, -2.5, None, True], random.randint(1, 5))},
    lambda random, depth: {"const": random.choice([*WORDS, 7, {"größe": [1, None]}])},
)


def _integer(random: Random, depth: int) -> dict:
    least = random.randint(-1000, 1000)
    bounds = {"minimum": least, "maximum": least + random.randint(0, 5000)}
    if random.random() < 0.2:
        bounds = {"multipleOf": 5, "minimum": 0, "maximum": 500}
    return {"type": "integer", **bounds}


def _number(random: Random, depth: int) -> dict:
    least = random.randint(-10, 10)
    bounds = {"minimum": least} if random.random() < 0.5 else {"exclusiveMinimum": least}
    return {"type": "number", **bounds, "exclusiveMaximum": least + random.randint(1, 100)}


def _plain(random: Random, depth: int) -> dict:
    return {"type": random.choice(["boolean", "null", "integer", "number", "string"])}


def _recursive(random: Random) -> dict:
    """A tree, or a list that links to itself."""
    value = _any(random, 1)
    node = {"$ref": "#/$defs/node"}
    rest = {"anyOf": [{"type": "null"}, node]}
    if random.random() < 0.5:
        rest = {"type": "array", "items": node, "maxItems": 2}
    whole = {"type": "object", "properties": {"value": value, "rest": rest}, "required": ["value", "rest"]}
    return {"$defs": {"node": whole}, **node}
