"""Anthropic's own client against the endpoint."""

import anthropic
import pytest

from tests.serve.test_openai import QUESTION

pytestmark = pytest.mark.process

GREEDY = {"temperature": 0}  # which the client no longer has a parameter for


@pytest.fixture(scope="module")
def client(endpoint):
    with anthropic.Anthropic(base_url=endpoint.url, api_key="none", max_retries=0) as found:
        yield found


def ask(client, **options):
    asked = {"model": "demo", "messages": QUESTION, "max_tokens": 24, "extra_body": GREEDY, **options}
    return client.messages.create(**asked)


def test_a_stream_builds_the_same_message(client):
    whole = ask(client).content[0].text
    with client.messages.stream(model="demo", messages=QUESTION, max_tokens=24, extra_body=GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole
    assert final.stop_reason == "max_tokens"
    assert final.usage.output_tokens == 24
    assert final.usage.cache_read_input_tokens > 0


def test_a_reply_goes_on_from_the_assistants_last_message(client):
    begun = [*QUESTION, {"role": "assistant", "content": "A pair of"}]
    whole, rest = ask(client).content[0].text, ask(client, messages=begun, max_tokens=8).content[0].text
    assert rest
    assert whole.startswith("A pair of" + rest)


def test_the_stop_sequence_that_ended_it_is_named(client):
    message = ask(client, stop_sequences=["never", "models"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "models")
    assert message.content[0].text == "A pair of "


def test_tokens_are_counted_as_a_message_reads_them(client):
    counted = client.messages.count_tokens(model="demo", messages=QUESTION, system="Be brief.")
    usage = ask(client, system="Be brief.").usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_a_system_text_in_blocks_with_a_changing_first_line_is_reused(client):
    for number in ("a1b2c", "d3e4f"):
        texts = (f"x-anthropic-billing-header: cc_version=2.1; cch={number};", "Be brief. " * 20)
        usage = ask(client, system=[{"type": "text", "text": text} for text in texts]).usage
    assert usage.input_tokens == 1


def test_errors_have_anthropics_form(client, http):
    with pytest.raises(anthropic.NotFoundError):
        ask(client, model="claude")
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        ask(client, messages=[{"role": "user", "content": "long " * 3000}])
    body = http.post("/v1/messages", json={"messages": QUESTION}).json()
    assert body["type"] == "error"
    assert body["error"]["message"] == "max_tokens is missing from the request (give a whole number)"
