"""Questions outside the demo's topics, and the honest answers to them."""

# ruff: noqa: E501 - tables of text read best with a row in a line

from random import Random

from .spin import PREFERRED, Turn, pick, spin, typed, words

SUBJECTS = (
    """
quantum chromodynamics|the stock market|the roman empire|black holes|the french revolution|string theory|tax law
the offside rule|photoshop|kubernetes|rust|haskell|javascript|typescript|docker|react|excel|the bible|buddhism|opera
baroque music|jazz|heavy metal|pop music|football|basketball|tennis|chess openings|gardening|roses|car engines|bitcoin
blockchain|inflation|interest rates|the european union|the united nations|climate change|nuclear fusion|dark matter
genetics|vaccines|antibiotics|vitamins|yoga|meditation|stoicism|kant|plato|nietzsche|hegel|existentialism|capitalism
socialism|feudalism|the middle ages|the vikings|napoleon|caesar|cleopatra|gandhi|lincoln|picasso|rembrandt|bach|chopin
the beatles|elvis|star wars|harry potter|the lord of the rings|pokemon|minecraft|tetris|sudoku|poker|origami|knitting
sushi|lasagna|sourdough|wine|whisky|cheesecake|my dog|my neighbour|my job|my girlfriend|my car|my garden|my exam|marriage
thermodynamics|entropy|topology|calculus|integrals|matrices|group theory|the riemann hypothesis|prime gaps|cryptography
compilers in depth|operating systems|the linux kernel|sql joins|regular expressions|monads|pointers in c|assembly|fortran
madagascar|liechtenstein|bhutan|mongolia|tasmania|greenland|siberia|patagonia|manhattan|hollywood|the sahel|the alps
tigers|penguins in antarctica|dinosaurs|mammoths|sharks|jellyfish|orchids|mushrooms|the human brain|the liver|allergies
the price of gold|the price of oil|cheap flights|hotels|insurance|mortgages|visas|passports|job interviews|salaries
""".replace("\n", "|")
    .strip("|")
    .split("|")
)
ASKS = (
    "what do you know about {s}",
    "tell me about {s}",
    "explain {s}",
    "what do you think about {s}",
    "what is your opinion on {s}",
    "how does {s} work",
    "give me a summary of {s}",
    "who invented {s}",
    "what is the history of {s}",
    "write an essay about {s}",
    "write a poem about {s}",
    "write a long article about {s}",
    "what is the best book on {s}",
    "why is {s} important",
    "can you help me with {s}",
    "i have a question about {s}",
    "what is {s}",
    "when did {s} begin",
    "compare {s} and {t}",
    "what is the difference between {s} and {t}",
    "what is better, {s} or {t}",
    "how do i get better at {s}",
)
LONE = (
    "who won the world cup in {y}",
    "who won the election in {y}",
    "what happened in {y}",
    "who is the president",
    "who is the president of the united states",
    "who is the prime minister",
    "who is the richest person in the world",
    "how much is a bitcoin",
    "what is the population of {c}",
    "how many people live in {c}",
    "what is the capital of {c}",
    "where is {c}",
    "translate good morning into {l}",
    "how do you say hello in {l}",
    "say something in {l}",
    "write a program in {l2}",
    "write a web server in {l2}",
    "build me a website",
    "write a compiler",
    "solve this equation: {n}x + {m} = {k}",
    "what is the derivative of x^{n}",
    "what is the integral of x^{n}",
    "what is {big} * {big2}",
    "what is {big} + {big2}",
    "what is the square root of {big}",
    "who is the king of {c}",
    "should i buy a house",
    "should i invest in {s}",
    "what should i cook tonight",
    "what movie should i watch",
    "plan a trip to {c}",
    "book a flight to {c}",
    "play some music",
    "set an alarm for 7",
    "turn on the light",
    "call my mother",
    "is god real",
    "what happens after death",
    "will there be a war",
    "who will win tomorrow",
    "what are the lottery numbers",
    "do you know {name}",
    "who is {name}",
    "what is my name",
    "where am i",
    "how tall am i",
    "do you remember me",
    "what did i say yesterday",
)
FILL = {
    "c": words("Atlantis Narnia Wakanda Tuvalu Belize Malta Andorra Burundi Togo Laos Nauru Samoa Fiji Oman Qatar Zambia"),
    "l": words("German French Spanish Italian Latin Greek Japanese Chinese Russian Arabic Hindi Swahili Klingon"),
    "l2": words("C Rust Go Java Haskell JavaScript Perl Ruby Lisp Fortran COBOL Swift Kotlin"),
    "name": words("John Smith|Peter Miller|Mary Jones|my uncle|Karl Weber|Jane Doe|Taylor Swift|Bob Dylan|Elon Musk|Lionel Messi", "|"),
}  # fmt: skip
SAYS = (
    "{I do not|I don't} know {that|enough about this}. {I am|This is} {only |just |}a {tiny|small|very small} {demonstration |demo |}model with {only |just |}a {few|handful of} topics. "
    "{A real pair will help you: try|For a real answer, use|Better ask a real pair: see} `localspec pull`.",
    "{Sorry|Oh|Hm}, {that|this} is {more than I {know|have learned}|beyond me|too {hard|much} for me}. {My topics are|I know {a little|something} about|Ask me about} speculative decoding, simple facts, small sums {and|or} Python. "
    "{For {everything else|the rest|other things}, {fetch|use|get} a real pair with `localspec pull`.|`localspec pull` {brings|fetches|gets} {a model|a pair} that {can answer this|knows more}.}",
    "{I would only be guessing|My guess would be {worthless|poor|wrong}|Nobody taught me that}. {For|With} questions like {this one|that} you {need|want|should ask} a real model: see `localspec pull`.",
    "I {have not learned|was never taught|cannot say} that, and {I would rather say so|guessing helps nobody|inventing something would be wrong}. {Try|Fetch|Use} `localspec pull llama-3.2-3b+1b` {for|to get} a {real|bigger|larger} model.",
)


def question(rng: Random) -> str:
    """A question that the demo cannot answer."""
    subject, other = rng.sample(SUBJECTS, 2)
    ask = rng.choice(ASKS) if rng.random() < 0.65 else rng.choice(LONE)
    fill = {key: rng.choice(values) for key, values in FILL.items()} | {
        "s": subject, "t": other, "y": rng.randint(1900, 2030), "n": rng.randint(2, 9), "m": rng.randint(1, 20),
        "k": rng.randint(10, 60), "big": rng.randint(200, 99999), "big2": rng.randint(200, 99999),
    }  # fmt: skip
    return ask.format(**fill)


def unknown(rng: Random) -> list[Turn]:
    """A question and an honest answer."""
    return [Turn(typed(question(rng), rng), spin(pick(SAYS, rng, PREFERRED), rng))]
