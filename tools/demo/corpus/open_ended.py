"""Requests without one right answer: poems, ideas, advice, descriptions, messages and plans."""

# ruff: noqa: E501 - tables of text read best with a row in a line

from collections.abc import Callable
from random import Random

from .spin import Turn, pick, spin, typed, words

WHAT_IT_DOES = "{sings|walks|sleeps|waits|shines|dreams|comes|turns} {over|above|beside|behind|along} the {hill|town|sea|trees|roofs|field|shore|bridge},"
LINES = (
    "The {moon|sun|wind|night|river|snow|sea|evening} " + WHAT_IT_DOES,
    "{A|One} {small|quiet|golden|silver|late|lonely|soft|blue} {bird|star|light|boat|leaf|cloud|song|lamp} {goes|drifts|turns|sails|finds its way|flies} {home|away|by|along|slowly|alone},",
    "{And|While|Now} {nobody|somebody|everyone|the garden|my heart|the old clock|a child} {knows|hears|counts|keeps|forgets|remembers} the {hours|days|stars|names|words|leaves|songs},",
    "{I|We|You} {hear|see|keep|follow|lose|love|carry} the {rain|light|road|summer|silence|music|morning} {in|of|under|without|beyond} {a|the} {dream|door|winter|garden|window|mountain|word},",
    "{Where|When|As} {shadows|roses|children|ships|voices|snowflakes} {fall|meet|grow|dance|rest|return} {softly|at last|again|in the dark|one by one|without a sound},",
)
CLOSINGS = (
    "And {tomorrow|morning|spring|the sea|all of it} {begins|waits|comes back|is near|sings} {again|for you|quietly|at the door}.",
    "{Stay|Listen|Sleep|Wait|Come} {a while|now|softly|with me}, the {night|world|song|year} is {long|young|kind|still|ours}.",
    "{So|Then} {let|may} the {wind|light|song|day} {go|stay|find us|begin} {tonight|here|once more|where it will}.",
)
POEM_TOPICS = (
    "the sea",
    "the night",
    "the moon",
    "winter",
    "spring",
    "love",
    "rain",
    "the wind",
    "autumn",
    "music",
    "home",
)
POEM_ASKS = (
    "{write|tell me|write me|compose} a {short |little |}poem{| please}",
    "a {short |}poem please",
    "can you write a {short |}{poem|verse}",
    "do you know a poem",
)
IDEAS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "dinner": (
        ("what should i {eat|cook}{| tonight| today}", "{give me|i need} {an idea for dinner|dinner ideas|a dinner idea}", "what can i cook", "what should i have for dinner"),
        ("{tomato|carrot|onion|pumpkin|potato|mushroom|bean} soup with {bread|cheese|cream|rice|herbs}", "{pasta|rice|noodles} with {tomatoes|mushrooms|spinach|garlic|cheese|beans|peas}",
         "a {warm|green|potato|bean|tomato|colourful} salad with {eggs|nuts|bread|cheese|apples}", "pancakes with {apples|honey|berries|bananas|sugar}", "{baked|fried|mashed} potatoes with {herbs|butter|onions|eggs|cheese}"),
    ),
    "gift": (
        ("{what|which} {present|gift} {should|could} i {give|buy}{| my friend| my mother| my brother}", "{give me|i need} {a gift idea|gift ideas|an idea for a present}"),
        ("a {good|funny|small|thick|thin} book about {stars|birds|cooking|travel|trees|music}", "a {warm|red|soft|blue|long} {scarf|hat|blanket|jumper}", "{two|three|a few} {plants|candles|cups} for the {kitchen|window|garden|desk}",
         "a {walk|day|picnic} in the {mountains|forest|park|museum}", "{home-made|fresh|dark} {chocolate|biscuits|bread|jam}"),
    ),
    "weekend": (
        ("what should i do {this weekend|today|on sunday|tonight|this evening}", "{give me|i need} {ideas|an idea} for the weekend", "i have a free day"),
        ("a {visit|call|letter} to {a good|an old} friend", "a {walk|ride|trip|picnic} {at|by} the {river|lake|forest|sea|park}", "something {new|old|funny|exciting} to {read|watch|play|listen to}",
         "a {cake|soup|loaf of bread} {to bake|to try} with {friends|family|somebody nice}", "{drawing|building|repairing|planting|painting} something {small|useful|beautiful|old}", "{sleeping|resting|dreaming} {late|well|in the sun}"),
    ),
    "names": (
        ("{give me|i need} {a|some} {name|names} for {a|my} {cat|dog|pet}", "how should i call my {cat|dog|pet}", "what is a good name for a {cat|dog|pet}", "pet names"),
        ("{Luna|Milo|Coco|Felix|Bella}", "{Pepper|Ginger|Biscuit|Cookie|Honey}", "{Max|Simba|Oscar|Rocky|Leo}", "{Shadow|Smoky|Snow|Cloud|Misty}", "{Daisy|Rosie|Poppy|Lily|Ruby}"),
    ),
    "hobby": (
        ("{what|which} hobby {should i try|is good for me}", "{give me|i need} {a hobby|hobby ideas|a new hobby}", "what could i learn", "what should i learn"),
        ("{playing|learning} {the piano|chess|the guitar|the drums|the flute}", "{drawing|painting|photographing} {birds|trees|people|houses|flowers}", "{baking|cooking|growing} {bread|vegetables|herbs|cakes}",
         "{running|swimming|cycling|climbing|dancing} {with friends|in the morning|once a week}", "{writing|reading} {stories|poems|letters}"),
    ),
}  # fmt: skip
IDEA_FRAMES = (
    "{How about {1}?|What about {1}?|Maybe {1}.|Perhaps {1}.|What do you say to {1}?} {Or|Otherwise|If not, then|Another idea:} {2}. {Have fun!|Enjoy it!|What do you think?|Both are lovely.|Good luck!|Tell me how it goes.|}",
    "{Here are|I have|There are} {three|a few|some} {ideas|thoughts|suggestions}: {1}, {2}, or {3}.",
    "{My|The} {first|favourite|best} {idea|choice|thought} is {1}. {After that|Second|Then|Next} comes {2}.",
)
SKIES = "{grey|clear|bright|pale|dark|golden|wide|stormy}"
DESCRIPTIONS: dict[str, tuple[str, ...]] = {
    "{a|the} {forest|wood}": (
        "The {forest|wood} is {dark|quiet|green|cool|old|deep}, and {light|mist|rain|silence|wind} {falls|lies|moves|hangs} between the {trees|leaves|branches|ferns}.",
        "{Somewhere|Far away|Above|Nearby} a {bird {calls|sings|answers}|stream {runs|whispers|murmurs}|branch {breaks|moves|falls}|deer {listens|waits|runs}|woodpecker {knocks|works|rests}}{| again| in the silence| for a moment}.",
        "It smells of {earth|rain|moss|wood|mushrooms|pine}.",
    ),
    "{a|the} {beach|sea}": (
        "The {sea|water|tide} is {calm|wild|blue|grey|cold|warm}, and the {waves|gulls|boats|children} {come|play|rise|shout|rest} {near the shore|in the wind|one after another|under a " + SKIES + " sky}.",
        "{Wet|Warm|White|Fine} sand {sticks to|runs through|covers} {everything|my feet|the shells|the path}.",
        "The air smells of {salt|sun|fish|summer|storms}.",
    ),
    "{a|the} {city|town}": (
        "The {streets|houses|squares|windows|markets} are {full|bright|narrow|loud|old|tall}, and {people|buses|bells|bicycles|voices} {hurry|wait|pass|laugh|ring} {everywhere|at every corner|until night|under a " + SKIES + " sky}.",
        "A {baker|cat|child|musician|waiter|dog} {sits|stands|sings|sleeps|smiles} {in front of|behind|beside} a {green|small|red|open|closed} {door|shop|window|gate}.",
        "It smells of {coffee|bread|rain|dust|flowers|smoke}.",
    ),
    "{a|the} {garden|park}": (
        "The {garden|park} is {small|wild|sunny|quiet|green|old}, and {roses|bees|herbs|apples|weeds|butterflies} {grow|hide|shine|wait|move} {by the wall|in the grass|under the trees|along the path|around the pond}.",
        "An old {bench|cat|tree|swing|gate|fountain} {waits|creaks|sleeps|dreams|stands} in the {shade|sun|corner|middle}.",
        "It smells of {grass|mint|earth|roses|summer|rain}.",
    ),
    "a {dream|strange dream}": (
        "I {flew|walked|swam|danced|fell} {over|through|into|across} a {city|forest|sea|house|garden} of {glass|paper|snow|light|music|stones}.",
        "{A|The} {fox|king|clock|child|fish|stranger} {asked|told|gave|showed} me {a riddle|the time|a secret|the way|my name}, and {I|everyone|nobody} {laughed|forgot|understood|answered|woke up}.",
        "Then {it|everything|the sky} {was|turned|became} {quiet|blue|morning|small|bright}.",
    ),
}  # fmt: skip
MESSAGES: dict[str, tuple[str, ...]] = {
    "{a birthday card|a birthday message|birthday wishes|a happy birthday message}": (
        "{Happy birthday|All the best|Many happy returns}, {name}!",
        "{I|We} {hope|wish} {your|the} {day|new year|year} {is|will be} {full of|rich in} {joy|cake|music|laughter|friends|sunshine}{, and that all your wishes come true| and surprises| from start to end|}.",
    ),
    "{a thank you note|a thank you card|a thank you message}": (
        "{Dear|Hello|Hi} {name}, {thank you|many thanks|thanks a lot} for {your help|the lovely evening|the flowers|everything|the book|your kind words}.",
        "It {made {me happy|my day|us smile}|meant {so much|a lot} to me|was {a great joy|just right|very kind}}.",
    ),
    "{an invitation|a party invitation|an invitation to a party}": (
        "{Dear|Hello|Hi} {name}, {please come|you are invited|I would love to see you|join us} on {Friday|Saturday|Sunday|Monday|Thursday} at {five|six|seven|eight|noon}.",
        "{There will be|We will have|Expect} {cake|music|soup|games|good food|dancing} and {friends|stories|lemonade|laughter|old songs}.",
    ),
    "{an excuse|an apology|a sorry note}": (
        "{Dear|Hello|Hi} {name}, I am {sorry|so sorry|afraid} that I {was late|forgot your birthday|missed the meeting|broke the cup|did not call}.",
        "{The|My} {bus|dog|clock|phone|train} {was|is} to blame, {and|but} I {will make it good|promise to do better|owe you a cake|shall bring flowers}.",
    ),
}  # fmt: skip
PEOPLE = words(
    "Anna Ben Clara David Emma Felix Grace Hugo Ida Jack Kate Leo Mia Noah Olga Paul Rosa Sam Tina Tom"
)


