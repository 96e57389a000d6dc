from concurrent.futures import ThreadPoolExecutor

import pytest

from localspec.errors import BadTemplate
from localspec.events import ToolCall
from localspec.prompt.history import Taken, fitted
from localspec.prompt.messages import Message
from localspec.prompt.sandbox import Sandbox
from localspec.prompt.template import CHATML, ChatTemplate, template_of
from tests.prompt.carried import TEMPLATES, ready, tiered
from tests.prompt.character_vocabulary import CharacterVocabulary

SYSTEM, ASK, REPLY, AGAIN = (
    Message("system", "Be terse."),
    Message("user", "Why is the sky blue?"),
    Message("assistant", "Rayleigh scattering."),
    Message("user", "And red at dusk?"),
)
ONE_TURN, TWO_TURNS = (SYSTEM, ASK), (SYSTEM, ASK, REPLY, AGAIN)


def template(source):
    return ChatTemplate(source, bos_text="<s>", eos_text="</s>")


@pytest.mark.parametrize("think", [None, True, False])
@pytest.mark.parametrize("name", tiered(TEMPLATES))
def test_every_template_writes_every_message_once_and_in_order(name, think):
    for messages in (ONE_TURN, TWO_TURNS):
        text = ready(name).render(messages, think=think)
        places = [text.find(message.content) for message in messages]
        assert -1 not in places
        assert places == sorted(places)
        assert all(text.count(m.content) == 1 for m in messages if m.role == "user")


@pytest.mark.parametrize(
    ("name", "thinking", "silent"),
    [
        ("Qwen-Qwen3-0.6B", "assistant\n", "<think>\n\n</think>\n\n"),
        ("deepseek-ai-DeepSeek-V3.1", "<think>", "</think>"),
        ("google-gemma-4-31B-it", "<|turn>model\n", "<|channel>thought\n<channel|>"),
        ("tencent-Hy3", "<think:opensource>", "<think:opensource></think:opensource>"),
        ("upstage-Solar-Open-100B", "<|begin|>assistant", "<|think|><|end|><|begin|>assistant"),
        ("MiniMax-M3", "<mm:think>", "</mm:think>"),
        ("Kimi-K3", "<|open|>think<|sep|>", "<|open|>response<|sep|>"),
        ("Cohere2MoE", "<|START_THINKING|>", "<|START_THINKING|><|END_THINKING|>"),
        ("inclusionai-ling-3.0-flash", "<think>", "<think></think>"),
    ],
)
def test_think_reaches_the_variable_that_the_template_has_for_it(name, thinking, silent):
    assert ready(name).render(ONE_TURN, think=True).endswith(thinking)
    assert ready(name).render(ONE_TURN, think=False).endswith(silent)


def test_a_template_that_knows_only_effort_gets_little_of_it():
    gpt_oss = ready("openai-gpt-oss-120b")
    assert "Reasoning: medium" in gpt_oss.render(ONE_TURN)
    assert "Reasoning: low" in gpt_oss.render(ONE_TURN, think=False)
    assert "Reasoning: high" in gpt_oss.render(ONE_TURN, think=False, arguments={"reasoning_effort": "high"})
    assert "thinking budget is 0" in ready("ByteDance-Seed-OSS").render(ONE_TURN, think=False)


def test_a_system_message_that_a_template_refuses_or_ignores_goes_before_the_first_user_message():
    gemma = ready("google-gemma-2-2b-it")
    assert not gemma.taken(with_tools=False).system
    assert f"user\n{SYSTEM.content}\n\n{ASK.content}<end_of_turn>" in gemma.render(ONE_TURN)
    assert "user\nBe terse.<end_of_turn>" in gemma.render((SYSTEM,))
    users = template("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}")
    assert users.render(ONE_TURN) == "Be terse.\n\nWhy is the sky blue?"


def test_what_a_template_takes_in_a_row_stays_apart():
    talk = [Message("user", "a"), Message("user", "b")]
    assert "user\na<|im_end|>" in ChatTemplate(CHATML, bos_text="", eos_text="").render(talk)
    call = Message("assistant", "", tool_calls=(ToolCall("f", {}, "1"),))
    results = [Message("tool", "x", tool_call_id="1"), Message("tool", "y", tool_call_id="2")]
    together = [Message("user", "a\n\nb"), call, results[0]]
    assert fitted([*talk, call, results[0]], Taken()).messages == together
    assert fitted([*talk, call, *results], Taken(strays=True)).messages == [*together, results[1]]


