"""Short stories in many wordings, and small games such as repeating a word."""

# ruff: noqa: E501 - tables of text read best with a row in a line

from dataclasses import dataclass
from random import Random

from .spin import Turn, pick, spin, typed, words


@dataclass(frozen=True, slots=True)
class Hero:
    """Who a story is about."""

    first: str
    noun: str
    he: str
    his: str
    him: str


IT, SHE, HE = ("it", "its", "it"), ("she", "her", "her"), ("he", "his", "him")
KINDS = words("fox cat mouse owl robot dragon bear dog rabbit hedgehog frog crow goat whale horse")
PEOPLE = (
    ("girl", SHE, "Mia Lily Ada Nora Ella"), ("boy", HE, "Tom Ben Leo Sam Jack"), ("baker", SHE, "Clara Rosa Emma"),
    ("sailor", HE, "Hugo Paul Oscar"), ("gardener", SHE, "Ida Olga Tina"), ("painter", HE, "Felix Noah Max"),
    ("teacher", SHE, "Anna Kate Grace"), ("king", HE, "Otto Henry Arthur"), ("princess", SHE, "Stella Marie Luna"),
)  # fmt: skip
NATURES = "{little|small|young|curious|brave|clever|shy|lonely|quiet|happy|tired|wise|kind|lazy|proud|gentle}"
PLACES = (
    "{in|near|behind|beside} {a|the} {deep|dark|green|quiet|wide|little|silent|great} {forest|valley|lake|river|garden|hill|field|wood}",
    "in {a|the} {small|quiet|sleepy|tiny|busy|lovely} {village|town|harbour|house} {by the sea|at the river|in the hills|among old trees|under tall cliffs}",
    "on {a|the} {far|green|lonely|small|windy|sunny} {island|farm|mountain|hill|shore}",
    "at the {edge|end|foot|top} of {the world|a long road|a high mountain|an old forest|a steep hill}",
)
OPENINGS = (
    "{Once upon a time|Long ago|Once|Many years ago|Not so long ago|In another time}, {who} lived {place}.",
    "There {once was|was once|lived} {who} {place}.",
    "{Far away|Far from here|A long way off|Somewhere}, {place}, lived {who}.",
)
HABITS = (
    "{Every|Each} {morning|evening|night|day|spring|Sunday}, {he} {watched|counted|greeted|painted|drew|fed|sang to|talked to} the {birds|stars|boats|clouds|flowers|ships|trees|children}.",
    "{Nothing|Nobody|Hardly anyone|No one} {he} {knew|met|loved} was as {dear|important|close} to {him} as {his} {old|small|red|best|broken|blue|warm} {lamp|book|boat|drum|friend|kite|hat|coat}.",
    "{Most|Some|Other} {people|neighbours|strangers|friends} {called|thought|found} {him} {a bit|rather|quite|very} {strange|slow|funny|quiet|dreamy|wild}{, but that did not matter| and left {him} alone|, and perhaps they were right}.",
    "{His} {greatest|only|secret|dearest|oldest} {wish|dream|plan|hope} was to {see|find|reach|visit|touch|cross} the {sea|moon|mountains|ocean|snow|city|sky}.",
)
EVENTS = (
    "{One|Then one|But one} {cold|bright|rainy|foggy|warm|windy|quiet|grey} {morning|evening|night|day|afternoon}, {he} {found|discovered|saw|noticed|spotted|picked up} a {silver|golden|strange|tiny|rusty|shining|broken|wooden} {key|box|map|ring|bell|letter|door|coin|bottle|egg} {in|under|behind|beside} {the {grass|snow|barn|garden|hay}|an old {bridge|oak|wall|well|stone|chair}}.",
    "{One|Then one|But one} {cold|bright|rainy|foggy|warm|windy|quiet|grey} {morning|evening|night|day|afternoon}, a {terrible|great|sudden|cold|wild} {storm|wind|rain|flood|fog} {came|rose|arrived|began}, and {nobody|no one|hardly anyone} {could|dared to} {sleep|leave|see|move|speak}.",
    "{One|Then one|But one} {cold|bright|rainy|foggy|warm|windy|quiet|grey} {morning|evening|night|day|afternoon}, {he} {heard|met|saw|found|noticed} a {lost|crying|wounded|hungry|frightened|singing|lonely} {bird|child|stranger|kitten|wolf|lamb|traveller} {near|behind|under|beside} the {gate|bridge|well|mill|road|tree|fire}.",
    "{Suddenly|That year|One winter|One summer|Then}, the {well|river|lake|fire|mill|music|light} {stopped|dried up|went out|fell silent|was gone}, and {everybody|the whole place|all of them|the village} {worried|wondered|grew sad|waited|cried}.",
)
STRUGGLES = (
    '"{What {now|can I do|is to be done}|Who {could|will} help|How {can|could} {I|this} go on|Where {now|to|can help be found}}?" {he} {asked|wondered|thought|whispered|said}.',
    "{So|And so|Without a word|At once|After a while|The next day} {he} {went|walked|climbed|set off|ran|wandered|travelled} {over|through|across|along|past} the {hills|forest|river|fields|bridge|snow|mountains}, {alone|step by step|without fear|singing softly|day and night|slowly}.",
    "{For|After|In|Within} {three|seven|two|many|five|ten} {days|nights|weeks|hours} {he} {looked|searched|worked|waited|asked|listened|dug} {everywhere|in vain|without rest|patiently|and hoped|quietly}.",
    '{An old|A wise|A strange|A friendly|A talking} {owl|woman|man|turtle|tree|bird|crow} {said|whispered|laughed|answered|sang}: "{Be {patient|brave|kind|still}|Look {closely|inside|up|again}|Listen {well|closely|to the wind}|Wait {here|until dawn}|Go {slowly|home|on}}, and you will {find|see|know|understand|hear} {it|the way|the answer|the truth}."',
    "{It|The way|The work|Everything} was {long|hard|cold|steep|dark|lonely}, but {he} {did not give up|never stopped|kept going|only smiled|held on|sang}.",
)
SOLUTIONS = (
    "{At last|Finally|In the end|On the last day|Then}, {he} {opened|lit|shared|found|mended|gave away|understood} {it|the lamp|the secret|the treasure|what was lost|everything}, and {all|everybody|even the oldest|the whole place} {laughed|danced|cheered|was amazed|smiled|sang}.",
    "{At last|Finally|In the end|On the last day|Then}, {a|the} {small|warm|clear|golden|soft} {light|song|voice|spring|wind|rain} {came|appeared|rose|broke through|filled the air}, and the {trouble|danger|fear|darkness|silence} was {over|gone|forgotten}.",
    "{There|Behind the last hill|Inside|Not far away|At the end of the path} {he} {found|saw|met|discovered} {a friend|someone|the one thing|a wonder|a treasure} that {nobody had seen before|made {him} happy|could help|was needed most}.",
)
ENDS = (
    "{From then on|Since that day|After that|Ever since}, {nobody|no one|not even the youngest} {there|in that place|around} was {afraid|lonely|sad|in a hurry} {again|any more}.",
    "{And|So} {that|this} is {how|why} {a small thing {became|turned into} {something big|a treasure|a story}|{courage|patience|kindness} {won|matters|was enough}|the {noun} {became|grew} {famous|happy|brave|old and wise}}.",
    "{Even now|Today|To this day|In that place}, {the old ones|they|people|children|the birds} {still tell|remember|sing of|love|speak of} {this story|that day|the {noun}|it}.",
    "{They|All of them|The friends} {lived|stayed|laughed|sang} {together|happily|there} {ever after|for many years|until late in the night|to this day}.",
)
ASKS = (
    "{tell|write|tell me|write me} a {short |little |}story{| please}",
    "a {short |}story please",
    "can you tell me a {short |}story",
    "do you know a {story|fairy tale}",
    "{another|one more} story{| please}",
    "once upon a time",
)


