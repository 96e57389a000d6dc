"""JSON records, compact or spaced, for requests such as "Give me a JSON record for a user"."""

import json
from collections.abc import Callable
from random import Random

from .spin import Turn, pick, spin, typed, words

FIRST = words(
    "Ada Ben Clara David Emma Felix Grace Hugo Ida Jack Kate Leo Mia Noah Olga Paul Rosa Sam Tina Tom"
)
LAST = words(
    "Adams Baker Clark Davis Evans Fischer Green Hill Jones Keller Lopez Miller Nolan Parker Reed Smith Weber"
)
CITIES = words("Berlin Boston Dublin Lisbon London Madrid Oslo Paris Prague Rome Tokyo Vienna")
PRODUCTS = words(
    "Lamp Chair Desk Notebook Backpack Kettle Bicycle Headphones Keyboard Camera Umbrella Bottle"
)
COLORS = words("black white red blue green yellow grey")
TITLES = words(
    "The Quiet River|A Short Walk|Night Trains|The Last Lamp|Summer Rain|Small Machines|The Long Draft", "|"
)


def number(low: int, high: int, rng: Random) -> int:
    """A number between the two, a little more often the one in the middle, so that greedy records have one."""
    return pick(((low + high) // 2, *range(low, high + 1)), rng, 0.1)


def day(rng: Random) -> str:
    """A date in the ISO format."""
    return f"{number(2018, 2026, rng)}-{number(1, 12, rng):02}-{number(1, 28, rng):02}"


def user(rng: Random) -> dict:
    """A user of some service."""
    first, last = pick(FIRST, rng, 0.1), pick(LAST, rng, 0.1)
    record = {
        "id": number(1, 999, rng),
        "name": f"{first} {last}",
        "email": f"{first}.{last}@example.com".lower(),
    }
    return record | {"age": number(18, 80, rng), "city": pick(CITIES, rng, 0.1), "active": rng.random() < 0.7}


def product(rng: Random) -> dict:
    """Something that is sold."""
    record = {"id": number(1, 999, rng), "name": pick(PRODUCTS, rng, 0.1), "color": pick(COLORS, rng, 0.1)}
    return record | {
        "price": number(5, 200, rng) - 0.01,
        "in_stock": rng.random() < 0.7,
        "tags": ["home", "new"],
    }


def order(rng: Random) -> dict:
    """An order with its lines."""
    lines = [
        {"product": pick(PRODUCTS, rng, 0.1), "quantity": number(1, 5, rng)}
        for _ in range(pick((2, 1, 3), rng))
    ]
    status = pick(("shipped", "open", "paid", "delivered"), rng, 0.4)
    return {
        "id": number(1000, 9999, rng),
        "date": day(rng),
        "customer": pick(FIRST, rng, 0.1),
        "lines": lines,
        "status": status,
    }


def book(rng: Random) -> dict:
    """A book."""
    record = {"title": pick(TITLES, rng, 0.1), "author": f"{pick(FIRST, rng, 0.1)} {pick(LAST, rng, 0.1)}"}
    return record | {"year": number(1950, 2025, rng), "pages": number(80, 600, rng), "language": "English"}


def address(rng: Random) -> dict:
    """A postal address."""
    record = {
        "street": f"{pick(TITLES, rng, 0.1).split()[-1]} Street {number(1, 120, rng)}",
        "city": pick(CITIES, rng, 0.1),
    }
    return record | {"postcode": str(number(10000, 99999, rng)), "country": "Germany"}


def event(rng: Random) -> dict:
    """Something in a calendar."""
    what = rng.choice(("Meeting", "Lunch", "Concert", "Workshop", "Interview", "Birthday"))
    guests = rng.sample(FIRST, 2)
    return {
        "title": what,
        "date": day(rng),
        "time": f"{number(8, 20, rng):02}:00",
        "place": pick(CITIES, rng, 0.1),
        "guests": guests,
    }


def weather(rng: Random) -> dict:
    """A weather report."""
    sky = rng.choice(("sunny", "cloudy", "rain", "snow"))
    return {
        "city": pick(CITIES, rng, 0.1),
        "date": day(rng),
        "temperature": number(-5, 35, rng),
        "sky": sky,
        "wind_kmh": number(0, 60, rng),
    }


def settings(rng: Random) -> dict:
    """The settings of a program."""
    theme = pick(("dark", "light"), rng)
    return {
        "theme": theme,
        "language": "en",
        "font_size": rng.choice((12, 14, 16)),
        "autosave": True,
        "plugins": [],
    }


def stats(rng: Random) -> dict:
    """The numbers of a run of localspec."""
    drafted = number(5, 20, rng) * 10
    accepted = drafted * number(4, 9, rng) // 10
    return {"pair": "demo", "drafted": drafted, "accepted": accepted, "acceptance_rate": accepted / drafted}


KINDS: dict[str, Callable[[Random], dict]] = {
    "a user": user,
    "a person": user,
    "a customer": user,
    "a product": product,
    "an order": order,
    "a book": book,
    "an address": address,
    "an event": event,
    "a calendar entry": event,
    "a weather report": weather,
    "a settings file": settings,
    "a run of localspec": stats,
}
ASKS = (
    "give me a json record for {k}",
    "{write|make|create|show me} a json {record|object} for {k}",
    "json for {k}",
    "{k} as json",
    "{k} in json",
    "an example of json for {k}",
    "give me {a json example|some json}",
    "a json record please",
)


def plural(kind: str) -> str:
    """Several of a kind."""
    noun = kind.split(" ", 1)[1]
    return {"person": "persons", "calendar entry": "calendar entries", "address": "addresses"}.get(
        noun, noun + "s"
    )


def records(rng: Random) -> list[Turn]:
    """One record, or a list of them; spaced unless asked otherwise."""
    kind = rng.choice(list(KINDS))
    if rng.random() < 0.15 and "localspec" not in kind and "settings" not in kind:
        n, word = rng.choice(((2, "two"), (3, "three")))
        ask, data = f"give me {word} {plural(kind)} as json", [KINDS[kind](rng) for _ in range(n)]
        return [Turn(typed(ask, rng), "[\n" + ",\n".join("  " + json.dumps(one) for one in data) + "\n]")]
    ask = spin(rng.choice(ASKS).replace("{k}", kind), rng, 0.0)
    compact = rng.random() < 0.2
    if compact:
        ask += rng.choice((" on one line", ", compact", " in one line", ", compact please"))
    data = (KINDS[kind] if kind in ask else user)(rng)
    turns = [Turn(typed(ask, rng), layout(data, compact))]
    if rng.random() < 0.15:
        again = rng.choice(("another one", "one more", "another", "give me another one"))
        turns.append(Turn(typed(again, rng), layout((KINDS[kind] if kind in ask else user)(rng), compact)))
    return turns


def layout(data: dict, compact: bool) -> str:
    """The record as text."""
    return json.dumps(data, separators=(",", ":")) if compact else json.dumps(data, indent=2)
