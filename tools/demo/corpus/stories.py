"""Short stories from parts that fit together, and small games such as repeating a word."""

from random import Random

from .spin import Turn, pick, spin, typed, words

HEROES = (
    ("a little fox", "fox", "it"),
    ("a young girl called Mia", "girl", "she"),
    ("an old sailor", "sailor", "he"),
    ("a small robot", "robot", "it"),
    ("a curious cat", "cat", "it"),
    ("a brave mouse", "mouse", "it"),
    ("a boy called Tom", "boy", "he"),
    ("a tired dragon", "dragon", "it"),
    ("a wise owl", "owl", "it"),
    ("a young baker", "baker", "she"),
)
PLACES = (
    "at the edge of a deep forest",
    "in a small village by the sea",
    "on a quiet farm",
    "in a tall house in the city",
    "on an island with a single tree",
    "high up in the mountains",
)
TROUBLES = (
    ("{P} found a silver key in the grass. For three days {p} looked for the door that it opened.",
     "On the fourth day {p} found a tiny box under an old oak. Inside lay a note: the search was the treasure."),
    ("{P} wanted to see what lies behind the hills. Everybody said that it was too far.",
     "So {p} went one mile each day, and in spring {p} stood at the top and saw the sea shine."),
    ("all the lights went out in a great storm. Nobody could find the way home.",
     "The {n} lit a lamp and stood with it in the rain until the last one was safe."),
    ("{P} heard somebody crying behind the wall. It was a bird with a broken wing.",
     "The {n} cared for it all winter, and every year since then the bird has come back to sing."),
    ("{P} lost the way in the fog. Every path looked the same.",
     "Then {p} stopped, listened, and followed the sound of the river until {p} was home."),
    ("the well ran dry, and the whole place was thirsty.",
     "The {n} dug for seven days, and on the seventh day clear water filled the well again."),
)  # fmt: skip
STARTS = ("One {m}", "One cold {m}", "One {m} in spring")
MOMENTS = ("morning", "evening", "day")
ENDS = (
    "From then on, nobody there was afraid of the dark.",
    "And that is how a small thing became a big one.",
    "And if you go there today, they will still tell you about it.",
    "Since that day, they have all been friends.",
)
ASKS = (
    "{tell|write|tell me|write me} a {short |little |}story{| please}",
    "a {short |}story please",
    "can you tell me a {short |}story",
    "do you know a {story|fairy tale}",
    "{another|one more} story{| please}",
    "once upon a time",
)


def story(rng: Random, hero: tuple[str, str, str] | None = None) -> str:
    """A story of four sentences or so."""
    who, noun, pronoun = hero or pick(HEROES, rng, 0.3)
    trouble, rescue = pick(TROUBLES, rng, 0.25)
    start = pick(STARTS, rng).replace("{m}", pick(MOMENTS, rng))
    text = f"Once upon a time, {who} lived {pick(PLACES, rng, 0.3)}. {start}, {trouble} {rescue} {pick(ENDS, rng, 0.3)}"
    return text.replace("{P}", f"the {noun}").replace("{p}", pronoun).replace("{n}", noun)


def stories(rng: Random) -> list[Turn]:
    """Ask for a story, sometimes for one about somebody."""
    if rng.random() < 0.4:
        hero = rng.choice(HEROES)
        about = f"{{tell me|write}} a {{short |}}story about {{a|the}} {hero[1]}"
        return [Turn(typed(spin(about, rng, 0.0), rng), story(rng, hero))]
    return [Turn(typed(spin(rng.choice(ASKS), rng, 0.0), rng), story(rng))]


WORDS = words("""
hello goodbye banana speculative localspec draft target token apple river yellow window garden music summer winter
computer python elephant mountain orange silver paper morning evening bread coffee water friend happy quiet quick
""")


def games(rng: Random) -> list[Turn]:
    """Say it again, spell it, or how many letters: answers that are copied from the question."""
    word = rng.choice(WORDS)
    some = " ".join(rng.sample(WORDS, rng.randint(1, 4)))
    options = (
        (f"{{say|repeat|please say|just say|say the word}} {some}", some[0].upper() + some[1:] + "."),
        (f"{{repeat after me|say this|echo}}: {some}", some[0].upper() + some[1:] + "."),
        (f"{{spell|how do you spell|spell the word|can you spell}} {word}", "-".join(word)),
        (
            f"{{how many letters does {word} have|how many letters are in {word}}}",
            f"{'-'.join(word)}: {len(word)} letters.",
        ),
        (f"what is the first letter of {word}", f'The first letter of "{word}" is {word[0]}.'),
        (f"what is the last letter of {word}", f'The last letter of "{word}" is {word[-1]}.'),
    )
    asks, says = rng.choice(options)
    return [Turn(typed(spin(asks, rng, 0.0), rng), says)]
