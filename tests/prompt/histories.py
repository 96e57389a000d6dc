"""Random histories as clients may send them."""

import json
import random
import re

ROLES = (
    "user",
    "user",
    "assistant",
    "assistant",
    "call",
    "call",
    "tool",
    "tool",
    "tool",
    "system",
    "developer",
)


class Words:
    def __init__(self):
        self.count = 0

    def __call__(self):
        self.count += 1
        return f"w{self.count:03}x"


def arguments(rng, word):
    """Arguments as a model may have written them; the word is in most of them."""
    forms = (
        json.dumps({"city": word}),
        {"city": word, "days": 2},
        json.dumps({"deep": {"list": [1, word]}}),
        '{"city": "' + word,
        json.dumps([word, 2]),
        [word],
        json.dumps({"city": word}) + '{"days": 2}',
        json.dumps(word),
        "null",
        None,
        "",
        "{}",
    )
    return rng.choice(forms)


def call(rng, word, used):
    kind = rng.choice(("unique", "repeated", "missing", "long"))
    call_id = {
        "unique": f"call{rng.randrange(10**5):05}",
        "repeated": "call_0",
        "missing": None,
        "long": f"toolu_{rng.randrange(10**12):012}",
    }[kind]
    used.append(call_id)
    function = {
        "name": rng.choice(("get_weather", "search", "unknown_tool")),
        "arguments": arguments(rng, word),
    }
    return {"type": "function", "function": function} | ({"id": call_id} if call_id else {})


def history(seed):
    rng, word, used, found = random.Random(seed), Words(), [], []
    for _ in range(rng.randint(1, 9)):
        role = rng.choice(ROLES)
        content = rng.choice((word(), word(), word(), "", None))
        if role == "call":
            calls = [call(rng, word(), used) for _ in range(rng.choice((1, 1, 2, 3)))]
            thoughts = {"reasoning_content": "I think."} if rng.random() < 0.3 else {}
            found.append({"role": "assistant", "content": content, "tool_calls": calls, **thoughts})
        elif role == "tool":
            ids = [*used[-3:], "foreign", None]
            message = {"role": "tool", "content": content, "tool_call_id": rng.choice(ids)}
            found.append({key: value for key, value in message.items() if value is not None})
        else:
            found.append({"role": role, "content": content})
    if not any(message.get("content") for message in found):
        found.append({"role": "user", "content": word()})
    return found


def words_of(messages):
    """The words of messages in their order; those of calls too."""
    return re.findall(r"w\d{3}x", json.dumps(messages))
