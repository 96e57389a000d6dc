"""Questions with schemas, and the judge of the replies: the target's own probabilities, without the grammar."""

import json

import jsonschema

from localspec.events import FinishReason, Scores

TEXT, WHOLE, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}


def record(required=None, **properties):
    required = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": required}


def items(item, count):
    return {"type": "array", "items": item, "minItems": count, "maxItems": count}


NODE = record(["name"], name=TEXT, children={"type": "array", "items": {"$ref": "#/$defs/node"}})
ADDRESS, ORDER = record(street=TEXT, city=TEXT, zip=TEXT), record(id=WHOLE, total=NUMBER)
QUESTIONS = {
    "List three fruits.": items(TEXT, 3),
    "Describe a person: name, age and city. Answer in JSON.": record(name=TEXT, age=WHOLE, city=TEXT),
    "Describe the book 1984 by George Orwell in JSON.": record(
        ["title", "author"], title=TEXT, author=TEXT, year=WHOLE, genre=TEXT, pages=WHOLE
    ),
    "List the three largest planets with their diameter in km, as JSON.": items(
        record(name=TEXT, diameter_km=WHOLE), 3
    ),
    "A folder root contains a.txt and the folder docs, which contains b.txt. Write it as a tree in JSON.": {
        "$defs": {"node": NODE},
        "$ref": "#/$defs/node",
    },
    "What is 2+3?": record(answer=WHOLE),
    "Classify the sentiment: 'I loved this film.'": record(
        sentiment={"enum": ["positive", "negative", "neutral"]}, confidence=NUMBER
    ),
    "Describe a customer called Ann Lee with address and two orders, in JSON.": record(
        name=TEXT, address=ADDRESS, orders=items(ORDER, 2)
    ),
    "Give a title and four tags for an article about electric cars.": record(title=TEXT, tags=items(TEXT, 4)),
    "Which year did World War II end?": record(result={"anyOf": [WHOLE, {"type": "null"}]}, source=TEXT),
    "Give the capitals of France, Spain and Italy as an object from country to capital.": {
        "type": "object",
        "additionalProperties": TEXT,
        "minProperties": 3,
        "maxProperties": 3,
    },
    "Write the 2x2 identity matrix.": record(matrix=items(items(WHOLE, 2), 2)),
    "When did Apollo 11 land on the moon? Give an ISO date.": record(
        event=TEXT, date={"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}$"}
    ),
    "How do I boil an egg? Give 3 short steps in JSON.": record(
        steps=items(record(number=WHOLE, text=TEXT), 3)
    ),
    "Extract: 'Call Bob Stone at 555-1234 or mail bob@stone.org.'": record(
        name=TEXT, phone=TEXT, email=TEXT, is_person={"type": "boolean"}
    ),
}


def judged(session, question, *, restricted=True, **options):
    """A reply, the mean log-probability of its tokens without the grammar, and whether it ends and is valid."""
    session.reset()
    schema = QUESTIONS[question]
    options = {"temperature": 0, "max_tokens": 400, "logprobs": 0, **options}
    options |= {"json_schema": schema} if restricted else {}
    events = list(session.stream(question, **options))
    reply = events[-1].reply
    scores = [each.chosen.logprob for event in events if isinstance(event, Scores) for each in event.tokens]
    ended = reply.finish_reason is FinishReason.STOP
    if ended and restricted:
        jsonschema.Draft202012Validator(schema).validate(json.loads(reply.text))
    return reply, sum(scores) / max(len(scores), 1), ended
