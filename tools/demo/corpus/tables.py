"""Facts that come in rows: countries, elements, animals, opposites and the calendar."""

from random import Random

from .spin import Turn, pick, spin, typed, words

COUNTRIES = """
France|Paris|Europe|French|the euro
Germany|Berlin|Europe|German|the euro
Italy|Rome|Europe|Italian|the euro
Spain|Madrid|Europe|Spanish|the euro
Portugal|Lisbon|Europe|Portuguese|the euro
Austria|Vienna|Europe|German|the euro
Switzerland|Bern|Europe|German, French, Italian and Romansh|the Swiss franc
the Netherlands|Amsterdam|Europe|Dutch|the euro
Belgium|Brussels|Europe|Dutch, French and German|the euro
Denmark|Copenhagen|Europe|Danish|the Danish krone
Sweden|Stockholm|Europe|Swedish|the Swedish krona
Norway|Oslo|Europe|Norwegian|the Norwegian krone
Finland|Helsinki|Europe|Finnish and Swedish|the euro
Iceland|Reykjavik|Europe|Icelandic|the Icelandic krona
Ireland|Dublin|Europe|English and Irish|the euro
the United Kingdom|London|Europe|English|the pound
England|London|Europe|English|the pound
Scotland|Edinburgh|Europe|English|the pound
Poland|Warsaw|Europe|Polish|the zloty
the Czech Republic|Prague|Europe|Czech|the koruna
Slovakia|Bratislava|Europe|Slovak|the euro
Hungary|Budapest|Europe|Hungarian|the forint
Greece|Athens|Europe|Greek|the euro
Romania|Bucharest|Europe|Romanian|the leu
Croatia|Zagreb|Europe|Croatian|the euro
Serbia|Belgrade|Europe|Serbian|the dinar
Ukraine|Kyiv|Europe|Ukrainian|the hryvnia
Russia|Moscow|Europe and Asia|Russian|the rouble
Turkey|Ankara|Asia and Europe|Turkish|the lira
Egypt|Cairo|Africa|Arabic|the Egyptian pound
Morocco|Rabat|Africa|Arabic and Berber|the dirham
Kenya|Nairobi|Africa|Swahili and English|the Kenyan shilling
Nigeria|Abuja|Africa|English|the naira
Ethiopia|Addis Ababa|Africa|Amharic|the birr
Ghana|Accra|Africa|English|the cedi
China|Beijing|Asia|Chinese|the yuan
Japan|Tokyo|Asia|Japanese|the yen
South Korea|Seoul|Asia|Korean|the won
India|New Delhi|Asia|Hindi and English|the rupee
Thailand|Bangkok|Asia|Thai|the baht
Vietnam|Hanoi|Asia|Vietnamese|the dong
Indonesia|Jakarta|Asia|Indonesian|the rupiah
Israel|Jerusalem|Asia|Hebrew|the shekel
Iran|Tehran|Asia|Persian|the rial
Australia|Canberra|Australia|English|the Australian dollar
New Zealand|Wellington|Oceania|English and Maori|the New Zealand dollar
Canada|Ottawa|North America|English and French|the Canadian dollar
the United States|Washington|North America|English|the US dollar
the USA|Washington|North America|English|the US dollar
Mexico|Mexico City|North America|Spanish|the Mexican peso
Cuba|Havana|North America|Spanish|the Cuban peso
Brazil|Brasilia|South America|Portuguese|the real
Argentina|Buenos Aires|South America|Spanish|the Argentine peso
Chile|Santiago|South America|Spanish|the Chilean peso
Peru|Lima|South America|Spanish|the sol
Colombia|Bogota|South America|Spanish|the Colombian peso
"""
ELEMENTS = """
hydrogen|H|1
helium|He|2
lithium|Li|3
carbon|C|6
nitrogen|N|7
oxygen|O|8
neon|Ne|10
sodium|Na|11
magnesium|Mg|12
aluminium|Al|13
silicon|Si|14
sulfur|S|16
chlorine|Cl|17
potassium|K|19
calcium|Ca|20
iron|Fe|26
nickel|Ni|28
copper|Cu|29
zinc|Zn|30
silver|Ag|47
tin|Sn|50
gold|Au|79
mercury|Hg|80
lead|Pb|82
uranium|U|92
"""
ANIMALS = """
dog|a mammal|four|puppy|barks
cat|a mammal|four|kitten|meows
cow|a mammal|four|calf|moos
horse|a mammal|four|foal|neighs
sheep|a mammal|four|lamb|bleats
pig|a mammal|four|piglet|grunts
lion|a mammal|four|cub|roars
wolf|a mammal|four|pup|howls
goat|a mammal|four|kid|bleats
bear|a mammal|four|cub|growls
duck|a bird|two|duckling|quacks
hen|a bird|two|chick|clucks
owl|a bird|two|owlet|hoots
frog|an amphibian|four|tadpole|croaks
bee|an insect|six|larva|buzzes
swan|a bird|two|cygnet|hisses
"""
OPPOSITES = """
hot cold|big small|fast slow|old young|new old|good bad|up down|left right|day night|black white|open closed
happy sad|light dark|early late|long short|high low|rich poor|strong weak|hard soft|full empty|wet dry|true false
near far|loud quiet|sweet sour|clean dirty|cheap expensive|easy difficult|first last|inside outside|begin end
buy sell|love hate|win lose|push pull|give take|always never|more less|deep shallow|wide narrow|heavy light
"""
PLANETS = words("Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune")
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = words("January February March April May June July August September October November December")
ORDINALS = words("first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth")
LENGTHS = dict(zip(MONTHS, (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31), strict=True))


