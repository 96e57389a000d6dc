"""A draft model that fails costs a notice and some speed, and never the reply."""

import pytest

from localspec.chat.reply import WORTH_A_NOTICE
from localspec.errors import BackendFailure
from localspec.events import Notice
from tests.chat.letters import GREEDY, session_of
from tests.exact_engine import ExactDraftContext


class FailingDraft(ExactDraftContext):
    """A draft model that runs out of memory at some of its decodes, counted from 1."""

    fails_at = range(0)
    calls = 0

    def decode(self, tokens, rows):
        self.calls += 1
        if self.calls in self.fails_at:
            raise BackendFailure("out of luck")
        return super().decode(tokens, rows)


WHILE_READING = (range(1, 999), range(2, 999))
WHILE_DRAFTING = (range(9, 10), range(20, 999))
# Whether automatic depth drafts at all is up to the clock: a busy machine makes plain steps look cheap.
CASES = [*((3, when) for when in WHILE_READING + WHILE_DRAFTING), *(("auto", when) for when in WHILE_READING)]


@pytest.mark.parametrize(("depth", "fails_at"), CASES, ids=str)
@pytest.mark.parametrize("rule", ["greedy", "coupled", "block"])
def test_a_draft_that_fails_is_left_out_of_the_reply_with_a_notice(monkeypatch, fails_at, depth, rule):
    monkeypatch.setattr("tests.exact_engine.ExactDraftContext", FailingDraft)
    options = {"seed": 3, "rule": rule, "max_tokens": 60, **(GREEDY if rule == "greedy" else {})}
    session, _, draft, _ = session_of(end=False)
    session.run("the first notices", **GREEDY, max_tokens=1, speculate=False)

    def replied(prompt, **more):
        events = list(session.stream_complete(prompt, **options, depth=depth, **more))
        troubles = [e.text for e in events if isinstance(e, Notice) and "draft model" in e.text]
        return events[-1].reply, troubles

    draft.calls, draft.fails_at = 0, fails_at
    reply, troubles = replied("abc" * 9)
    failed = depth != "auto" or draft.calls >= fails_at[0]
    trouble = "the draft model failed, and the reply continues without it: out of luck"
    assert troubles == [trouble] * failed
    assert len(reply.tokens) == 60
    assert draft.calls <= fails_at[0] + 1, "once it failed it is asked again by its drafter at most"
    if rule != "block":
        plain = session_of(end=False)[0].complete("abc" * 9, **options, speculate=False)
        assert reply.tokens == plain.tokens
    draft.fails_at = range(0)
    assert replied("abc" * 9, speculate=False)[1] == []
    asked = draft.calls
    assert replied("abc" * 9)[1] == []
    assert depth == "auto" or draft.calls > asked, "the next reply tries it again"


LONG, PAUSE = ["slow"] * WORTH_A_NOTICE, ["slow"] * (WORTH_A_NOTICE - 1)


@pytest.mark.parametrize(
    ("states", "notices"), [(LONG * 3, 1), ([*LONG, None] * 3, 1), ([*PAUSE, None] * 4, 0)]
)
def test_drafting_that_stays_off_is_explained_once_and_a_pause_is_not_worth_a_word(
    monkeypatch, states, notices
):
    session, *_ = session_of(end=False)
    drafting, script = session.pair.drafting, iter(states)
    begun = drafting.strategy

    def strategy(*arguments):
        found = begun(*arguments)
        monkeypatch.setattr(type(found), "why_off", property(lambda _: next(script)), raising=False)
        return found

    monkeypatch.setattr(drafting, "strategy", strategy)
    events = session.stream_complete("abc", **GREEDY, max_tokens=len(states), speculate=False)
    assert [e.text for e in events if isinstance(e, Notice) and e.text == "slow"] == ["slow"] * notices
