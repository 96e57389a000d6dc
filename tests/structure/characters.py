"""Sessions on exact models whose tokens are single characters, all that JSON needs."""

import string

from localspec.chat.session import Session
from localspec.sampler.sampling import Sampling
from tests.chat.letters import Letters
from tests.exact_engine import ExactContext, engine_of, exact_pair

SYMBOLS = "\x00" + string.printable[:95] + "\n"  # \x00 ends a reply
TEMPLATE = "{% for m in messages %}{{ m.content }}|{% endfor %}"


class Characters(Letters):
    """A vocabulary of single characters; what it does not know becomes a question mark."""

    symbols, unknown, size = SYMBOLS, SYMBOLS.index("?"), len(SYMBOLS)
    eos = 0

    def __init__(self):
        super().__init__(True)

    def text(self, token):
        return super().text(token) if token else "<end>"

    def special_tokens(self):
        return {"<end>": 0}


def text_of(tokens):
    return "".join(SYMBOLS[token] for token in tokens if token)


def session_of(seed=5, *, agreement=0.8, draft=True, template=TEMPLATE, capacity=2000):
    vocabulary = Characters()
    pair = exact_pair(vocabulary, seed, capacity=capacity, agreement=agreement, draft=draft)
    return Session(engine_of(vocabulary, template, *pair))


class Script(ExactContext):
    """Wants to write a certain text after the last bar of its prompt, whatever was written before."""

    def __init__(self, tokens, size, **kwargs):
        super().__init__(1, vocabulary=size, **kwargs)
        self.wanted = [*tokens, 0]

    def row(self):
        row = super().row()
        at = self.cache[::-1].index(SYMBOLS.index("|"))
        row[self.wanted[min(at, len(self.wanted) - 1)]] += 100
        return row


class MarkedCharacters(Characters):
    """Characters, and Mistral's mark as a control token."""

    mark = Characters.size
    size = Characters.size + 1

    def piece(self, token):
        return b"" if token == self.mark else super().piece(token)

    def text(self, token):
        return "[TOOL_CALLS]" if token == self.mark else super().text(token)

    def is_special(self, token):
        return token in (0, self.mark)

    def special_tokens(self):
        return {"<end>": 0, "[TOOL_CALLS]": self.mark}


def scripted_session(text, template=TEMPLATE, *, vocabulary=None):
    """A session whose target wants to answer with `text`, which may be tokens."""
    vocabulary = vocabulary or Characters()
    tokens = vocabulary.tokenize(text, parse_special=False) if isinstance(text, str) else text
    script = Script(tokens, vocabulary.size)
    return Session(engine_of(vocabulary, template, script, None, sampling=Sampling(temperature=0.0)))
