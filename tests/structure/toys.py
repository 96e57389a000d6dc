"""Sessions on exact toy models whose tokens are single characters, all that JSON needs."""

import string

from localspec.chat.engine import Engine
from localspec.chat.session import Session
from localspec.chat.template import ChatTemplate
from localspec.drafting import PairDrafting
from localspec.speculation.sampling import Sampling
from tests.speculation.toys import Blend, Toy

SYMBOLS = "\x00" + string.printable[:95] + "\n"  # \x00 ends a reply
TEMPLATE = "{% for m in messages %}{{ m.content }}|{% endfor %}"


class Characters:
    """A vocabulary of single characters; what it does not know becomes a question mark."""

    size = len(SYMBOLS)
    bos = None
    eos = 0
    add_bos = False

    def tokenize(self, text, *, parse_special, add_special=False):
        return [SYMBOLS.index(c) if c in SYMBOLS else SYMBOLS.index("?") for c in text]

    def piece(self, token):
        return SYMBOLS[token].encode() if token else b""

    def text(self, token):
        return SYMBOLS[token] if token else "<end>"

    def is_end(self, token):
        return token == 0

    def is_control(self, token):
        return token == 0

    def control_texts(self):
        return {"<end>": 0}


class ToyContext(Toy):
    rollback_limit = None

    def set_top_k(self, k):
        return False


class ToyDraftContext(Blend):
    def set_top_k(self, k):
        return False


def text_of(tokens):
    return "".join(SYMBOLS[token] for token in tokens if token)


def session_of(seed=5, *, agreement=0.8, draft=True, template=TEMPLATE, capacity=2000):
    vocabulary = Characters()
    target = ToyContext(seed, capacity=capacity, vocabulary=vocabulary.size)
    drafts = (
        ToyDraftContext(seed, agreement, capacity=capacity, vocabulary=vocabulary.size) if draft else None
    )
    return Session(
        Engine(
            name="toy",
            target_name="toy target",
            draft_name="toy draft" if draft else "",
            target=target,
            draft=drafts,
            can_roll_back=True,
            widest_batch=33,
            vocabulary=vocabulary,
            template=ChatTemplate(template, bos_text="", eos_text=""),
            sampling=Sampling(),
            notices=(),
            drafting=PairDrafting(target, drafts, vocabulary.is_end, starting_depth=3, deepest=32),
            close=lambda: None,
        )
    )


class Script(ToyContext):
    """Wants to write a certain text after the last bar of its prompt, whatever was written before."""

    def __init__(self, text, **kwargs):
        super().__init__(1, vocabulary=Characters.size, **kwargs)
        self.wanted = [*Characters().tokenize(text, parse_special=False), 0]

    def row(self):
        row = super().row()
        at = self.cache[::-1].index(SYMBOLS.index("|"))
        row[self.wanted[min(at, len(self.wanted) - 1)]] += 100
        return row


def scripted_session(text, template=TEMPLATE):
    """A session whose target wants to answer with `text`."""
    vocabulary, target = Characters(), Script(text)
    return Session(
        Engine(
            name="script",
            target_name="script",
            draft_name="",
            target=target,
            draft=None,
            can_roll_back=True,
            widest_batch=33,
            vocabulary=vocabulary,
            template=ChatTemplate(template, bos_text="", eos_text=""),
            sampling=Sampling(temperature=0.0),
            notices=(),
            drafting=PairDrafting(target, None, vocabulary.is_end, starting_depth=3, deepest=32),
            close=lambda: None,
        )
    )