def test_a_template_that_wants_parts_gets_parts():
    parts = template("{% for m in messages %}{% for p in m.content %}{{ p.text }}|{% endfor %}{% endfor %}")
    assert parts.render((ASK,)) == "Why is the sky blue?|"


def test_without_a_template_chatml_is_used_where_its_tokens_exist():
    chatml, notices = template_of(None, CharacterVocabulary())
    assert chatml.source == CHATML
    assert "ChatML" in notices[0]
    assert chatml.render((ASK,)).endswith("?<|im_end|>\n<|im_start|>assistant\n")
    plain, notices = template_of("", CharacterVocabulary(["<s>", "</s>"]))
    assert plain.render((ASK,)) == "user: Why is the sky blue?\n\nassistant:"
    assert (plain.stops, chatml.stops) == (("\nuser:",), ("<|im_end|>",))
    assert "may not be a chat model" in notices[0]


@pytest.mark.parametrize(
    ("between", "stop"),
    [
        ("<|im_end|>\n<|im_start|>user\n", "<|im_end|>"),
        ("\n\nUser: ", "\nUser:"),
        ("\n\n<sep>human: ", "<sep>"),
        (" [INST] ", "[INST]"),
        ("</assistant>", "</assistant>"),
    ],
)
def test_a_turn_whose_end_is_no_end_token_is_stopped_by_its_text(between, stop):
    source = "{{ messages[0].content }}{{ messages[1].content }}" + between + "{{ messages[2].content }}"
    vocabulary = CharacterVocabulary(["<s>", "</s>"])
    assert template_of(source, vocabulary)[0].stops == (stop,)
    assert template_of(source.replace(between, "</s>" + between), vocabulary)[0].stops == ()


NO_END = ("{{ messages[0].content }}", "{% for m in messages %}{{ m.content }}|{% endfor %}")
# The end of a part does not end a reply.
BRANCHED = ("openai-gpt-oss-120b", "upstage-Solar-Open-100B", "Kimi-K3")


@pytest.mark.parametrize("source", [*NO_END, *map(TEMPLATES.get, BRANCHED)], ids=[*"12", *BRANCHED])
def test_a_template_that_shows_no_end_of_a_turn_stops_nothing(source):
    assert template_of(source, CharacterVocabulary(["<s>", "</s>"]))[0].stops == ()


@pytest.mark.parametrize("name", tiered(TEMPLATES))
def test_carried_templates_stop_at_text_that_no_answer_has(name):
    for stop in template_of(TEMPLATES[name], CharacterVocabulary(["<s>", "</s>"]))[0].stops:
        assert len(stop.strip()) >= 4
        assert stop == stop.rstrip()


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("{% for %}", "syntax error in line 1"),
        ("{{ nothing.here }}", "failed"),
        ("{{ raise_exception('no cats') }}", "refuses these messages: no cats"),
        ("{% include '/etc/passwd' %}", "failed"),
        ("{{ ''.__class__.__mro__ }}", "stopped"),
        ("{{ cycler.__init__.__globals__ }}", "stopped"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "never ends"),
        ("{% for a in range(999999999) %}{% endfor %}", "range"),
        ("{{ 'a' * 65_000_000 }}", "would have more"),
        ("{{ 'a' | truncate(-1) }}", "failed: expected length"),
        ("{{ " + "(" * 100_000 + " }}", "never ends"),
        ("{% for a in [1] %}" * 30 + "{% endfor %}" * 30, "failed"),
        ("{{ " + "-" * 5_000 + "1 }}", "never ends"),
        ("x" * 2_000_000, "2,000,000 characters"),
    ],
    ids=lambda text: text[:60],
)
def test_a_hostile_template_is_stopped(source, complaint):
    with pytest.raises(BadTemplate, match=complaint) as caught:
        template(source).render((ASK,))
    assert caught.value.hint


