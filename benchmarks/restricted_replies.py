"""How likely are replies within a schema under the model itself, by layout, beside its unrestricted replies?

    python -m benchmarks.restricted_replies TARGET [--temperature 0] [--server DIR/llama-server] [--ends]

Prints the mean log-probability of a token, without the grammar, for each of the 15 questions. With `--server`,
localspec and llama.cpp's server write each reply in turn, and printed are the log-probability of each whole reply,
its seconds and tokens, whether it ends and is valid, and the sampled lists of fruits. `--ends` leaves those out.
"""

import argparse
import json
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

import httpx
import jsonschema

import localspec
from benchmarks.server.sides import Flags, ServerSide
from localspec.api import default_threads
from localspec.events import FinishReason, Scores
from localspec.structure.layout import as_lark
from tests.structure.judged_schemas import QUESTIONS, judged

WAYS = {"unrestricted": {"restricted": False, "max_tokens": 100}, "chosen": {}, "compact": {"compact_json": True},
        "anywhere": {"compact_json": False}}  # fmt: skip
FRUITS, SEEDS, MOST = next(iter(QUESTIONS)), 20, 400


def by_layout(session: localspec.Session, temperature: float) -> None:
    means: dict[str, list[float]] = {way: [] for way in WAYS}
    cut: dict[str, int] = dict.fromkeys(WAYS, 0)
    for question in QUESTIONS:
        for way, given in WAYS.items():
            _, mean, ended = judged(session, question, temperature=temperature, **given)
            means[way].append(mean)
            cut[way] += not ended
        print(*(f"{way} {found[-1]:6.3f}" for way, found in means.items()), question, flush=True)
    for way, found in means.items():
        print(f"{way}: mean {sum(found) / len(found):.3f}, {cut[way]} cut of {len(found)}")


def ours(session: localspec.Session, question: str, **options: Any) -> tuple[str, int, bool, float]:  # noqa: ANN401
    """Return a reply's text, its tokens, whether it ended by itself, and its log-probability."""
    session.reset()
    given = {"json_schema": QUESTIONS[question], "max_tokens": MOST, "logprobs": 0, **options}
    events = list(session.stream(question, **given))
    reply = events[-1].reply
    scores = [each.chosen.logprob for event in events if isinstance(event, Scores) for each in event.tokens]
    return reply.text, len(reply.tokens), reply.finish_reason is FinishReason.STOP, sum(scores)


def servers(server: ServerSide, question: str, **options: Any) -> tuple[str, int, bool, float]:  # noqa: ANN401
    body = {
        "messages": [{"role": "user", "content": question}], "max_tokens": MOST, "logprobs": True,
        "response_format": {"type": "json_schema", "json_schema": {"schema": QUESTIONS[question]}}, **options,
    }  # fmt: skip
    answer = (
        httpx.post(f"{server.address}/v1/chat/completions", json=body, timeout=600).raise_for_status().json()
    )
    (choice,) = answer["choices"]
    score = sum(token["logprob"] for token in choice["logprobs"]["content"])
    return (
        choice["message"]["content"],
        answer["usage"]["completion_tokens"],
        choice["finish_reason"] == "stop",
        score,
    )


def is_valid(question: str, text: str) -> bool:
    try:
        jsonschema.Draft202012Validator(QUESTIONS[question]).validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def beside(session: localspec.Session, server: ServerSide, *, fruits: bool) -> None:
    sides = {
        "localspec": lambda *a, **k: ours(session, *a, **k),
        "llama-server": lambda *a, **k: servers(server, *a, **k),
    }
    busy = {"localspec": process_time, "llama-server": server.busy_seconds}
    sums = {name: [0.0, 0.0, 0, 0, 0] for name in sides}  # seconds, processor seconds, tokens, ended, valid
    likely = 0
    for number, question in enumerate(QUESTIONS):
        texts = {}
        for name in [*sides] if number % 2 else [*sides][::-1]:
            began, work = perf_counter(), busy[name]()
            text, tokens, ended, score = sides[name](question, temperature=0)
            texts[name] = text
            seconds, work, valid = perf_counter() - began, busy[name]() - work, is_valid(question, text)
            added = zip(sums[name], (seconds, work, tokens, ended, valid), strict=True)
            sums[name] = [a + b for a, b in added]
            print(f"{number} {name:12} {score:8.2f} {seconds:5.2f} s {tokens:3} tokens",
                  f"{'ended' if ended else 'cut'} {'valid' if valid else 'invalid'} {text!r}", flush=True)  # fmt: skip
        # Both sides take a fence off: the replies are judged as they arrive.
        alone = {
            name: ours(
                session, question, json_schema=None, grammar=f"start: {as_lark(text)}", max_tokens=None
            )[3]
            for name, text in texts.items()
        }
        print(
            f"{number} as they arrive", *(f"{name} {score:.2f}" for name, score in alone.items()), flush=True
        )
        likely += alone["localspec"] >= alone["llama-server"] - 0.5
    for name, (seconds, work, tokens, ended, valid) in sums.items():
        print(f"{name}: {seconds:.1f} s ({work:.1f} s of processors), {tokens} tokens,",
              f"{ended} ended, {valid} valid of {len(QUESTIONS)}", flush=True)  # fmt: skip
    print(f"at least as likely as llama-server's minus 0.5: {likely} of {len(QUESTIONS)}")
    for name, ask in sides.items() if fruits else ():
        lists = [ask(FRUITS, seed=seed)[0] for seed in range(1, SEEDS + 1)]
        right = [
            is_valid(FRUITS, text) and all(len(each) > 2 and each[0].isalpha() for each in json.loads(text))
            for text in lists
        ]
        print(
            f"{name}: three fruits with {sum(right[:5])} of 5 seeds, {sum(right)} of {SEEDS}",
            lists,
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path)
    parser.add_argument("--draft", default="lookup")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--server", type=Path, help="see benchmarks/server/build.py")
    parser.add_argument("--ends", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    load = {
        "target": options.target,
        "draft": options.draft,
        "context_length": 2048,
        "threads": options.threads,
    }
    with ExitStack() as opened:
        session = opened.enter_context(localspec.load(**load))
        if options.server is None:
            by_layout(session, options.temperature)
            return
        log = Path(opened.enter_context(TemporaryDirectory())) / "log"
        server = ServerSide(
            options.server, options.target, options.target, Flags(0), threads=options.threads or default_threads(),
            context=2048, log=log, clock="wall", more=["--jinja"],
        )  # fmt: skip
        opened.enter_context(server)
        for ask in (
            lambda: ours(session, FRUITS, max_tokens=8),
            lambda: servers(server, FRUITS, max_tokens=8),
        ):
            ask()  # the first request reads the weights
        beside(session, server, fruits=not options.ends)


if __name__ == "__main__":
    main()
