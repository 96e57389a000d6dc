"""Real clients against a running endpoint: installs each in a folder of its own and says which ran.

    localspec serve demo --port 8080 --any-model &
    python -m benchmarks.endpoint_clients --url http://127.0.0.1:8080 --folder DIR [NAME ...]

Packages come by pip and npm; `tests/serve` has openai, anthropic and ollama for Python. The demo pair is too weak for
agents: a program passes when its request was answered and the program ended by itself with status 0.
"""

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

PATIENCE_SECONDS: Final = 300


@dataclass(frozen=True, slots=True)
class Client:
    """A package, and a program that uses it; @URL@ in it stands for the endpoint's address."""

    packages: tuple[str, ...]
    program: str  # Python or JavaScript; for headless programs a command
    headless: bool = False
    environment: tuple[tuple[str, str], ...] = ()


ASKED: Final = "[{'role': 'user', 'content': 'Hello'}]"
PYTHON: Final = {
    "langchain-openai": Client(
        ("langchain-openai",),
        """
from langchain_openai import ChatOpenAI
m = ChatOpenAI(model='demo', base_url='@URL@/v1', api_key='any', max_tokens=8)
assert m.invoke('Hello').content
assert ''.join(chunk.content for chunk in m.stream('Hello'))
def add(a: int, b: int) -> int:
    'Adds.'
assert m.bind_tools([add], tool_choice='required').bind(max_tokens=60).invoke('Add 1 and 2').tool_calls
""",
    ),
    "litellm": Client(
        ("litellm",),
        f"""
import litellm
known = dict(model='openai/demo', api_base='@URL@/v1', api_key='any', messages={ASKED}, max_tokens=8)
assert litellm.completion(**known).choices[0].message.content
assert list(litellm.completion(**known, stream=True))
r = litellm.completion(model='ollama_chat/demo', api_base='@URL@', messages={ASKED}, max_tokens=8)
assert r.choices[0].message.content
""",
        environment=(("LITELLM_LOCAL_MODEL_COST_MAP", "True"),),
    ),
    "llm": Client(
        ("llm",),
        """
import os, pathlib, subprocess, sys
home = pathlib.Path(os.environ['LLM_USER_PATH'])
home.mkdir(exist_ok=True)
(home / 'extra-openai-models.yaml').write_text('- model_id: demo\\n  model_name: demo\\n  api_base: @URL@/v1\\n')
out = subprocess.run([sys.executable, '-m', 'llm', '-m', 'demo', '-o', 'max_tokens', '8', 'Hello'],
                     capture_output=True, text=True)
assert out.returncode == 0 and out.stdout.strip(), out
""",
        environment=(("OPENAI_API_KEY", "any"),),
    ),
    "aider": Client(
        ("aider-chat",),
        "{bin}/aider --model openai/demo --openai-api-base @URL@/v1 --openai-api-key any --no-git --yes-always"
        " --no-show-model-warnings --no-check-update --no-analytics --message Hello",
        headless=True,
        environment=(("LITELLM_LOCAL_MODEL_COST_MAP", "True"),),
    ),
}
JAVASCRIPT: Final = {
    "openai (npm)": Client(
        ("openai",),
        f"""
import OpenAI from 'openai';
const c = new OpenAI({{baseURL: '@URL@/v1', apiKey: 'any'}});
const r = await c.chat.completions.create({{model: 'demo', messages: {ASKED}, max_tokens: 8}});
if (!r.choices[0].message.content) throw r;
const s = await c.chat.completions.create({{model: 'demo', messages: {ASKED}, max_tokens: 8, stream: true}});
let text = '';
for await (const k of s) text += k.choices[0]?.delta?.content ?? '';
if (!text) throw text;
""",
    ),
    "anthropic (npm)": Client(
        ("@anthropic-ai/sdk",),
        f"""
import Anthropic from '@anthropic-ai/sdk';
const c = new Anthropic({{baseURL: '@URL@', apiKey: 'any'}});
const r = await c.messages.create({{model: 'demo', messages: {ASKED}, max_tokens: 8}});
if (!r.content[0].text) throw r;
const m = await c.messages.stream({{model: 'demo', messages: {ASKED}, max_tokens: 8}}).finalMessage();
if (!m.usage.output_tokens) throw m;
""",
    ),
    "ollama (npm)": Client(
        ("ollama",),
        f"""
import {{ Ollama }} from 'ollama';
const c = new Ollama({{host: '@URL@'}});
const r = await c.chat({{model: 'demo', messages: {ASKED}, options: {{num_predict: 8}}}});
if (!r.message.content) throw r;
""",
    ),
    "@ai-sdk/openai-compatible": Client(
        ("ai", "@ai-sdk/openai-compatible"),
        """
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, streamText } from 'ai';
const p = createOpenAICompatible({name: 'localspec', baseURL: '@URL@/v1', apiKey: 'any'});
const r = await generateText({model: p('demo'), prompt: 'Hello', maxOutputTokens: 8});
if (!r.text) throw r;
let text = '';
for await (const t of streamText({model: p('demo'), prompt: 'Hello', maxOutputTokens: 8}).textStream) text += t;
if (!text) throw text;
""",
    ),
    "opencode": Client(
        ("opencode-ai",),
        "{bin}/opencode run --model localspec/demo Hello",
        headless=True,
        environment=(
            (
                "OPENCODE_CONFIG_CONTENT",
                '{"provider":{"localspec":{"npm":"@ai-sdk/openai-compatible","options":{"baseURL":"@URL@/v1",'
                '"apiKey":"any"},"models":{"demo":{"name":"demo"}}}}}',
            ),
        ),
    ),
    "claude code": Client(
        ("@anthropic-ai/claude-code",),
        "{bin}/claude -p Hello --model demo --system-prompt 'Be brief.' --tools Read",
        headless=True,
        environment=(
            ("ANTHROPIC_BASE_URL", "@URL@"),
            ("ANTHROPIC_AUTH_TOKEN", "any"),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
            ("CLAUDE_CODE_MAX_OUTPUT_TOKENS", "32"),
        ),
    ),
    "codex": Client(
        ("@openai/codex",),
        "{bin}/codex exec --skip-git-repo-check -m demo -c model_provider=localspec"
        """ -c 'model_providers.localspec={name="localspec",base_url="@URL@/v1",wire_api="responses"}' Hello""",
        headless=True,
    ),
    "continue cli": Client(
        ("@continuedev/cli",),
        "{bin}/cn -p Hello --config {folder}/continue.yaml",
        headless=True,
    ),
    "qwen code": Client(
        ("@qwen-code/qwen-code",),
        "{bin}/qwen -p Hello",
        headless=True,
        environment=(("OPENAI_BASE_URL", "@URL@/v1"), ("OPENAI_API_KEY", "any"), ("OPENAI_MODEL", "demo")),
    ),
}
CONTINUE_CONFIG: Final = (
    "name: local\nversion: 0.0.1\nmodels:\n  - name: demo\n    provider: openai\n    model: demo\n"
    "    apiBase: @URL@/v1\n    apiKey: any\n"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, client in {**PYTHON, **JAVASCRIPT}.items():
        if not options.names or name in options.names:
            print(f"{name:26} {verdict(name, client, options.folder.resolve(), options.url)}", flush=True)


def verdict(name: str, client: Client, folder: Path, url: str) -> str:
    """What became of one client, in a few words."""
    if error := installed(name, client, folder):
        return f"not installed: {error}"
    before = answered(url)
    began = time.monotonic()
    command, environment = command_of(name, client, folder, url)
    try:
        ended = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"did not end within {PATIENCE_SECONDS} s, {answered(url) - before} requests answered"
    found = f"{answered(url) - before} requests answered, {time.monotonic() - began:.0f} s"
    if ended.returncode == 0:
        return f"runs, {found}"
    return f"status {ended.returncode}, {found}: {(ended.stderr or ended.stdout).strip()[-300:]!r}"


def installed(name: str, client: Client, folder: Path) -> str:
    """Install its packages; why that failed, or ""."""
    if name in PYTHON:
        python = folder / "python" / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder / "python")], check=True)
        command = [str(python), "-m", "pip", "install", "--quiet", *client.packages]
    else:
        command = ["npm", "install", "--silent", "--prefix", str(folder), *client.packages]
    ended = subprocess.run(command, capture_output=True, text=True)
    return (ended.stderr or ended.stdout).strip()[-200:] if ended.returncode else ""


def command_of(name: str, client: Client, folder: Path, url: str) -> tuple[list[str], dict[str, str]]:
    """How it is run, and in which environment: its own home, so that nothing of the user's is read."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    environment = {"HOME": str(home), "LLM_USER_PATH": str(home / "llm"), "NO_PROXY": "127.0.0.1"}
    environment |= {key: value.replace("@URL@", url) for key, value in client.environment}
    program = client.program.replace("@URL@", url)
    in_python = name in PYTHON
    if client.headless:
        (folder / "continue.yaml").write_text(CONTINUE_CONFIG.replace("@URL@", url))
        binaries = folder / ("python/bin" if in_python else "node_modules/.bin")
        program = program.replace("{bin}", str(binaries)).replace("{folder}", str(folder))
        return ["bash", "-c", program], environment
    file = folder / ("client.py" if in_python else "client.mjs")
    file.write_text(program)
    return [str(folder / "python" / "bin" / "python") if in_python else "node", str(file)], environment


def answered(url: str) -> int:
    """Replies that the endpoint has given so far."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("localspec:replies_total")))


if __name__ == "__main__":
    main()