@pytest.mark.parametrize(
    "source",
    [
        "{{ '{0.__class__}'.format(1) }}",
        "{{ self._TemplateReference__context }}",
        "{{ ''|attr('__class__') }}",
        "{{ range.__doc__ }}",
        "{{ messages|attr('append') }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__self__ }}",
    ],
)
def test_a_template_sees_nothing_of_what_lies_behind_values(source):
    assert template(source + ".{{ messages[0].content }}").render((ASK,)) == "." + ASK.content


def test_templates_have_what_hugging_face_gives_them():
    source = (
        "{% generation %}{{ {'a': 'é<'} | tojson }}{% endgeneration %}"
        "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
        "{{ strftime_now('%Y') | length }}{{ [1, 2] | tojson(indent=1) }}{{ '{}-{}'.format(1, 'b') }}"
        "{{ 'a.b'.split('.') | join('+') }}{{ 'aXa'.replace('a', 'b', 1) }}{{ ['a'] | map('upper') | list }}"
    )
    assert template(source).render((ASK,)) == '{"a": "é<"}014[\n 1,\n 2\n]1-ba+bbXa[\'A\']'


def conversation(turns):
    talk = [(Message("user", "ok?"), Message("assistant", "yes.")) for _ in range(turns)]
    return [*(message for turn in talk for message in turn), AGAIN]


def agent_loop(rounds):
    talk = [ASK]
    for n in range(rounds):
        call = ToolCall("look", {"at": "noon"}, f"call{n:05}")
        talk += [Message("assistant", "", tool_calls=(call,)), Message("tool", "blue", tool_call_id=call.id)]
    return talk


@pytest.mark.parametrize("talk", [conversation, agent_loop])
def test_a_render_of_gemma_4_takes_as_many_steps_for_each_message(talk, monkeypatch):
    """Its template searches the messages before and after each one."""
    taken, getattr_, steps = [], Sandbox.getattr, []
    monkeypatch.setattr(Sandbox, "getattr", lambda self, *at: (taken.append(1), getattr_(self, *at))[1])
    for count in (25, 100, 400):
        taken.clear()
        ready("google-gemma-4-31B-it").render(talk(count))
        steps.append(len(taken))
    assert steps[2] < 4.2 * steps[1] < 4.2**2 * steps[0]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("{% if not n.found %}{{ i }}{% if i == 2 %}{% set n.found = true %}{% endif %}{% endif %}", "012"),
        ("{% if n.found %}{% elif i == 2 %}{% set n.found = true %}{% else %}{{ i }}{% endif %}", "01"),
        ("{% if not n.found %}{{ i }}{% set n.found = true %}{% else %}x{% endif %}", "0xxx"),
        ("{% if i %}{{ i }}{% endif %}", "123"),
        ("{% if not loop.first %}{{ i }}{% endif %}", "123"),
        ("{% if n.found or i %}{{ i }}{% endif %}", "123"),
        ("{% if n['found'] %}{% else %}{{ i }}{% endif %}", "0123"),
        ("{% if not n.found %}{{ i }}{% set n.found = true %}{% endif %}.", "0...."),
    ],
)
def test_a_loop_ends_early_only_where_it_has_nothing_left_to_do(body, text):
    source = "{% set n = namespace(found=false) %}{% for i in range(4) %}" + body + "{% endfor %}"
    assert template(source).render((ASK,)) == text


def test_a_template_serves_several_threads():
    with ThreadPoolExecutor(8) as threads:
        texts = {*threads.map(ready("Qwen-Qwen3-0.6B").render, [TWO_TURNS] * 8)}
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("condition", "closed"),
    [
        ("not enable_thinking", False),  # DeepSeek R1, QwQ, Command R7B
        ("not (enable_thinking | default(false))", True),
        ("enable_thinking is defined and not enable_thinking", False),
        ("enable_thinking is not defined or not enable_thinking", True),
    ],
)
def test_a_template_that_expects_the_variable_thinks_and_one_that_tests_it_keeps_its_default(
    condition, closed
):
    source = f"{{{{ messages[0].content }}}}<think>{{% if {condition} %}}</think>{{% endif %}}"
    texts = [template(source).render((ASK,), think=think) for think in (None, False, True)]
    assert [text.endswith("</think>") for text in texts] == [closed, True, False]
