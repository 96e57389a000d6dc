"""Sessions on exact models whose tokens are letters."""

from localspec.chat.session import Session
from tests.exact_engine import engine_of, exact_pair

SYMBOLS = ".abcdefghijklmnopqrstu<>"  # "." ends a reply; < and > mark turns
TEMPLATE = (
    "{% for m in messages %}<{{ m.role[0] }}{{ m.content }}>{% endfor %}"
    "{% if add_generation_prompt %}<a{% endif %}"
)
GREEDY = {"temperature": 0}


class Letters:
    """A vocabulary of single characters; what it does not know becomes an a."""

    symbols, unknown, size = SYMBOLS, 1, len(SYMBOLS)
    bos = eos = None
    add_bos = False

    def __init__(self, ends):
        self.ends = ends

    def tokenize(self, text, *, parse_special, add_special=False):
        return [self.symbols.index(c) if c in self.symbols else self.unknown for c in text]

    def piece(self, token):
        return b"" if self.is_end(token) else self.symbols[token].encode()

    def text(self, token):
        return self.symbols[token]

    def is_end(self, token):
        return self.ends and token == 0

    def is_special(self, token):
        return self.is_end(token)

    def special_tokens(self):
        return {}


def session_of(
    seed=11, *, capacity=400, agreement=0.8, draft=True, end=True, drafters=(), notices=("a notice",)
):
    vocabulary, closed = Letters(end), []
    target, drafts = exact_pair(vocabulary, seed, capacity=capacity, agreement=agreement, draft=draft)
    engine = engine_of(
        vocabulary,
        TEMPLATE,
        target,
        drafts,
        deepest=16,
        drafters=drafters,
        notices=notices,
        close=lambda: closed.append(True),
    )
    return Session(engine), target, drafts, closed