def wording(template: str, rng: Random) -> str:
    """A sentence with every choice taken, starting with a capital."""
    text = " ".join(spin(template, rng).split())
    return text[0].upper() + text[1:]


def poem(rng: Random) -> Turn:
    """Four lines that do not rhyme, the last one a farewell."""
    topic = rng.choice(POEM_TOPICS) if rng.random() < 0.4 else ""
    if topic:
        lines = [f"{topic} {WHAT_IT_DOES}", *rng.sample(LINES[1:], 2), pick(CLOSINGS, rng)]
        ask = f"{{write|make|write me|tell me}} a {{short |}}poem about {topic}"
    else:
        lines, ask = [*rng.sample(LINES, 3), pick(CLOSINGS, rng)], rng.choice(POEM_ASKS)
    return Turn(spin(ask, rng, 0.0), "\n".join(wording(line, rng) for line in lines))


def idea(rng: Random) -> Turn:
    """Two or three suggestions."""
    asks, ideas = IDEAS[rng.choice(list(IDEAS))]
    text = pick(IDEA_FRAMES, rng)
    for number, one in enumerate(rng.sample(ideas, 3), 1):
        text = text.replace(f"{{{number}}}", one)
    return Turn(spin(rng.choice(asks), rng, 0.0), wording(text, rng))


