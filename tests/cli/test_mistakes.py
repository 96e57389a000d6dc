"""What a new user does wrong: one rule for exit codes, messages that name their file, and hints that help."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from localspec import demo
from localspec.cli import main
from localspec.errors import UnknownPair
from localspec.options import cache_dir, config_file

pytestmark = pytest.mark.usefixtures("home_of_processes")

WRONG, FAILED = 2, 1


# A line that is wrong, and a part of the message about it.
WRONG_LINES = [
    ("rnu", "hint: did you mean run? `localspec --help`"),
    ("frobnicate", "`localspec --help` lists all commands"),
    ("-m demo Hi", "`localspec run -m demo Hi` with a prompt"),
    ("llama3", "`localspec run llama-3.1-8b+1b PROMPT`"),
    ("run Hi --frob", "--frob"),
    ("run Hi --temprature 0", "hint: did you mean --temperature? `localspec run --help`"),
    ("pairs --jsn=1", "hint: did you mean --json? `localspec pairs --help`"),
    ("rm demo more", "hint: `localspec rm --help`"),
    ("serve --api-key K --host é..b", "--host é..b is not a valid address"),
    ("serve demo --parallel 9", "'9' is not auto or a whole number from 1 to 8"),
    ("serve demo --context 5", "'5' is not a whole number of at least 16"),
    ("serve --keep-alive nan", "--keep-alive: 'nan' is not a number from 0"),
    ("run Hi --depth deep", "not auto or a whole number"),
    ("run Hi --rule magic", "coupled"),
    ("run Hi --raw --system Brief.", "--system"),
    ("run Hi --raw --no-think", "--no-think"),
    ("run Hi --raw --think 5", "--think"),
    ("run Hi --think -1", "'-1' is not true, false or a whole number of at least 0"),
    ("run Hi --think=many", "'many' is not true, false or a whole number"),
    ("run Hi --regex= --grammar b", "--grammar: not allowed with argument --regex"),
    ("run Hi --draft= --no-draft", "--no-draft: not allowed with argument --draft"),
    ("run Hi --no-compact-json", "--json-schema"),
    ("run Hi --pair demo --target x.gguf", "--target"),
    ("run Hi --draft demo", "ORG/REPO:QUANT or lookup, or the pair alone: --pair demo"),
    ("run smol.gguf Hi --draft demo", "demo is a pair, and a draft is one model"),
    ("bench demo --pair demo", "hint: leave out one of them"),
    ("bench demo Hi --no-draft", "--no-draft"),
    ("bench demo Hi --depth 0", "--depth 0"),
    ("bench demo Hi --temperature 0,1", "one temperature"),
    ("bench demo Hi --runs 3", "--runs is for the built-in prompts"),
    ("bench demo --only jokes", "code, chat, prose, json, edit, long, call"),
    ("bench demo --top-k 3", "--top-k needs your own prompt"),
    ("bench demo --no-draft", "without drafting there is nothing to compare"),
    ("bench demo Hi there", 'in quotes: "Hi there"'),
    ("rm", "NAME, --unused and --caches; `localspec chats rm`"),
    ("rm", "nothing is named to remove"),
    ("rm demo --unused", "one thing at a time"),
    ("smol.gguf Hi", "`localspec chat smol.gguf`"),
    ("qwen3-4b+0.6b", "`localspec chat qwen3-4b+0.6b`"),
    ("pull smol.gguf", "run a file with `localspec run smol.gguf PROMPT`"),
    ("rm smol.gguf", "only pairs are downloaded and removed"),
    ("run Hi --model smol", "did you mean --pair or --target?"),
    ("run Hi --draft-model smol", "did you mean --draft?"),
    ("run demo", 'localspec run demo "What is'),
    ("run qwen3-4b+0.6b", 'localspec run qwen3-4b+0.6b "What is'),
    ("run foo.gguf", "foo.gguf does not exist"),
    ("delete demo", "did you mean rm?"),
    ("search qwen", "did you mean pairs?"),
    ("completion bsh", "did you mean bash?"),
    ("--pair demo", "`localspec chat --pair demo`"),
    ("fit demo", "--trim N: at least 256"),
    ("create mine", "a GGUF file needs no import"),
    ("run llama3.1", "`localspec pull llama-3.1-8b+1b`"),
    ("run qwen2.5:7b", "`localspec pull qwen2.5-7b+0.5b` downloads a model like it"),
    ("run gpt-oss:20b Hi", "gpt-oss:20b is the name of a model"),
    ("run mistral", "`localspec pairs` lists pairs"),
    ("run llama-3-8b+2b Hello", "did you mean llama-3.1-8b+1b"),
    ("run '   '", "the prompt is empty"),
    ("run phi", "phi is the name of a model"),
    ("run gemma", 'localspec run "What is gemma?"'),
    ("run notes.txt Hi", 'localspec run -f notes.txt "Hi"'),
    ("run notes.txt", "notes.txt is a file, not a prompt"),
    ("pull", "name one of `localspec pairs`"),
    ("run Hi -m demoo", "did you mean demo?"),
    ("run Hi -m demo --lora no.gguf", "there is no adapter file no.gguf"),
    ("bench ''", "localspec bench "),
    ("summarise this text -n 3", '`localspec run "summarise this text"`'),
    ("pairs add My-Pair --target a.gguf --draft b.gguf", "lower-case letters"),
]
OTHER_LINES = """run Hi --temperature -1; run Hi --depth 99; run Hi --kv-type zz; run Hi --device CUDA9;
run Hi --json-schema {]; run Hi --grammar missing.gbnf; run Hi -f missing.txt;
run Hi --target missing.gguf; run Hi --target .; run Hi --conversation zz; run -c Hi; run; chat; chat --plain -m zz;
serve --port 99999; serve --keep-alive -1; pull zz; info missing.gguf;
pairs add Mine --target a.gguf --draft b.gguf; pairs add mine --target a.gguf --draft b.gguf; rm zz;
rm demo; bench demo --seconds 0;
bench demo --seconds soon; verify demo --seconds 0; verify demo --temperature 0; fit demo --as Mine;
fit demo --trim 0;
completion csh; run Hi --pair lama-3-8b; run Hi --top-p 7; run Hi --max-tokens -1; run Hi --threads 513;
run Hi --context 1; run Hi --target smol.gguf --context 2000000000; run Hi --draft x.gguf; run Hi --stop '';
run Hi --seed -1"""
WRONG_LINES += [(line.strip(), "") for line in OTHER_LINES.split(";")]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Models in the folder of the shell: a whole one and a broken one."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(demo.target_path(), "smol.gguf")
    Path("no-model.gguf").write_bytes(b"x" * 100)
    Path("notes.txt").write_text("a note")


def refused(words, code, capsys):
    """The messages besides notes and numbers: an error and a hint, as one text."""
    assert main(words) == code
    out, err = capsys.readouterr()
    assert not out or "--json-schema" in words
    sentence = [part for part in err.splitlines() if not part.startswith(("notice", "["))]
    assert [part.split(":")[0] for part in sentence] == ["error", "hint"]
    return " ".join(sentence)


@pytest.mark.process
@pytest.mark.parametrize(("line", "says"), WRONG_LINES)
def test_what_the_user_wrote_wrong_ends_with_2_and_a_hint_that_helps(files, line, says, capsys):
    assert says in refused(shlex.split(line), WRONG, capsys)


@pytest.mark.parametrize("line", ["ps", "stop smollm2"])
def test_a_question_of_an_ollama_user_is_answered_and_is_no_error(line, capsys):
    assert main(line.split()) == 0
    out, err = capsys.readouterr()
    assert (out.startswith("Nothing runs in the background: "), out.count("\n"), err) == (True, 1, "")


@pytest.mark.process
@pytest.mark.parametrize(
    "line",
    [
        "run Hi --target no-model.gguf",
        "run Hi --target smol.gguf --draft no-model.gguf",
        "info no-model.gguf",
        "run Hi -m qwen3-4b+0.6b",
        f"run '{'a word ' * 200}' --context 64 -m demo",
        "serve demo --embed no-model.gguf",
        "serve demo --embed smol.gguf",
        "serve demo --rerank smol.gguf",
    ],
)
def test_what_failed_ends_with_1(files, line, capsys):
    refused(shlex.split(line), FAILED, capsys)


@pytest.fixture
def config():
    """config("...") writes config.toml."""

    def write(text):
        config_file().parent.mkdir(parents=True, exist_ok=True)
        config_file().write_text(text, "utf-8")
        return str(config_file())

    return write


@pytest.mark.process
@pytest.mark.parametrize("text", ["temprature = 1\ncontext = 'long'\ntop_k = 7", "pair = ", "\xff"])
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


@pytest.mark.process
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("pair = 'zz'", "run Hi"),
        ("kv_type = 'zz'", "run Hi -m demo"),
        ("device = 'zz'", "info demo"),
        ("lora = 'zz.gguf'", "run Hi -m demo"),
        ("split = 'zz'", "verify demo"),
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


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere file names are text")
def test_arguments_that_are_no_utf_8_are_replaced_or_refused_in_a_sentence(files, tmp_path, capsys):
    odd = "caf\udce9"
    file = str(shutil.copy(demo.target_path(), tmp_path / f"{odd}.gguf"))
    for line in (
        ["run", "demo", odd, "-n", "2"],
        ["run", "demo", "Hi", "-n", "2", "-s", odd, "--stop", odd, "--store"],
        ["run", "--target", file, "Hi", "-n", "2"],
        ["info", file],
        ["pairs", "--like", odd],
        ["run", "demo", "Hi", "--regex", odd],
        ["pairs", "add", "odd", "--target", file, "--draft", str(demo.draft_path())],
        [odd, "Hi"],
    ):
        assert main(line) in (0, WRONG), line
        assert "made a mistake" not in capsys.readouterr().err, line


@pytest.mark.process
def test_piped_text_without_a_command_gets_a_word():
    done = subprocess.run(
        [sys.executable, "-m", "localspec"], input="some text", capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0
    assert "usage: localspec" in done.stdout
    assert "`localspec run -`" in done.stderr


def test_list_shows_the_enlarged_demo_and_rm_frees_it(home, cache_of_its_own, capsys):
    folder = cache_dir() / "demo"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "target-0.gguf").write_bytes(b"x" * 3_000_000)
    main(["list"])
    assert "demo, enlarged   3.0 MB  by `localspec demo`; `localspec rm demo`" in capsys.readouterr().out
    sizes = []
    for _ in range(2):
        main(["list", "--json"])
        sizes.append(json.loads(capsys.readouterr().out)["bytes"])
        main(["rm", "demo"])
        capsys.readouterr()
    assert sizes[0] - sizes[1] == 3_000_000


PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@pytest.mark.process
def test_an_answer_that_is_cut_inside_its_json_is_no_success(capsys):
    arguments = ["run", "Hi", "-m", "demo", "--threads", "1", "-q", "--json-schema", json.dumps(PERSON)]
    assert main([*arguments, "-n", "2"]) == FAILED
    out, err = capsys.readouterr()
    assert not out or out.startswith("{"), "a fence before the JSON is no part of the answer"
    assert err.splitlines()[0] == "error: the reply was cut off before it matched the JSON schema"
    assert "-n" in err.splitlines()[1]
    short = ["--json-schema", '{"enum": ["yes", "no"]}']
    assert main([*arguments[:-2], *short]) == 0
    assert json.loads(capsys.readouterr().out) in ("yes", "no")
