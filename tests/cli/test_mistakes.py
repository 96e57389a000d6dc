"""What a new user does wrong: one rule for exit codes, messages that name their file, and hints that help."""

import json
import subprocess
import sys

import pytest

from localspec.cli import main
from localspec.errors import UnknownPair
from localspec.options import cache_dir, config_file

pytestmark = pytest.mark.usefixtures("home_of_processes")

WRONG, FAILED = 2, 1


@pytest.mark.parametrize(
    ("line", "code"),
    [
        # what was typed
        ("run Hi --frob", WRONG),
        ("run Hi --temperature warm", WRONG),
        ("run Hi --temperature -1", WRONG),
        ("run Hi --depth 99", WRONG),
        ("run Hi --kv-type zz", WRONG),
        ("run Hi --device CUDA9", WRONG),
        ("run Hi --json-schema {]", WRONG),
        ("run Hi --grammar missing.gbnf", WRONG),
        ("run Hi -f missing.txt", WRONG),
        ("run Hi -m zz", WRONG),
        ("run Hi --target missing.gguf", WRONG),
        ("run Hi --conversation zz", WRONG),
        ("run -c Hi", WRONG),
        ("run", WRONG),
        ("chat", WRONG),
        ("chat --plain -m zz", WRONG),
        ("chat --plain --target missing.gguf", WRONG),
        ("serve --port 99999", WRONG),
        ("serve --keep-alive -1", WRONG),
        ("pull", WRONG),
        ("pull zz", WRONG),
        ("info zz", WRONG),
        ("info missing.gguf", WRONG),
        ("pairs zzz", WRONG),
        ("pairs add Mine --target a.gguf --draft b.gguf", WRONG),
        ("pairs add mine --target a.gguf --draft b.gguf", WRONG),
        ("rm", WRONG),
        ("rm zz", WRONG),
        ("rm demo", WRONG),
        ("bench demo --runs 0", WRONG),
        ("bench demo --only jokes", WRONG),
        ("bench demo --seconds 0", WRONG),
        ("bench demo --svg /no/such/folder/x.svg", WRONG),
        ("tune demo --seconds soon", WRONG),
        ("tune demo --seconds 0.00001 --threads 1", WRONG),
        ("verify demo --seconds 0", WRONG),
        ("verify demo --temperature 0", WRONG),
        ("fit demo --as Mine", WRONG),
        ("fit demo --trim 0", WRONG),
        ("doctor --on CPU", WRONG),
        ("doctor --prove --on CUDA7", WRONG),
        ("doctor --prove zz", WRONG),
        ("demo --svg /no/such/folder/x.svg", WRONG),
        ("completion csh", WRONG),
        # what failed
        ("run Hi --target no-model.gguf", FAILED),
        ("info no-model.gguf", FAILED),
        ("run Hi -m qwen3-4b+0.6b", FAILED),
        ("run {long} --context 64 -m demo", FAILED),
    ],
)
def test_the_exit_code_is_2_for_what_the_user_wrote_and_1_for_what_failed(
    line, code, capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "no-model.gguf").write_bytes(b"x" * 100)
    words = ["a word " * 200 if word == "{long}" else word for word in line.split()]
    assert main(words) == code
    out, err = capsys.readouterr()
    said = [part.split(":")[0] for part in err.splitlines() if not part.startswith(("note", "["))]
    assert said == ["error", "hint"]
    assert not out or "schema" in line


@pytest.fixture
def config():
    """config("...") writes config.toml."""

    def write(text):
        config_file().parent.mkdir(parents=True, exist_ok=True)
        config_file().write_text(text, "utf-8")
        return str(config_file())

    return write


MISTAKES = ("temprature = 1\ncontext = 'long'\ntop_k = 7", "pair = ", "\xff")


@pytest.mark.parametrize("text", MISTAKES)
@pytest.mark.parametrize("command", ["config", "doctor"])
def test_config_and_doctor_work_in_spite_of_a_mistake_and_show_it(command, text, config, capsys):
    path = config(text)
    assert main([command]) == WRONG
    out, err = capsys.readouterr()
    assert ("cache_gb" if command == "config" else "llama-cpp-python") in out
    assert path in err
    assert main([command, "--json"]) == WRONG
    found = json.loads(capsys.readouterr().out)
    assert found["mistakes"]
    assert all(path in mistake for mistake in found["mistakes"])


