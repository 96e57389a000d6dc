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


def day(rng: Random) -> str:
    """A date in the ISO format."""
    return f"{rng.randint(2018, 2026)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


def user(rng: Random) -> dict:
    """A user of some service."""
    first, last = pick(FIRST, rng, 0.2), pick(LAST, rng, 0.2)
    record = {
        "id": rng.randint(1, 999),
        "name": f"{first} {last}",
        "email": f"{first}.{last}@example.com".lower(),
    }
    return record | {"age": rng.randint(18, 80), "city": rng.choice(CITIES), "active": rng.random() < 0.7}


def product(rng: Random) -> dict:
    """Something that is sold."""
    record = {"id": rng.randint(1, 999), "name": rng.choice(PRODUCTS), "color": rng.choice(COLORS)}
    return record | {
        "price": rng.randint(5, 200) - 0.01,
        "in_stock": rng.random() < 0.7,
        "tags": ["home", "new"],
    }


def order(rng: Random) -> dict:
    """An order with its lines."""
    lines = [
        {"product": rng.choice(PRODUCTS), "quantity": rng.randint(1, 5)} for _ in range(pick((2, 1, 3), rng))
    ]
    status = pick(("shipped", "open", "paid", "delivered"), rng, 0.4)
    return {
        "id": rng.randint(1000, 9999),
        "date": day(rng),
        "customer": rng.choice(FIRST),
        "lines": lines,
        "status": status,
    }


def book(rng: Random) -> dict:
    """A book."""
    record = {"title": rng.choice(TITLES), "author": f"{rng.choice(FIRST)} {rng.choice(LAST)}"}
    return record | {"year": rng.randint(1950, 2025), "pages": rng.randint(80, 600), "language": "English"}


def address(rng: Random) -> dict:
    """A postal address."""
    record = {
        "street": f"{rng.choice(TITLES).split()[-1]} Street {rng.randint(1, 120)}",
        "city": rng.choice(CITIES),
    }
    return record | {"postcode": str(rng.randint(10000, 99999)), "country": "Germany"}


def event(rng: Random) -> dict:
    """Something in a calendar."""
    what = rng.choice(("Meeting", "Lunch", "Concert", "Workshop", "Interview", "Birthday"))
    guests = rng.sample(FIRST, 2)
    return {
        "title": what,
        "date": day(rng),
        "time": f"{rng.randint(8, 20):02}:00",
        "place": rng.choice(CITIES),
        "guests": guests,
    }


def weather(rng: Random) -> dict:
    """A weather report."""
    sky = rng.choice(("sunny", "cloudy", "rain", "snow"))
    return {
        "city": rng.choice(CITIES),
        "date": day(rng),
        "temperature": rng.randint(-5, 35),
        "sky": sky,
        "wind_kmh": rng.randint(0, 60),
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
    drafted = rng.randint(5, 20) * 10
    accepted = drafted * rng.randint(4, 9) // 10
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