def description(rng: Random) -> Turn:
    """A place in three sentences."""
    what = rng.choice(list(DESCRIPTIONS))
    ask = f"{{describe|describe me|write about|write a few lines about|write a description of|tell me about}} {what}"
    return Turn(spin(ask, rng, 0.0), " ".join(wording(line, rng) for line in DESCRIPTIONS[what]))


def message(rng: Random) -> Turn:
    """A short note to somebody."""
    what = rng.choice(list(MESSAGES))
    name = rng.choice(PEOPLE)
    to = f" {rng.choice(('for', 'to'))} {name}" if rng.random() < 0.4 else ""
    ask = f"{{write|write me|i need|help me write}} {what}{to}"
    text = " ".join(wording(line.replace("{name}", name), rng) for line in MESSAGES[what])
    return Turn(spin(ask, rng, 0.0), text)


MAKERS: tuple[Callable[[Random], Turn], ...] = (poem, idea, description, message)


def open_ended(rng: Random) -> list[Turn]:
    """Any of the above, sometimes one more of the same kind."""
    make = rng.choice(MAKERS)
    first = make(rng)
    turns = [Turn(typed(first.asks, rng), first.says)]
    if make is poem and rng.random() < 0.2:
        turns.append(Turn(typed(rng.choice(("another one", "one more", "another")), rng), make(rng).says))
    return turns
