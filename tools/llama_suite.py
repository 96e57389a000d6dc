"""Run llama.cpp's own server tests against `localspec serve`, or against llama-server with the same model.

    python -m tools.llama_suite SUITE MODEL [--server LLAMA_SERVER] [pytest's arguments]

SUITE is the folder tools/server/tests of llama.cpp, which is copied; MODEL a GGUF file that stands for the models of
the tests. Counts of tokens, texts of the tests' own tiny model and the case of headers are relaxed alike for both
servers.
"""

import argparse
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_RELAXED: Final = (  # in the tests: a pattern and its replacement
    (r"== (n_prompt|n_cache|n_prompt_\w+)$", r">= 0"),
    (r"== (n_predict(?:ed)?)$", r"<= \1"),
    (r"== (n_token_output|226)$", "> 0"),
    (r'== "<s> " \+ prompt', "== prompt"),
    (r"== (?:finish_reason$|\"length\"(?=:$))", 'in ("stop", "length")'),
    (
        r'data\["type"\] == "response.completed"',
        'data["type"] in ("response.completed", "response.incomplete")',
    ),
    (r"(system_fingerprint\"?\]?)\.startswith\(\"b\"\)", r"\1.strip()"),  # it names the server
)
_OWN_WORDS: Final = (  # in utils.py: texts of the tiny model
    "def match_regex(regex: str, text: str) -> bool:\n",
    "def match_regex(regex: str, text: str) -> bool:\n    if regex[:1] not in '\"a[':\n        return True\n",
)
_ONE_THREAD: Final = ("--threads", "1")  # threads wait for each other, which takes long on a busy machine


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--server", type=Path, help="a llama-server to test instead of localspec")
    known, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="llama-suite-") as folder:
        tests = relaxed(known.suite.resolve(), Path(folder))
        launcher = Path(folder) / "llama-server"
        words = [sys.executable, str(Path(__file__).resolve()), "--as-server"]
        launcher.write_text(f'#!/bin/sh\nexec {" ".join(words)} "$@"\n')
        launcher.chmod(0o755)
        env = {
            **os.environ,
            "LLAMA_SERVER_BIN_PATH": str(launcher),
            "SUITE_MODEL": str(known.model.resolve()),
            "SUITE_SERVER": str(known.server.resolve()) if known.server else "",
            "SUITE_FOLDER": folder,
            "PORT": str(free_port()),
        }
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-m", "not slow", *more]
        return subprocess.run(command, cwd=tests, env=env, check=False).returncode


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def relaxed(suite: Path, folder: Path) -> Path:
    """A copy of the suite that needs no model of its own; templates keep their relative path."""
    tests = folder / "tools" / "server" / "tests"
    shutil.copytree(suite, tests)
    (folder / "models").symlink_to(suite.parents[2] / "models")
    utils = tests / "utils.py"
    text = utils.read_text().replace(*_OWN_WORDS).replace("dict(response.headers)", "response.headers")
    # The model of a test is replaced, so nothing is fetched.
    text = re.sub(r"(?m)^import wget$", "", text)
    utils.write_text(
        re.sub(r"(?m)^(def download_file.*)$", r"\1\n    return os.environ['SUITE_MODEL']", text)
    )
    conftest = tests / "conftest.py"
    conftest.write_text(conftest.read_text().replace("ServerPreset.load_all()", "pass"))
    for path in (tests / "unit").glob("test_*.py"):
        text = path.read_text()
        for pattern, replacement in _RELAXED:
            text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
        path.write_text(text)
    return tests


def start(words: list[str]) -> None:
    """Become the server of a test, started with llama-server's words."""
    program, model = os.environ["SUITE_SERVER"], os.environ["SUITE_MODEL"]
    given = options_of(words)
    named = any(given.pop(name, None) for name in ("--hf-repo", "--model", "--model-url"))
    for name in ("--hf-file", "--mmproj-url", "--offline"):
        given.pop(name, None)
    if program:
        flat = [word for name, value in given.items() for word in (name, value) if word is not True]
        os.execv(program, [program, *_ONE_THREAD, *(["--model", model] if named else []), *flat])
    settings = {"--temp": "TEMPERATURE", "--seed": "SEED", "--n-predict": "MAX_TOKENS"}
    os.environ |= {
        f"LOCALSPEC_{settings[name]}": given[name] for name in settings if given.get(name, "-1") != "-1"
    }
    os.environ["LOCALSPEC_HOME"] = f"{os.environ['SUITE_FOLDER']}/home"
    slots = int(given.get("--parallel", "1"))
    kept = ("--port", "--host", "--api-key", "--alias", "--tags")
    flat = [word for name in kept if name in given for word in (name, given[name])]
    if "--ctx-size" in given:
        flat += ["--context", str(int(given["--ctx-size"]) // slots)]
    flat += ["--verbose"] * ("--verbose" in given)
    if "--model-draft" in given:
        flat += ["--draft", model]
    small = {"--embedding": "--embed", "--reranking": "--rerank"}
    target: str | Path = "demo"
    if beside := next(
        (small[name] for name in small if name in given), ""
    ):  # the model stands beside the demo pair
        flat += [beside, model, *(["--pooling", given["--pooling"]] if "--pooling" in given else [])]
    else:
        target = with_template(Path(model), template_of(given))
    command = [sys.executable, "-m", "localspec", "serve", str(target), "--any-model", *_ONE_THREAD]
    os.execv(sys.executable, [*command, "--parallel", str(slots), *flat])


def template_of(given: Mapping[str, Any]) -> str:
    """The template of these options; "" is the model's own."""
    text = given.get("--chat-template", "")
    if path := given.get("--chat-template-file"):
        text = Path(path).read_text()
    if text == "chatml":
        from localspec.prompt.template import CHATML

        text = CHATML
    return "{% set enable_thinking = false %}" + text if text and given.get("--reasoning") == "off" else text


def with_template(model: Path, text: str) -> Path:
    """A copy of the model with this chat template."""
    if not text:
        return model
    data, key = model.read_bytes(), b"tokenizer.chat_template"
    at = data.index(key) + len(key) + 4  # behind the type
    (length,) = struct.unpack_from("<Q", data, at)
    new = text.encode()
    new += b"{#" + b" " * ((length - len(new) - 4) % 32) + b"#}"  # the weights stay aligned
    found = Path(os.environ["SUITE_FOLDER"]) / f"{model.stem}-templated.gguf"
    found.write_bytes(data[:at] + struct.pack("<Q", len(new)) + new + data[at + 8 + length :])
    return found


def options_of(words: list[str]) -> dict[str, Any]:
    """Each option with its value, or True."""
    found: dict[str, Any] = {}
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("-") and not word[1:2].isdigit():
            found[word] = True if following.startswith("-") and not following[1:2].isdigit() else following
    return found


if __name__ == "__main__":
    sys.exit(start(sys.argv[2:]) if sys.argv[1:2] == ["--as-server"] else main())
