"""The page at `/`: programs keep their line of text, browsers get a page that trusts nothing but itself."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from localspec.demo import __file__ as demo
from localspec.serve.page import headers, page
from tests.serve.conftest import serving

pytestmark = pytest.mark.process

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
GREETING = "localspec is running\n"


@pytest.mark.nightly
def test_browsers_get_the_page_and_programs_the_line_they_know(http):
    answer = http.get("/", headers=BROWSER)
    assert (answer.text, answer.headers["content-type"]) == (page(), "text/html; charset=utf-8")
    for accept in ("*/*", "application/json", ""):
        assert http.get("/", headers={"accept": accept}).text == GREETING
    head = http.head("/", headers=BROWSER)
    assert (head.status_code, head.headers["content-length"]) == (200, str(len(GREETING)))
    assert "Accept" in head.headers["vary"]
    assert http.post("/", headers=BROWSER).status_code == 405


@pytest.mark.nightly
def test_the_policy_allows_the_pages_own_script_and_style_and_nothing_else(http):
    found = http.get("/", headers=BROWSER).headers
    assert found["x-content-type-options"] == "nosniff"
    assert found["referrer-policy"] == "no-referrer"
    policy = dict(part.split(" ", 1) for part in found["content-security-policy"].split("; "))
    for tag in ("script", "style"):
        (text,) = re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>", page(), re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert policy.pop(f"{tag}-src") == f"'sha256-{digest}'"
    assert policy == {
        "default-src": "'self'",
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }


@pytest.mark.nightly
def test_the_page_is_short_keeps_nothing_and_names_no_other_machine():
    assert len(page().splitlines()) <= 550
    habits = (
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(|localStorage|sessionStorage"
    )
    habits += r"|indexedDB|cookie|serviceWorker|sendBeacon|\bimport\(|https?:|//[a-z]|@import|url\(| on[a-z]+=| style="
    assert re.findall(habits, page()) == []
    assert headers()["cache-control"] == "no-store"


def test_a_server_with_a_key_shows_the_page_without_it_and_nothing_else(locked):
    def status(path, method="GET", **headers):
        return httpx.request(method, locked.url + path, headers=headers).status_code

    shown = httpx.get(locked.url, headers=BROWSER)
    assert shown.text == page()
    assert "sesame" not in str(shown.headers) + shown.text
    assert (status("/"), status("/", "HEAD", **BROWSER), status("/", "POST", **BROWSER)) == (401, 401, 401)
    assert [status(path, **BROWSER) for path in ("/props", "/v1/models", "/index.html")] == [401] * 3
    assert status("/", authorization="Bearer sesame") == 200


@pytest.mark.nightly
def test_the_page_of_another_address_of_this_machine_may_ask_its_own_server(http):
    own = {"host": "192.168.1.5:8080", "origin": "http://192.168.1.5:8080"}
    assert http.get("/props", headers=own).status_code == 200
    assert http.get("/props", headers=own | {"origin": "http://192.168.1.5:3000"}).status_code == 403
    rebound = {"host": "evil.example:8080", "origin": "http://evil.example:8080"}
    assert http.get("/props", headers=rebound).status_code == 403


def test_chunks_with_timings_have_the_origin_of_their_token_and_the_numbers_so_far(locked):
    body = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0, "stream": True}
    body["max_tokens"] = 20  # a token that ends the reply would have no text
    asked = {"json": body | {"timings_per_token": True}, "headers": {"x-api-key": "sesame"}, "timeout": 60}
    with httpx.stream("POST", f"{locked.url}/v1/chat/completions", **asked) as answer:
        chunks = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]
    *written, last = (chunk for chunk in chunks if "timings" in chunk)
    tokens = [chunk["timings"]["localspec"] for chunk in written]
    ours = last["timings"]["localspec"]
    assert ("accepted", "model") in [(token["origin"], token["source"]) for token in tokens]
    assert [token["origin"] for token in tokens].count("accepted") == ours["tokens_by_source"]["model"]
    seen = [chunk["timings"] for chunk in written]
    assert [found["predicted_n"] for found in seen] == sorted(found["predicted_n"] for found in seen)
    for name in ("predicted_n", "draft_n", "draft_n_accepted"):
        assert seen[-1][name] == last["timings"][name]
    for name in ("acceptance_rate", "mean_accepted_length", "acceptance_by_position", "cycles"):
        assert seen[-1]["localspec"][name] == ours[name]


# The page in a browser

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def opened(browser):
    """A function that opens the page; its requests and complaints are lists of the page."""
    contexts = []

    def opening(url, **options):
        contexts.append(browser.new_context(**options))
        tab = contexts[-1].new_page()
        tab.requests, tab.complaints = [], []
        tab.on("request", lambda request: tab.requests.append(request.url))
        tab.on("console", lambda message: tab.complaints.append(message.text))
        tab.on("pageerror", lambda error: tab.complaints.append(str(error)))
        tab.goto(url)
        return tab

    yield opening
    for context in contexts:
        context.close()


def await_text(tab, selector, text):
    tab.locator(selector, has_text=re.compile(text)).last.wait_for(timeout=20_000)


def ask(tab, text="Hello"):
    tab.locator("#question").press_sequentially(text)
    tab.keyboard.press("Enter")


def answered(tab, **route):
    tab.route("**/v1/chat/completions", lambda each: each.fulfill(**route))


def stream_of(*texts, ends=True):
    deltas = [{"delta": {"content": text}, "finish_reason": None} for text in texts]
    deltas += [{"delta": {}, "finish_reason": "stop"}] * ends
    return "".join(f"data: {json.dumps({'choices': [delta]})}\n\n" for delta in deltas)


@pytest.mark.nightly
def test_a_message_is_answered_by_keyboard_and_no_request_leaves_the_machine(opened, endpoint):
    tab = opened(endpoint.url)
    await_text(tab, "#plan", "drafted by localspec demo draft")
    tab.keyboard.type("What is")
    tab.keyboard.press("Shift+Enter")
    tab.keyboard.type("speculative decoding?\n")
    await_text(tab, ".assistant footer", r"tokens at .*acceptance rate \d+ % · [\d.]+ tokens per pass")
    assert tab.locator(".user .text").inner_text() == "What is\nspeculative decoding?"
    tab.locator("#send:enabled").wait_for()
    assert tab.locator(".accepted").count() > 3
    assert tab.locator("#numbers").inner_text().count("tokens") >= 4
    ask(tab, "Again")
    tab.locator(".assistant").nth(1).locator("footer", has_text="tokens at").wait_for()
    assert {httpx.URL(url).copy_with(path="/") for url in tab.requests} == {httpx.URL(endpoint.url + "/")}
    assert tab.complaints == []
    assert tab.context.cookies() == []


@pytest.mark.nightly
def test_the_text_of_a_model_runs_nothing(opened, endpoint):
    tab = opened(endpoint.url)
    bad = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    answered(tab, content_type="text/event-stream", body=stream_of("a ", bad))
    tab.on("dialog", lambda dialog: tab.complaints.append(dialog.message))
    ask(tab, bad)
    await_text(tab, ".assistant .text", "onerror")
    assert tab.locator(".assistant .text").inner_text() == f"a {bad}"
    assert tab.locator("article img, article script").count() == 0
    assert tab.complaints == []


@pytest.mark.nightly
def test_markdown_is_the_same_whether_it_is_drawn_token_by_token_or_at_once(opened, endpoint):
    tab = opened(endpoint.url)
    text = (
        "# Head\n\nA **bold** and `code` snake_case_name 2 * 3 * 4\nsecond line\n1. one\n   - two\n2. three\n\n"
        "```py\na = **1**\n```\n| a | b |\n|---|---|\n| 1 | `2` |\n\n````\nopen ``` fence\n"
    )
    draw = """([text, step]) => {
        const node = document.createElement("div"), drawn = new Markdown(node);
        for (let n = 0; n < text.length; n += step) {
            drawn.add(text.slice(n, n + step), `k${n}`);
            drawn.draw(false);
        }
        drawn.draw(true);
        return node.innerHTML.replace(/<\\/?span[^>]*>| class="[^"]*"/g, "");
    }"""
    whole = tab.evaluate(draw, [text, len(text)])
    assert [tab.evaluate(draw, [text, step]) for step in (1, 3, 7)] == [whole] * 3
    assert whole == (
        "<h3>Head</h3><p>A <strong>bold</strong> and <code>code</code> snake_case_name 2 * 3 * 4\nsecond line</p>"
        '<ol start="1"><li>one<ul><li>two</li></ul></li><li>three</li></ol><pre><code>a = **1**</code></pre>'
        "<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td><code>2</code></td></tr></table>"
        "<pre><code>open ``` fence\n</code></pre>"
    )


@pytest.mark.nightly
def test_the_name_of_a_file_in_copied_settings_runs_nothing_in_a_shell(opened, endpoint):
    tab = opened(endpoint.url)
    name = "it's $(touch ran) `touch ran`"
    for program in ("curl", "Open WebUI", "aider", "Claude Code"):
        (_, text) = tab.evaluate("([program, name]) => programs(name, 'key')[program]", [program, name])
        shell = ["sh", "-c", f"curl() {{ :; }}; aider() {{ :; }}; claude() {{ :; }}; {text}; test ! -e ran"]
        assert subprocess.run(shell, env={}, capture_output=True, timeout=60).returncode == 0, text


@pytest.mark.nightly
def test_escape_stops_a_reply_and_the_conversation_goes_on(opened, endpoint):
    tab = opened(endpoint.url)
    held = []
    tab.route("**/v1/chat/completions", lambda route: held.append(json.loads(route.request.post_data)))
    ask(tab, "Hello")
    tab.locator("#stop:enabled").wait_for()
    tab.keyboard.press("Escape")
    await_text(tab, ".assistant footer", "stopped")
    assert tab.locator("#question").input_value() == "Hello"
    tab.unroute("**/v1/chat/completions")
    tab.keyboard.press("Enter")
    await_text(tab, ".assistant footer", "tokens at")
    assert [message["content"] for message in held[0]["messages"]] == ["Hello"]
    assert held[0]["stream"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("route", "shown"),
    [
        (
            {"status": 400, "json": {"error": {"message": "the prompt is too long"}}},
            "The prompt is too long.",
        ),
        ({"status": 502, "body": "<html>"}, "The server answers with status 502."),
        ({"body": 'data: {"error":{"message":"the engine ended"}}\n\n'}, "The engine ended."),
        ({"body": stream_of("half", ends=False)}, "The connection ended before the reply did."),
    ],
)
def test_an_error_is_one_sentence(opened, endpoint, route, shown):
    tab = opened(endpoint.url)
    answered(tab, **route)
    ask(tab)
    await_text(tab, "#error", ".")
    assert tab.locator("#error").inner_text() == shown
    tab.locator("#send:enabled").wait_for()


@pytest.mark.nightly
def test_a_server_that_is_gone_is_one_sentence(opened, endpoint):
    tab = opened(endpoint.url)
    await_text(tab, "#plan", "drafted")
    tab.route("**/v1/**", lambda route: route.abort())
    ask(tab)
    await_text(tab, "#error", "^The server does not answer; see whether `localspec serve` still runs.$")


@pytest.mark.nightly
def test_a_new_chat_forgets_the_reply_in_progress(opened, endpoint):
    tab = opened(endpoint.url)
    tab.route("**/v1/chat/completions", lambda route: None)
    ask(tab)
    tab.locator("#stop:enabled").wait_for()
    tab.locator("#new").click()
    tab.locator("#send:enabled").wait_for()
    assert tab.locator("article").count() == 0
    assert tab.locator("#question").input_value() == ""


@pytest.mark.nightly
def test_the_key_is_asked_for_and_forgotten(opened, locked):
    tab = opened(locked.url)
    tab.locator("#unlock").wait_for()
    assert "YOUR_KEY" in tab.locator("#settings").text_content()
    for key, place, shown in (("open", "#error", "missing or wrong"), ("sesame", "#plan", "drafted by")):
        tab.locator("#key").fill(key)
        tab.keyboard.press("Enter")
        await_text(tab, place, shown)
    ask(tab)
    await_text(tab, ".assistant footer", "tokens at")
    tab.reload()
    tab.locator("#unlock").wait_for()
    assert tab.locator("#key").input_value() == ""


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [380, 1400])
def test_nothing_is_cut_and_every_control_has_a_name(opened, endpoint, width, scheme):
    tab = opened(endpoint.url, viewport={"width": width, "height": 760}, color_scheme=scheme)
    ask(tab, "x" * 200)
    await_text(tab, ".assistant footer", "tokens at")
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    assert tab.evaluate("document.documentElement.scrollHeight") == 760
    unnamed = "[...document.querySelectorAll('input,textarea,select')].filter(e => !e.labels.length).length"
    assert tab.evaluate(unnamed) == 0
    assert tab.locator("#side").get_attribute("open") == (None if width < 1000 else "")


@pytest.mark.nightly
def test_the_settings_of_python_clients_and_curl_work_as_they_are_shown(opened, endpoint):
    tab = opened(endpoint.url, viewport={"width": 1400, "height": 900})
    tab.locator("#model option").first.wait_for(state="attached")
    programs = tab.locator("#program option").all_inner_texts()
    assert len(programs) == 13
    for program in programs:
        tab.locator("#program").select_option(program)
        text = tab.locator("#settings").inner_text()
        assert endpoint.url in text
        if "Python" in program or program == "curl":
            command = ["sh", "-c", text] if program == "curl" else [sys.executable, "-c", text]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert (done.returncode, len(done.stdout) > 20) == (0, True), done.stderr


def test_the_chosen_model_is_the_one_that_the_heading_names(opened, tmp_path):
    own = shutil.copy(Path(demo).with_name("demo-draft.gguf"), tmp_path / "Small.gguf")
    with serving(tmp_path / "home", str(own)) as endpoint:
        endpoint.http.post("/api/chat", json={"model": "demo", "messages": []})
        tab = opened(endpoint.url)
        tab.locator("#model option").first.wait_for(state="attached")
        assert tab.locator("#model option").all_inner_texts() == ["Small", "demo"]
        assert "demo target" in tab.locator("#plan").inner_text()
        assert tab.locator("#model").input_value() == "demo"
