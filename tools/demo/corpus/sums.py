"""Small sums, counting and number questions, with answers that are always right."""

from collections.abc import Callable
from random import Random

from .spin import Turn, pick, spin, typed, words

NAMES = words(
    "Anna Ben Clara David Emma Felix Grace Hugo Ida Jack Kate Leo Mia Noah Olga Paul Rosa Sam Tina Tom"
)
THINGS = words("apples books coins cards stones pencils cookies flowers stamps marbles shells tickets")
WORDS = words("zero one two three four five six seven eight nine ten eleven twelve")


def numbers(operation: str, rng: Random) -> tuple[int, int]:
    """Two numbers that a person would try, small ones more often."""
    top = rng.choice((10, 10, 20, 50, 100))
    a, b = rng.randint(0, top), rng.randint(0, top)
    if operation == "-":
        return max(a, b), min(a, b)
    if operation == "*":
        return rng.randint(0, 12), rng.randint(0, 12)
    if operation == "/":
        b, quotient = rng.randint(1, 12), rng.randint(0, 12)
        return b * quotient, b
    return a, b


RESULT: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b,
}
SPOKEN = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}


def sums(rng: Random) -> list[Turn]:
    """One sum, sometimes carried on with the result."""
    operation = rng.choice("++--*/")
    a, b = numbers(operation, rng)
    result = RESULT[operation](a, b)
    turns = [Turn(typed(ask_sum(a, operation, b, rng), rng), say_sum(a, operation, b, result, rng))]
    while rng.random() < 0.3 and result <= 90:
        operation, b = rng.choice("+-"), rng.randint(1, 9)
        if operation == "-" and b > result:
            operation = "+"
        a, result = result, RESULT[operation](result, b)
        ask = spin(f"{{and |}}{{{SPOKEN[operation]}|{operation}}} {b}", rng, 0.0)
        turns.append(Turn(typed(ask, rng), say_sum(a, operation, b, result, rng)))
    return turns


def ask_sum(a: int, operation: str, b: int, rng: Random) -> str:
    """A sum as people write it."""
    sign = rng.choice((operation, operation, SPOKEN[operation], "x" if operation == "*" else operation))
    space = "" if sign in "+-*/x" and rng.random() < 0.35 else " "
    if max(a, b) <= 12 and rng.random() < 0.08:
        return f"what is {WORDS[a]} {SPOKEN[operation]} {WORDS[b]}"
    sum_ = f"{a}{space}{sign}{space}{b}"
    return spin(f"{{what is |what's |how much is |calculate |compute ||}}{sum_}{{| =|}}", rng, 0.0)


def say_sum(a: int, operation: str, b: int, result: int, rng: Random) -> str:
    """The whole equation first: it lets a small model see all of the numbers again."""
    return spin(f"{a} {operation} {b} = {steps(a, operation, b)}{result}{{.|.|. Easy!}}", rng, 0.85)


def steps(a: int, operation: str, b: int) -> str:
    """Tens and ones apart for larger numbers: a small model can do each part in its head."""
    if operation not in "+-" or min(a, b) < 11 or b % 10 == 0:
        return ""
    tens, ones = b // 10 * 10, b % 10
    middle = RESULT[operation](a, tens)
    return f"{a} {operation} {tens} {operation} {ones} = {middle} {operation} {ones} = "


def counting(rng: Random) -> list[Turn]:
    """Count up, down, in steps, or list the first numbers of a kind."""
    n = rng.choice((5, 10, 10, 10, 12, 15, 20))
    options = (
        (
            f"{{count to|count up to|count from 1 to|can you count to|list the numbers from 1 to}} {n}",
            range(1, n + 1),
        ),
        (f"{{count down from|count backwards from}} {n}", range(n, -1, -1)),
        (f"{{list|name|give me|show me}} the first {n} even numbers", range(2, 2 * n + 1, 2)),
        (f"{{list|name|give me|show me}} the first {n} odd numbers", range(1, 2 * n, 2)),
        (f"{{list|name|give me|show me}} the first {n} square numbers", [i * i for i in range(1, n + 1)]),
        (f"{{list|name|give me|show me}} the first {n} prime numbers", primes(n)),
        (f"{{list|name|give me|show me}} the first {n} Fibonacci numbers", fibonacci(n)),
    )
    asks, found = options[0] if rng.random() < 0.4 else rng.choice(options)
    asks = asks.replace(f" {n}", f" {WORDS[n]}") if n <= 12 and rng.random() < 0.4 else asks
    return [Turn(typed(spin(asks, rng, 0.0), rng), ", ".join(map(str, found)))]


