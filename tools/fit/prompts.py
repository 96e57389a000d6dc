"""Prompts of four kinds, and of two others, made from parts: the data and the questions of the proof on SmolLM2."""

from collections.abc import Iterator
from random import Random

TOPICS = (
    "photosynthesis,volcanoes,the moon,bread,coffee,bicycles,chess,jazz,gardening,bees,recycling,electricity,rivers,"
    "the Roman Empire,dinosaurs,saving money,sleep,running,yoga,public speaking,job interviews,houseplants,cats,dogs,"
    "rainbows,tides,glaciers,vaccines,solar panels,batteries,the internet,email,passwords,maps,compasses,painting,"
    "photography,cooking rice,soup,tea,cheese,chocolate,train travel,camping,hiking,swimming,football,tennis,weather,"
    "clouds,thunder,earthquakes,stars,planets,gravity,magnets,sound,light,mirrors,glass,steel,paper,printing,books,"
    "libraries,museums,castles,bridges,ships,aeroplanes,rockets,robots,computers,bees and flowers,forests,deserts,oceans"
).split(",")
ASKS = (
    "What is interesting about {}?",
    "Explain {} to a ten-year-old.",
    "Give me five facts about {}.",
    "Why are people interested in {}?",
    "How would you begin to learn about {}?",
    "Tell me a short story about {}.",
    "What are common mistakes people make with {}?",
    "Write three tips about {}.",
    "Describe {} in two paragraphs.",
    "What are the advantages and disadvantages of {}?",
    "Who should care about {}, and why?",
)
VERBS = (
    "sorts,reverses,counts the words in,removes duplicates from,finds the largest value in,sums,averages,filters,"
    "groups,flattens,rotates,shuffles,searches,merges,validates,parses,formats,compresses,splits,joins"
).split(",")
THINGS = (
    "a list of numbers,a list of strings,a dictionary,a string,a text file,a CSV file,a list of tuples,a matrix,"
    "a linked list,a binary tree,a date,a URL,an email address,a sentence,a list of dictionaries,a JSON file,a queue"
).split(",")
CODE = (
    "Write a Python function that {} {}.",
    "Write a Python function that {} {}, with a docstring and an example.",
    "Show me Python code that {} {}.",
    "Implement a function in Python that {} {} and explain it briefly.",
)
NAMES = "Anna,Ben,Clara,David,Emma,Felix,Grace,Hugo,Iris,Jonas,Kira,Liam,Mona,Noah,Olga,Paul,Rosa,Sam,Tina,Victor".split(
    ","
)
CITIES = "Berlin,Paris,Rome,Madrid,Oslo,Vienna,Prague,Lisbon,Dublin,Athens,Helsinki,Warsaw,Zurich,Ghent,Turin".split(
    ","
)
JOBS = "teacher,nurse,baker,engineer,pilot,farmer,painter,lawyer,driver,chemist,tailor,writer,plumber,chef".split(
    ","
)
RECORDS = (
    "Return a JSON object for a person named {name}, {age} years old, a {job} from {city}, with hobbies as a list.",
    "Convert to JSON: {name} is {age}, works as a {job} and lives in {city}.",
    "Write a JSON list of three people who live in {city}, with name, age and job. The first is {name}, a {job}.",
    "Give me a JSON object that describes an order by {name} from {city}: {count} items with sku, quantity and price.",
)
SENTENCES = (
    "{name} went to {city} last week and bought {count} old books about {topic}.",
    "The {job} from {city} was very tired because he had worked for {count} hours without a break.",
    "Many people in {city} think that {topic} is the best thing that has ever happened to them.",
    "{name} and {other} has been friends since they was {count} years old and they likes {topic}.",
    "Because the train to {city} was late, {name} the {job} could not come to the meeting about {topic}.",
    "i dont know why {name} always talk about {topic} when we are in {city}",
)
REWRITES = (
    "Rewrite this in a formal tone: {}",
    "Correct the grammar and repeat the text: {}",
    "Make this shorter: {}",
    "Rewrite this text in the past tense: {}",
    "Rewrite this text so that a child understands it: {}",
    "Repeat this text, but change every name to Alex: {}",
)
OTHER = (
    "Translate into French: {}",
    "What is {a} plus {b} times {c}? Think step by step.",
    "Write a poem of eight lines about {topic}.",
    "Write a SQL query that lists all {job}s from {city} older than {age}.",
    "List the letters of the word {topic} in order.",
    "Write a short dialogue between a {job} and a {other_job}.",
)
FITTED = ("chat", "code", "json", "rewriting")


def prompt(kind: str, rng: Random) -> str:
    """One prompt of a kind: one of `FITTED`, or "other"."""
    if kind == "chat":
        return rng.choice(ASKS).format(rng.choice(TOPICS))
    if kind == "code":
        return rng.choice(CODE).format(rng.choice(VERBS), rng.choice(THINGS))
    if kind == "json":
        return rng.choice(RECORDS).format(**words(rng))
    sentences = " ".join(rng.choice(SENTENCES).format(**words(rng)) for _ in range(rng.randint(2, 4)))
    if kind == "rewriting":
        return rng.choice(REWRITES).format(sentences)
    return rng.choice(OTHER).format(sentences, **words(rng))


def words(rng: Random) -> dict[str, str]:
    return {
        "name": rng.choice(NAMES),
        "other": rng.choice(NAMES),
        "city": rng.choice(CITIES),
        "job": rng.choice(JOBS),
        "other_job": rng.choice(JOBS),
        "topic": rng.choice(TOPICS),
        "age": str(rng.randint(18, 80)),
        "count": str(rng.randint(2, 30)),
        "a": str(rng.randint(2, 99)),
        "b": str(rng.randint(2, 99)),
        "c": str(rng.randint(2, 9)),
    }


def unseen(count: int, seen: set[str], kinds: tuple[str, ...] = (*FITTED, "other")) -> list[tuple[str, str]]:
    """(kind, prompt) that no training prompt equals, `count` of each kind."""
    rng, found = Random("unseen"), []
    for kind in kinds:
        mine: set[str] = set()
        while len(mine) < count:
            if (text := prompt(kind, rng)) not in seen:
                mine.add(text)
        found += [(kind, text) for text in sorted(mine)]
    return found


def training(seed: int) -> Iterator[tuple[str, str]]:
    """(kind, prompt) without end, the kinds in turn."""
    rng = Random(f"training/{seed}")
    held_out = {text for _, text in unseen(15, set())}
    while True:
        for kind in FITTED:
            if (text := prompt(kind, rng)) not in held_out:
                yield kind, text