def hero(rng: Random, noun: str = "") -> Hero:
    """Somebody to tell about: an animal, or a person with a name."""
    people = {person[0]: person for person in PEOPLE}
    noun = noun or (rng.choice(KINDS) if rng.random() < 0.5 else rng.choice(list(people)))
    nature = spin(NATURES, rng)
    article = "an" if nature[0] in "aeiou" else "a"
    if noun in people:
        _, pronouns, names = people[noun]
        return Hero(
            f"{article} {nature} {noun} {rng.choice(('called', 'named'))} {rng.choice(names.split())}",
            noun,
            *pronouns,
        )
    return Hero(f"{article} {nature} {noun}", noun, *IT)


def story(rng: Random, noun: str = "") -> str:
    """A story of six sentences or so."""
    someone = hero(rng, noun)
    habits, struggles = rng.sample(HABITS, rng.choice((0, 1, 1))), rng.sample(STRUGGLES, rng.choice((1, 2)))
    before = [pick(OPENINGS, rng), *habits, pick(EVENTS, rng)]
    frames = [*before, *struggles, pick(SOLUTIONS, rng), pick(ENDS, rng)]
    return " ".join(filled(frame, someone, rng) for frame in frames)


def filled(frame: str, someone: Hero, rng: Random) -> str:
    """One sentence with every choice taken and the hero put in."""
    frame = frame.replace("{place}", pick(PLACES, rng)).replace("{who}", someone.first)
    for name in ("he", "his", "him", "noun"):
        word = getattr(someone, name)
        frame = frame.replace(f"{{{name}}}", word).replace(f"{{{name.title()}}}", word.title())
    text = spin(frame, rng)
    return text[0].upper() + text[1:]


def stories(rng: Random) -> list[Turn]:
    """Ask for a story, sometimes for one about somebody."""
    if rng.random() < 0.45:
        noun = rng.choice([*KINDS, *(person[0] for person in PEOPLE)])
        about = f"{{tell|tell me|write}} a {{short |}}story about {{a|the}} {noun}"
        return [Turn(typed(spin(about, rng, 0.0), rng), story(rng, noun))]
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
