"""How a program's request becomes a prompt, and when its reply ends."""

import pytest

from localspec.engine.messages import Infill
from localspec.engine.requests import LineLimit, NoInfill, prompt_of, shares
from localspec.events import Finished, FinishReason, Kind, Origin, Piece, Reply, Source, Stats

MARKS = {"<fim_prefix>": 1, "<fim_suffix>": 2, "<fim_middle>": 3, "<file_sep>": 4}


class Letters:
    """A token a character."""

    add_bos, bos = True, 0

    def __init__(self, marks):
        self._marks = marks

    def control_texts(self):
        return self._marks

    def tokenize(self, text, *, parse_special):
        assert not parse_special
        return [ord(letter) for letter in text]


def written(tokens):
    names = {token: name for name, token in MARKS.items()} | {0: "<s>"}
    return "".join(names.get(token) or chr(token) for token in tokens)


ASKED = Infill("before", "after", "mid", (("a.py", "one"), ("b.py", "two")))


def test_other_files_come_first_each_after_the_models_own_mark():
    found = written(prompt_of(ASKED, Letters(MARKS), "model", 1000))
    files = "<file_sep>a.py\none\n<file_sep>b.py\ntwo\n"
    assert found == f"<s>{files}<fim_prefix>before<fim_suffix>after<fim_middle>mid"
    without = {name: token for name, token in MARKS.items() if token != 4}
    assert written(prompt_of(ASKED, Letters(without), "model", 1000)).startswith("<s>a.py\none\nb.py\n")


def test_what_is_far_from_the_hole_is_left_out():
    found = written(prompt_of(ASKED, Letters(MARKS), "model", 7 + 4 + 6 + 5))
    assert found == "<s>two\n<fim_prefix>before<fim_suffix>after<fim_middle>mid"
    found = written(prompt_of(ASKED, Letters(MARKS), "model", 7 + 8))
    assert found == "<s><fim_prefix>before<fim_suffix>af<fim_middle>mid"


def test_a_model_without_marks_is_named():
    with pytest.raises(NoInfill, match="model cannot fill in text"):
        prompt_of(ASKED, Letters({}), "model", 1000)


@pytest.mark.parametrize(
    ("sizes", "room", "kept"),
    [
        ((9, 9, 9), 100, (9, 9, 9)),
        ((500, 9, 9), 100, (82, 9, 9)),
        ((9, 500, 500), 100, (0, 75, 25)),
        ((9, 10, 500), 100, (0, 10, 90)),
        ((9, 500, 5), 100, (0, 95, 5)),
        ((9, 9, 9), -3, (0, 0, 0)),
    ],
)
def test_the_room_is_parted(sizes, room, kept):
    assert shares(*sizes, room) == tuple(kept)


def piece(text):
    return Piece(text, Kind.ANSWER, Origin.PLAIN, Source.PLAIN)


def test_a_reply_ends_at_the_first_line_end_after_its_time():
    now = [10.0]
    limit = LineLimit(1.0, lambda: now[0])
    for moment, text, reached in (
        (99.0, "a\n", False),
        (99.9, "b\n", False),
        (100.5, "c", False),
        (101, "d\n", True),
    ):
        now[0] = moment
        limit.seen(piece(text))
        assert limit.reached == reached
    cut = Reply("", "", (), 0, FinishReason.CANCELLED, Stats())
    assert limit.seen(Finished(cut)).reply.finish_reason is FinishReason.LENGTH


def test_without_a_limit_a_cancelled_reply_stays_one():
    limit = LineLimit(None)
    limit.seen(piece("a\n"))
    cut = Finished(Reply("", "", (), 0, FinishReason.CANCELLED, Stats()))
    assert (limit.reached, limit.seen(cut)) == (False, cut)
