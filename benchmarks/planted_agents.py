"""Agents against planted targets: each calls a tool in the form of a template, and answers from the result.

    python -m benchmarks.planted_agents --folder DIR [--agents NAME ...] [--forms NAME ...]

Before that install the agents in DIR:

    npm install --prefix DIR opencode-ai @openai/codex @anthropic-ai/claude-code @continuedev/cli
    python -m venv DIR/python && DIR/python/bin/pip install aider-chat

An agent passes when it prints the planted answer: the
target writes it only after a prompt with a word that stands in the file which the call reads. Prompts of 18,000 tokens
take minutes on a busy CPU, so opencode and Codex get short instructions; `--whole` leaves them theirs.
"""

import argparse
import json
import os
import subprocess
from pathlib import Path
from typing import Final

from benchmarks.planted_targets import FORMS, WORD, script_of, write_planted
from tests.prompt.carried import TEMPLATES
from tests.serve.conftest import serving

ANSWER: Final = "The word means 4711."
EDIT: Final = "I change it.\n\nnotes.txt\n```\n<<<<<<< SEARCH\nold\n=======\n4711\n>>>>>>> REPLACE\n```\n"
QUESTION: Final = "'Read notes.txt and tell me what its word means.'"
# The tool that reads a file, the argument with its path, and the command; {npm} and {python} hold the programs.
AGENTS: Final = {
    "opencode": (
        "read",
        "filePath",
        "{npm}/opencode run --model localspec/planted {opencode} --title t " + QUESTION,
    ),
    "codex": (
        "exec_command",
        "cmd",
        "{npm}/codex exec --skip-git-repo-check -s danger-full-access -m planted {codex} -c model_provider=localspec"
        """ -c 'model_providers.localspec={{name="localspec",base_url="{url}/v1",wire_api="responses"}}' """
        + QUESTION,
    ),
    "claude code": (
        "Read",
        "file_path",
        f"{{npm}}/claude -p {QUESTION} --model planted --system-prompt 'Be brief.' --tools Read",
    ),
    "continue": ("Read", "filepath", f"{{npm}}/cn -p {QUESTION} --auto --config {{folder}}/continue.yaml"),
    "aider": (
        "",
        "",
        "{python}/aider --model openai/planted --openai-api-base {url}/v1 --openai-api-key any --no-git --yes-always"
        " --no-show-model-warnings --no-check-update --no-analytics --edit-format diff --message Edit. notes.txt",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--agents", nargs="*", default=list(AGENTS), choices=AGENTS)
    parser.add_argument("--forms", nargs="*", default=list(FORMS), choices=FORMS)
    parser.add_argument("--whole", action="store_true")
    options = parser.parse_args()
    for form in options.forms:
        for agent in options.agents:
            print(
                f"{agent:12} {form:18}",
                verdict(agent, form, options.folder.resolve(), options.whole),
                flush=True,
            )


def verdict(agent: str, form: str, folder: Path, whole: bool) -> str:
    """What became of one agent with a target of one form."""
    tool, key, command = AGENTS[agent]
    work, notes = folder / "work", folder / "work" / "notes.txt"
    work.mkdir(exist_ok=True)
    notes.write_text("old\n" if agent == "aider" else f"The word is {WORD}.\n")
    path, (template, *ends) = folder / "planted.gguf", FORMS[form]
    call = tool or "none", {key: f"cat {notes}" if key == "cmd" else str(notes)}
    think = True if agent == "claude code" else None  # it asks for thoughts
    script = script_of(TEMPLATES[template], (ends[0], ends[1]), call, ANSWER, think)
    write_planted(path, script.saying(EDIT) if agent == "aider" else script)
    with serving(folder / "home", "--target", str(path), "--context", "65536", "--any-model") as server:
        environment = os.environ | settings(folder, server.url, whole)
        (folder / "brief.md").write_text("Be brief.\n")
        filled = command.format(
            npm=folder / "node_modules/.bin",
            python=folder / "python/bin",
            folder=folder,
            url=server.url,
            opencode="" if whole else "--agent short",
            codex="" if whole else f"-c model_instructions_file={folder}/brief.md",
        )
        ended = subprocess.run(
            ["bash", "-c", filled],
            cwd=work,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    said = notes.read_text() if agent == "aider" else ended.stdout
    if ANSWER in said or (agent == "aider" and said == "4711\n"):
        return "passes"
    return f"status {ended.returncode}: {(ended.stdout + ended.stderr).strip()[-300:]!r}"


def settings(folder: Path, url: str, whole: bool) -> dict[str, str]:
    """The environment of the agents, and Continue's file."""
    model = {"npm": "@ai-sdk/openai-compatible", "models": {"planted": {"name": "planted"}}}
    opencode = {"provider": {"localspec": {**model, "options": {"baseURL": f"{url}/v1", "apiKey": "any"}}}}
    if not whole:
        short = {"mode": "primary", "prompt": "Be brief.", "tools": {"*": False, "read": True, "bash": True}}
        opencode["agent"] = {"short": short}
    (folder / "continue.yaml").write_text(
        "name: local\nversion: 0.0.1\nmodels:\n  - name: planted\n    provider: openai\n    model: planted\n"
        f"    apiBase: {url}/v1\n    apiKey: any\n    capabilities:\n      - tool_use\n"
    )
    return {
        "HOME": str(folder / "home"),
        "NO_PROXY": "127.0.0.1",
        "OPENCODE_CONFIG_CONTENT": json.dumps(opencode),
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": "any",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }


if __name__ == "__main__":
    main()