def primes(n: int) -> list[int]:
    """The first n prime numbers."""
    found: list[int] = []
    candidate = 2
    while len(found) < n:
        if all(candidate % p for p in found):
            found.append(candidate)
        candidate += 1
    return found


def fibonacci(n: int) -> list[int]:
    """The first n Fibonacci numbers."""
    found = [0, 1]
    while len(found) < n:
        found.append(found[-1] + found[-2])
    return found


def questions(rng: Random) -> list[Turn]:
    """Is it even, which is larger, the double, the half, the square."""
    a, b = rng.sample(range(1, 100), 2)
    small = rng.randint(1, 12)
    even = "even" if a % 2 == 0 else "odd"
    options = (
        (f"is {a} {{even or odd|an even number|odd or even}}", f"{a} is {even}."),
        (
            f"{{which is larger|what is bigger|which number is greater}}, {a} or {b}",
            f"{max(a, b)} is larger than {min(a, b)}.",
        ),
        (f"what is {{the double of|twice}} {a // 2}", f"Twice {a // 2} is {a // 2 * 2}."),
        (
            f"what is {{half of|the half of}} {a * 2 % 100 or 50}",
            f"Half of {a * 2 % 100 or 50} is {(a * 2 % 100 or 50) // 2}.",
        ),
        (f"what is {{{small} squared|the square of {small}}}", f"{small} squared is {small * small}."),
        (f"what is the square root of {small * small}", f"The square root of {small * small} is {small}."),
        (f"is {a} a prime {{number|}}", prime_verdict(a)),
        (f"what comes after {a}", f"After {a} comes {a + 1}."),
        (f"what is {small * 10} percent of {b // 10 * 10 or 10}", percent(small * 10, b // 10 * 10 or 10)),
    )
    asks, says = rng.choice(options)
    return [Turn(typed(spin(asks, rng, 0.0).strip(), rng), says)]


def percent(share: int, whole: int) -> str:
    """A percentage of a round number, which is always whole."""
    return f"{share} percent of {whole} is {share * whole // 100}."


def prime_verdict(n: int) -> str:
    """Whether n is prime, with its smallest divisor where it is not."""
    if n == 1:
        return "No, 1 is not a prime number."
    divisor = next((d for d in range(2, n) if n % d == 0), None)
    return (
        f"No, {n} is not a prime number: {n} = {divisor} * {n // divisor}."
        if divisor
        else f"Yes, {n} is a prime number."
    )


def word_problems(rng: Random) -> list[Turn]:
    """A tiny story with a sum in it."""
    a, b = sorted(rng.sample(range(2, 21), 2), reverse=True)
    name, other, things = *rng.sample(NAMES, 2), rng.choice(THINGS)
    options = (
        (f"{name} has {a} {things} and {{gets|buys|finds}} {b} more. How many {{{things}|}} does {name} have {{now|}}?",
         f"{a} + {b} = {a + b}, so {name} has {a + b} {things}."),
        (f"{name} has {a} {things} and {{gives {other} {b} of them|loses {b}|gives away {b}}}. How many are left?",
         f"{a} - {b} = {a - b}, so {a - b} {things} are left."),
        (f"{name} has {a} {things} and {other} has {b}. How many do they have together?",
         f"{a} + {b} = {a + b}, so together they have {a + b} {things}."),
    )  # fmt: skip
    asks, says = rng.choice(options)
    return [Turn(" ".join(spin(asks, rng, 0.0).split()).replace(" ?", "?"), says)]


def arithmetic(rng: Random) -> list[Turn]:
    """Any of the above."""
    return pick((sums, counting, questions, word_problems), rng, 0.3)(rng)