def test_config_shows_every_mistake_and_what_is_right(config, capsys):
    config(MISTAKES[0])
    main(["config"])
    out, err = capsys.readouterr()
    assert "7  " in out
    assert "no setting called temprature" in err
    assert "did you mean temperature?" in err
    assert "context in " in err


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("pair = 'zz'", "run Hi"),
        ("pair = 'zz'", "serve"),
        ("pair = 'zz'", "bench"),
        ("kv_type = 'zz'", "run Hi -m demo"),
        ("device = 'zz'", "info demo"),
        ("lora = 'zz.gguf'", "run Hi -m demo"),
        ("split = 'zz'", "tune demo"),
        ("context = 3", "run Hi"),
    ],
)
def test_an_error_about_a_setting_names_its_file_and_its_key(text, line, config, capsys):
    path = config(text)
    assert main(line.split()) in (WRONG, FAILED)
    assert f"{text.split()[0]} in {path}" in capsys.readouterr().err


def test_python_names_the_setting_too(config, monkeypatch):
    import localspec

    path = config("pair = 'zz'")
    with pytest.raises(UnknownPair, match="there is no pair called zz") as caught:
        localspec.load()
    assert f"pair in {path}" in str(caught.value)
    monkeypatch.setenv("LOCALSPEC_PAIR", "yy")
    with pytest.raises(UnknownPair, match=r"yy \(LOCALSPEC_PAIR\)"):
        localspec.load()


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        (["pull"], "`localspec pairs` lists the names"),
        (["run", "Hi", "-m", "demoo"], "did you mean demo?"),
        (["bench", ""], "localspec bench "),
        (["summarise"], '`localspec run "summarise"`'),
        (["summarise", "this", "text", "-n", "3"], '`localspec run "summarise this text"`'),
        (["pairs", "add", "My-Pair", "--target", "a.gguf", "--draft", "b.gguf"], "lower-case letters"),
        (["pairs", "zzz"], "`localspec pairs` lists all"),
    ],
)
def test_hints_where_a_new_user_goes_wrong(line, hint, capsys):
    assert main(line) == WRONG
    assert hint in capsys.readouterr().err


def test_pairs_lists_those_like_a_word_and_explains_its_columns(capsys):
    assert main(["pairs", "qwen3"]) == 0
    rows = capsys.readouterr().out.splitlines()
    names = [row.split()[0] for row in rows[1 : rows.index("")]]
    assert names
    assert all("qwen3" in name for name in names)
    assert "FITS" in rows[0]
    assert any(row.startswith("FITS: ") for row in rows)
    assert main(["pairs", "QWEN3", "--json"]) == 0
    assert [pair["name"] for pair in json.loads(capsys.readouterr().out)["pairs"]] == names


def test_piped_text_without_a_command_gets_a_word():
    done = subprocess.run(
        [sys.executable, "-m", "localspec"], input="some text", capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert "usage: localspec" in done.stdout
    assert "`localspec run -`" in done.stderr


def test_list_shows_the_enlarged_demo_and_rm_frees_it(home, capsys):
    folder = cache_dir() / "demo"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "target-0.gguf").write_bytes(b"x" * 3_000_000)
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert "demo, enlarged   3.0 MB" in " ".join(out.split(" "))
    assert "`localspec rm demo`" in out
    assert main(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["enlarged_demo_bytes"] == 3_000_000
    assert main(["rm", "demo"]) == 0
    assert "demo/target-0.gguf" in capsys.readouterr().out
    assert main(["list", "--json"]) == 0
    after = json.loads(capsys.readouterr().out)
    assert found["bytes"] - after["bytes"] == 3_000_000


PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def test_an_answer_that_is_cut_inside_its_json_is_no_success(capsys):
    arguments = ["run", "Hi", "-m", "demo", "--threads", "1", "-q", "--json-schema", json.dumps(PERSON)]
    assert main([*arguments, "-n", "2"]) == FAILED
    out, err = capsys.readouterr()
    assert out.startswith("{")
    assert err.splitlines()[0] == "error: the reply was cut, so it does not fulfil the JSON schema"
    assert "-n" in err.splitlines()[1]
    short = ["--json-schema", '{"enum": ["yes", "no"]}']
    assert main([*arguments[:-2], *short]) == 0
    assert json.loads(capsys.readouterr().out) in ("yes", "no")