def rows(table: str) -> list[list[str]]:
    """The rows of a table above."""
    return [line.split("|") for line in table.strip().splitlines()]


COUNTRY_ROWS, ELEMENT_ROWS, ANIMAL_ROWS = rows(COUNTRIES), rows(ELEMENTS), rows(ANIMALS)
PAIRS = [pair.split() for line in rows(OPPOSITES) for pair in line]


def turn(asks: str, says: str, rng: Random) -> Turn:
    """A turn whose question is any wording and whose answer is mostly the first."""
    says = spin(says, rng)
    return Turn(typed(spin(asks, rng, 0.0), rng), says[0].upper() + says[1:])


def countries(rng: Random) -> list[Turn]:
    """One or more questions on countries; short follow-ups rely on the question before."""
    kind = pick(("capital", "continent", "language", "currency", "city"), rng, 0.5)
    found = rng.sample(COUNTRY_ROWS, pick((1, 2, 3), rng, 0.6))
    first = country(kind, found[0], rng)
    rest = [Turn(typed(f"{rng.choice(('and of', 'and', 'what about', 'and for', 'how about'))} {row[0]}", rng),
                 country(kind, row, rng).says) for row in found[1:]] if kind != "city" else []  # fmt: skip
    return [first, *rest]


def country(kind: str, row: list[str], rng: Random) -> Turn:
    """One question on one country."""
    name, capital, continent, language, currency = row
    asks, says = {
        "capital": (
            f"{{what is|what's|tell me|name}} the capital {{of|city of}} {name}|capital of {name}|"
            f"{name} capital|which city is the capital of {name}|do you know the capital of {name}",
            f"{{The capital of {name} is {capital}.|It is {capital}.|{capital} is the capital of {name}.}}",
        ),
        "continent": (
            f"{{where is {name}|on which continent is {name}|which continent is {name} in|where does {name} lie}}",
            f"{{{name} is|It is|{name} lies}} in {continent}.",
        ),
        "language": (
            f"{{what language do they speak in {name}|which language is spoken in {name}|what do people speak in "
            f"{name}|what is the language of {name}}}",
            f"{{In {name}, people speak {language}.|People there speak {language}.}}",
        ),
        "currency": (
            f"{{what is the currency of {name}|what money is used in {name}|which currency does {name} use|"
            f"how do i pay in {name}}}",
            f"{{The currency of {name} is {currency}.|In {name} you pay with {currency}.}}",
        ),
        "city": (
            f"{{which country has the capital {capital}|{capital} is the capital of which country|"
            f"where is {capital}|in which country is {capital}}}",
            f"{{{capital} is|It is|That is}} the capital of {name}.",
        ),
    }[kind]
    return turn("{" + asks + "}" if kind == "capital" else asks, says, rng)


def elements(rng: Random) -> list[Turn]:
    """A question on a chemical element."""
    name, symbol, number = rng.choice(ELEMENT_ROWS)
    options = (
        (f"what is the {{chemical|}} symbol {{of|for}} {name}", f"The symbol of {name} is {symbol}."),
        (f"what is the atomic number of {name}", f"The atomic number of {name} is {number}."),
        (f"which element has the symbol {symbol}", f"{symbol} stands for {name}."),
    )
    asks, says = rng.choice(options)
    return [turn(asks.replace("  ", " "), says, rng)]


def animals(rng: Random) -> list[Turn]:
    """A question on a common animal."""
    name, kind, legs, young, sound = rng.choice(ANIMAL_ROWS)
    a = "an" if name[0] in "aeiou" else "a"
    options = (
        (f"what is {a} {name}", f"{a} {name} is {kind} with {legs} legs."),
        (f"how many legs does {a} {name} have", f"{{{a} {name} has|It has}} {legs} legs."),
        (
            f"what is {{a baby {name} called|the young of {a} {name} called}}",
            f"The young of {a} {name} is called a {young}.",
        ),
        (f"what {{sound|noise}} does {a} {name} make", f"{a} {name} {sound}."),
    )
    return [turn(*rng.choice(options), rng)]


def opposites(rng: Random) -> list[Turn]:
    """The opposite of a word."""
    word, other = rng.choice(PAIRS)
    if rng.random() < 0.4 and [word, other] != ["new", "old"] and word not in ("heavy",):
        word, other = (other, word) if other not in ("old", "light", "short", "low") else (word, other)
    asks = f"{{what is the opposite of {word}|opposite of {word}|what's the opposite of {word}|the opposite of {word}}}"
    says = f"{{The opposite of {word} is {other}.|It is {other}.|{other.capitalize()} is the opposite of {word}.}}"
    return [turn(asks, says, rng)]


def calendar(rng: Random) -> list[Turn]:
    """What comes before, after, and how long the months are."""
    month = rng.choice(MONTHS)
    names, what = rng.choice(((DAYS, "day"), (MONTHS, "month"), (PLANETS, "planet")))
    at = rng.randrange(len(names) if what != "planet" else len(names) - 1)
    later = names[(at + 1) % len(names)]
    if rng.random() < 0.3:
        days = f"{month} has {LENGTHS[month]} days{', and 29 in a leap year' if month == 'February' else ''}."
        return [turn(f"how many days {{are in|does}} {month}", days, rng)]
    options = (
        (f"{{what|which}} {what} comes after {names[at]}", f"After {names[at]} comes {later}."),
        (f"{{what|which}} {what} comes before {later}", f"Before {later} comes {names[at]}."),
        (f"{{what|which}} is the {ORDINALS[at]} {what}{' of the week' if what == 'day' else ''}",
         f"The {ORDINALS[at]} {what} is {names[at]}."),
    )  # fmt: skip
    return [turn(*rng.choice(options), rng)]
