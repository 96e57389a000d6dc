"""Random command lines with environments and files; some of them would do something, were they not damaged."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from localspec.options import SETTINGS

Options = Mapping[
    str, Mapping[str, tuple[str, ...]]
]  # of each command, with values that fit; none for switches


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ODD = (
    *("", "x y", "Demo ", "a\0b", "\udcff", "\x1b[2J", "漢字", "x" * 5000, '{"a": ' * 500, "root ::= 'a'"),
    *_words(
        "- -- -0.1 ~nobody-here/x ~ / /dev/null .. C:\\x.gguf null code chat,json a,b 7,7,7 100,0 , (a [1,"
    ),
    *_words("qwen3-4b+0.6b gemma-4-e2b+mtp lookup greedy coupled CPU CUDA0 q8_0 f16 [a-z]{1,3}"),
    *_words("org/target:nothing.gguf no/body:x.gguf a--b/c:x.gguf org/target:../x.gguf org/target:NUL.gguf"),
    *_words("https://huggingface.co/org/target/resolve/main/target.gguf hf.co/org/target http://[bad"),
    *_words("folder bytes.bin missing.gguf loop vocabulary.gguf 127.0.0.1:9 :5 localhost:99999999"),
)
NUMBERS = _words(f"0 1 2 4 -1 0.5 0,0.8 1e9 nan inf 70000 {'9' * 12} {'9' * 30} auto")
NAMES = _words("good.gguf bad.gguf demo tiny mine org/target:target.gguf words.txt")
FITTING = {
    "--pair": ("demo", "mine", "tiny"),
    "--target": ("good.gguf", "bad.gguf"),
    "--draft": ("good.gguf", "lookup", "bad.gguf"),
    "--kv-type": ("f16", "q8_0", "q4_0"),
    "--device": ("CPU",),
    "--draft-device": ("CPU",),
    "--rule": ("greedy", "coupled"),
    "--json-schema": ('{"type": "object"}', '{"type": 5}', '{"enum": ["a"]}', '{"$ref": "#"}'),
    "--regex": ("[a-z]{1,3}", "(a", "(a*)*b", "\\p{L}"),
    "--grammar": ("root ::= 'a'", 'root ::= "a" root | "b"', "root ::= root", "words.txt"),
    "--depths": ("0,2", "auto"),
    "--only": ("json", "code", "chat,json"),
}
EARNEST = (
    *(("run", "Hi"), ("run", "Hi", "--pair", "demo"), ("run", "--raw", "Hi", "--target", "good.gguf")),
    *(("run", "Hi", "--target", "bad.gguf", "--draft", "good.gguf"), ("run",), ("run", "demo")),
    *(("info", "good.gguf", "--draft", "bad.gguf"), ("info", "demo"), ("info", "bad.gguf"), ("info", "tiny")),
    *(
        ("info", "org/target:target.gguf"),
        ("list",),
        ("rm", "--unused"),
        ("rm", "tiny"),
        ("rm", "mine"),
        ("pairs",),
    ),
    *(
        ("pull", "tiny"),
        ("pull", "later"),
        ("pull", "self"),
        ("rm", "later"),
        ("chat", "demo"),
        ("doctor",),
    ),
    ("pairs", "add", "new", "--target", "good.gguf", "--draft", "bad.gguf"),
    ("pairs", "add", "new", "--target", "org/target:target.gguf", "--draft", "org/draft:draft.gguf"),
    ("bench", "demo", "--only", "json", "--temperature", "0", "--runs", "1"),
    *(("bench", "Hi", "--draft", "lookup", "--target", "good.gguf"), ("tune", "mine")),
    ("verify", "--target", "good.gguf", "--draft", "good.gguf"),
)
SLOW = _words("run bench tune verify doctor info")
# So that a command that begins in earnest ends soon; the last one of an option counts.
SHORT = {
    "run": ("--max-tokens", "2", "--threads", "1"),
    "bench": ("--max-tokens", "2", "--runs", "1", "--threads", "1"),
    "tune": ("--seconds", "0.1", "--threads", "1"),
    "verify": ("--seconds", "1", "--threads", "1"),
}
PROXIES = _words("socks5://127.0.0.1:9 socks4://x http://127.0.0.1:9 http://[bad nonsense http://a:b:c")
VARIABLES: dict[str, tuple[str, ...]] = {
    **{
        f"LOCALSPEC_{name.upper()}": (*NUMBERS * 4, *NAMES, *(word for word in ODD if "\0" not in word))
        for name in SETTINGS
    },
    **dict.fromkeys(("ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"), ("", *PROXIES)),
    "LOCALSPEC_HOME": ("", "~nobody-here", "words.txt/x", "/dev/null/x", "loop", "x" * 300, "new", "\udcff"),
    "LOCALSPEC_TEMPRATURE": ("1",),
    "HF_TOKEN": ("", "hf_x", "hf_ü", "a b", "\udcff", "x" * 9000),
    "HF_ENDPOINT": ("", "127.0.0.1:9", "http://127.0.0.1:9", "http://[bad", "ftp://x", "\udcff"),
    "HF_HOME": ("", "words.txt", "new", "~nobody-here/x"),
    "HF_HUB_CACHE": ("words.txt", "loop", "~nobody-here/x", "x" * 300),
    "SSL_CERT_FILE": ("missing", "words.txt", "folder"),
    "XDG_CACHE_HOME": ("words.txt", "", "relative"),
    "COLUMNS": ("0", "-5", "1", "999999", "x"),
    "TERM": ("dumb", ""),
    "LANG": ("C", "xx"),
}
# What localspec reads below its home; a star is whatever an earlier run has written there.
JSON_FILES = (
    *_words("data/last-used.json data/speedups.json cache/devices.json cache/memory/* cache/health/*"),
    *_words("data/chat.json data/presets.json data/stamps/* data/lessons/*"),
)
FILES = (*("config.toml", "pairs.d/mine.toml") * 2, *JSON_FILES)
VALUES: tuple[object, ...] = (
    *(None, True, 0, -1, 10**30, 1.5, float("nan"), "", "x", "\udcff", [], {}, [1, "a", None]),
    *({"a": {"b": []}}, {"name": "x", "kind": "cpu", "free": "a", "total": []}, [{"name": 5}]),
    *({"demo": "soon"}, {"demo": 1e300}),
)


@dataclass(frozen=True)
class Case:
    """One command line with its surroundings; equal seeds give equal cases."""

    words: list[str]
    environment: dict[str, str]
    files: dict[str, bytes | None] = field(
        default_factory=dict
    )  # below the home; None is a folder in its place
    edits: dict[str, tuple[float, object]] = field(
        default_factory=dict
    )  # of JSON: which value, and what instead
    piped: bytes = b""
    encoding: str = "utf-8"
    terminal: bool = False


def case(number: int, seed: int, options: Options, mutations: Sequence[bytes]) -> Case:
    """`mutations`: damaged GGUFs, of which one is bad.gguf."""
    chance = random.Random(f"{seed} {number}")
    words = _earnest(chance, options) if chance.random() < 0.2 else _random(chance, options)
    command = words[0] if words else ""
    few = chance.choices((0, 1, 2), (2, 1, 1), k=2)
    environment = {name: chance.choice(VARIABLES[name]) for name in chance.sample(sorted(VARIABLES), few[0])}
    files = {name: _content(name, chance) for name in chance.sample(FILES, few[1])}
    if "bad.gguf" in words:
        files["../work/bad.gguf"] = chance.choice(mutations)
    edits = {
        name: (chance.random(), chance.choice(VALUES))
        for name in chance.sample(JSON_FILES, chance.choice((0, 0, 1)))
    }
    return Case(
        [*words, *SHORT.get(command, ())],
        environment,
        files,
        edits,
        chance.choice((b"", b"", b"some text", b"\x80\xff", b"\0", b"\n\n")),
        chance.choice(("utf-8", "ascii", "cp1252")),
        command != "chat" and chance.random() < 0.3,
    )


def _earnest(chance: random.Random, options: Options) -> list[str]:
    quick = [line for line in EARNEST if line[0] not in SLOW]
    words = list(chance.choice(quick if chance.random() < 0.7 else EARNEST))
    for _ in range(chance.choice((0, 0, 1, 2)) if words[:2] != ["pairs", "add"] else 0):
        words += _option(chance, options[words[0]], odd=0.1)
    if chance.random() < 0.15:
        words[chance.randrange(len(words))] = chance.choice(ODD)
    return words


def _random(chance: random.Random, options: Options) -> list[str]:
    weights = [0.1 if name in SLOW else 1 for name in options]
    (command,) = chance.choices(list(options), weights)
    words = [command, *chance.choices((*NAMES, *ODD), k=chance.choice((0, 1, 1, 2)))]
    for _ in range(chance.choice((0, 1, 2, 6))):
        words += _option(chance, options[command], odd=0.4)
    return words if chance.random() < 0.99 else []


def _option(chance: random.Random, options: Mapping[str, tuple[str, ...]], odd: float) -> list[str]:
    if not options or chance.random() < 0.02:
        return [chance.choice(ODD)]
    flag, kinds = chance.choice(list(options.items()))
    if not kinds:
        return [flag]
    return [flag, chance.choice(ODD if chance.random() < odd else kinds)]


def _content(name: str, chance: random.Random) -> bytes | None:
    kind = chance.random()
    if kind < 0.1:
        return None
    if kind < 0.25:
        return chance.randbytes(chance.randrange(60))
    if name.endswith("toml"):
        return chance.choice(_TOML)(chance).encode("utf-8", "surrogatepass")
    return json.dumps(chance.choice(VALUES)).encode()


def _setting(chance: random.Random) -> str:
    name = chance.choice((*SETTINGS, "tempratur"))
    return f"{name} = {json.dumps(chance.choice((*VALUES, *NUMBERS)), ensure_ascii=False)}\n"


def _pair(chance: random.Random) -> str:
    def value() -> str:
        return chance.choice((json.dumps(chance.choice((*NAMES, *ODD))), "5", "-5", "[]", "true"))

    keys = chance.sample(("use", "context", "kind", "license", "use_for"), 2)
    lines = ["[[pair]]", f"name = {chance.choice((value(), json.dumps('mine')))}"]
    lines += [f"{key} = {value()}" for key in keys if chance.random() < 0.4]
    for role in ("target", "draft"):
        lines += [f"[pair.{role}]", f"path = {value()}"]
        if chance.random() < 0.5:
            wrong = chance.choice(("repo", "file", "revision", "bytes", "sha256", "quant"))
            lines.append(f"{wrong} = {value()}")
    return "\n".join(lines) + "\n"


_TOML: tuple[Callable[[random.Random], str], ...] = (
    _setting,
    _pair,
    _pair,
    lambda _: "[[pair",
    lambda _: "a = 1\na = 2\n",
)
