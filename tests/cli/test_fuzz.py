"""Random command lines, environments and damaged files end in sentences: no traceback, no hang, a known exit code.

python -m tests.cli.test_fuzz CASES SEED FOLDER     # FOLDER has the files of a home that was used
"""

import contextlib
import faulthandler
import io
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from localspec.options import SETTINGS
from tests.gguf import Shape, write_gguf
from tests.gguf.mutations import by_meaning, taken_apart

pytestmark = pytest.mark.nightly

HANG_SECONDS = 120.0  # on a busy machine
PLAIN_WORDS = f"""good.gguf bad.gguf demo mine org/target:t.gguf words.txt lookup CPU q8_0 greedy chat,json auto
0 1 4 -1 0.5 0,0.8 1e9 nan inf 70000 {"9" * 30} - -- ~nobody/x / /dev/null .. 7,7, (a [1 C:\\x.gguf folder bytes.bin
loop http://[bad :5 org/t:NUL.gguf org/target:../x.gguf (a*)*b"""
WORDS = [*PLAIN_WORDS.split(), "", "x y", "a\0b", "\udcff", "\x1b[2J", "漢字", "x" * 5000, '{"a": ' * 500]
EARNEST = """run Hi; run --raw Hi --target good.gguf; run Hi --target bad.gguf --draft good.gguf; list; info bad.gguf;
info good.gguf --draft bad.gguf; rm --unused; rm mine; pairs add new --target good.gguf --draft bad.gguf; pull mine;
info org/target:t.gguf; config; chat demo"""
SHORT = {"run": "--max-tokens 2 --threads 1", "bench": "--max-tokens 2 --runs 1", "verify": "--seconds 1"}
SLOW = ("run", "bench", "verify", "doctor", "info", "demo")
VARIABLES = [*(f"LOCALSPEC_{name.upper()}" for name in (*SETTINGS, "home")), "HF_TOKEN", "HF_ENDPOINT"]
VARIABLES += ["HF_HUB_CACHE", "HTTPS_PROXY", "SSL_CERT_FILE", "COLUMNS"]
VALUES = (None, True, -1, 10**30, float("nan"), "", "\udcff", [], {"a": {"b": []}}, [{"name": 5}])
VALUES += ({"demo": 1e300},)


def words_of(chance, commands):
    if chance.random() < 0.3:
        words = chance.choice(EARNEST.split(";")).split()
    else:
        (command,) = chance.choices(list(commands), [0.1 if name in SLOW else 1 for name in commands])
        words = [command, *chance.choices(WORDS, k=chance.choice((0, 1, 1, 2)))]
    for _ in range(chance.choice((0, 1, 2, 6))):
        flag, takes_value = chance.choice(commands.get(words[0], [("--help", False)]))
        words += [flag, chance.choice(WORDS)] if takes_value else [flag]
    return [*words, *SHORT.get(words[0], "").split()]


def damage(home, chance):
    files = [path for path in sorted(home.rglob("*")) if path.is_file() and path.suffix != ".gguf"]
    path, value, kind = chance.choice(files), chance.choice(VALUES), chance.random()
    if kind < 0.1:
        path.unlink()
        path.mkdir()
    elif path.suffix == ".toml" and kind < 0.7:
        lines = path.read_text().splitlines()
        at = chance.randrange(len(lines))
        lines[at] = f"{lines[at].partition('=')[0]}= {chance.choice((json.dumps(value), '5', '[[', '-5'))}"
        path.write_text("\n".join(lines))
    elif path.suffix == ".json" and kind < 0.7:
        document = json.loads(path.read_text())
        if isinstance(document, dict) and document and kind < 0.5:
            value = document | {chance.choice(list(document)): value}
        path.write_text(json.dumps(value))
    else:
        path.write_bytes(chance.randbytes(chance.randrange(60)))


def main(count, seed, folder):
    from localspec.cli import main
    from localspec.cli.program import parser
    from localspec.models import hub

    hub.sleep = lambda *_: None
    actions = next(action.choices for action in parser()._actions if action.dest == "command")
    commands = {
        name: [(flag, each.nargs != 0) for each in command._actions for flag in each.option_strings]
        for name, command in actions.items()
        if name != "serve"  # which runs until it is stopped
    }
    os.chdir(folder / "work")
    mutations = [each.written() for each in by_meaning(taken_apart(Path("good.gguf")))]
    known = os.environ | {"LOCALSPEC_HOME": str(folder / "home"), "HF_ENDPOINT": "http://127.0.0.1:9"}
    for number in range(count):
        chance = random.Random(f"{seed} {number}")
        shutil.rmtree(folder / "home", ignore_errors=True)
        shutil.copytree(folder / "before", folder / "home")
        Path("bad.gguf").write_bytes(chance.choice(mutations))
        damage(folder / "home", chance)
        os.environ.clear()
        os.environ |= known
        given = {name: chance.choice(WORDS) for name in chance.sample(VARIABLES, chance.choice((0, 1, 2)))}
        os.environ |= {name: value.replace("\0", "") for name, value in given.items()}
        words = words_of(chance, commands)
        output = io.TextIOWrapper(io.BytesIO(), chance.choice(("utf-8", "ascii")), "replace")
        sys.stdin = io.TextIOWrapper(io.BytesIO(chance.choice((b"", b"some text", b"\x80\xff", b"\0"))))
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        print(f"case {number}", file=sys.__stdout__, flush=True)
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code = main(words)
        output.flush()
        printed = output.buffer.getvalue().decode(output.encoding, "replace")
        wrong = (
            code not in {0, 1, 2, 3, 130} or "Traceback" in printed or "localspec made a mistake" in printed
        )
        assert not wrong, (words, given, code, printed[-2000:])


@pytest.mark.skipif(sys.platform == "win32", reason="links")
def test_random_command_lines_environments_and_files_end_in_sentences(cache_of_all_homes, tmp_path):
    work, home = tmp_path / "work", tmp_path / "before"
    (work / "folder").mkdir(parents=True)
    (work / "words.txt").write_text("some words\n" * 9)
    (work / "bytes.bin").write_bytes(bytes(range(256)))
    (work / "loop").symlink_to("loop")
    write_gguf(work / "good.gguf", Shape(vocab_size=400, layers=1, context_length=256))
    shutil.copytree(cache_of_all_homes, home / "cache")
    (home / "config.toml").write_text("context = 512\ntemperature = 0.5\n")
    (home / "data").mkdir()
    (home / "data" / "speedups.json").write_text('{"demo": 1.5}')
    environment = os.environ | {"LOCALSPEC_HOME": str(home), "PYTHONPATH": str(Path(__file__).parents[2])}
    for line in (
        "localspec run Hi --max-tokens 2 --pair demo",
        "localspec pairs add mine --target good.gguf --draft good.gguf",
        f"tests.cli.test_fuzz 120 2 {tmp_path}",
    ):
        command = [sys.executable, "-m", *line.split()]
        found = subprocess.run(
            command, cwd=work, env=environment, capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, found.stdout[-200:] + found.stderr


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
