"""A model on the CPU with flash attention, without, and what the choice gives, at several lengths of a prompt.

    python -m benchmarks.attention MODEL.gguf [--lengths 100 3000] [--tokens 200] [--new 200] [--rounds 3]

Both sessions take turns. A round is a turn of a conversation: all but the last `--new` tokens of the prompt are in the
KV cache. Printed are medians: seconds for the new tokens, tokens per second after the first token, both as ratios
without / with flash attention, and the rates of the whole turn. With --clock cpu and one thread they are processor
time, which stays comparable on a busy machine. Without --auto nothing is drafted.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import localspec
from localspec.events import Cycle
from localspec.gguf.header import header_at
from localspec.loading.attention import attention_of
from localspec.measure.bench import BUILT_IN_PROMPTS
from localspec.measure.summary import this_machine


@dataclass(frozen=True, slots=True)
class Turn:
    new_seconds: float  # until the first token
    rate: float  # tokens per second after the first token
    whole_rate: float


def turn(
    session: localspec.Session,
    prompt: Sequence[int],
    options: argparse.Namespace,
    clock: Callable[[], float],
    no_end: dict[int, float],
) -> Turn:
    def reply(tokens: Sequence[int], count: int) -> list[float]:
        depth = "auto" if options.auto else 0
        events = session.stream_complete(
            list(tokens), temperature=0, max_tokens=count, depth=depth, logit_bias=no_end
        )
        return [clock() for event in events if isinstance(event, Cycle)]

    reply(prompt[: max(len(prompt) - options.new, 1)], 1)
    began = clock()
    first, *_, last = reply(prompt, options.tokens)
    return Turn(first - began, (options.tokens - 1) / (last - first), options.tokens / (last - began))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--lengths", type=int, nargs="+", default=[100, 500, 1500, 3000, 6000])
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--new", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--auto", action="store_true", help="draft at the automatic depth")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    options = parser.parse_args()
    clock = perf_counter if options.clock == "wall" else process_time

    known = attention_of(options.model, header_at(options.model), options.threads, print)
    chosen = known.flash_attn if known else "auto"
    print(f"stored: {known}; flash attention is {'off' if chosen == 'off' else 'on'}")
    print(this_machine(options.threads))
    load = {"target": options.model, "context_length": 8192, "threads": options.threads}
    with (
        localspec.load(flash_attn="on", **load) as flash,
        localspec.load(flash_attn="off", **load) as plain,
    ):
        vocabulary = flash.pair.vocabulary
        no_end = {t: float("-inf") for t in range(vocabulary.size) if vocabulary.is_end(t)}
        text = "\n\n".join(prompt.text for prompt in BUILT_IN_PROMPTS)
        tokens = vocabulary.tokenize(text, parse_special=False)
        print(
            "tokens  new tokens, s   ratio  decode, tokens/s  ratio  turn, tokens/s  ratio  chosen / better"
        )
        for length in options.lengths:
            prompt = list(islice(cycle(tokens), length))
            rounds = [
                [turn(session, prompt, options, clock, no_end) for session in (flash, plain)]
                for _ in range(options.rounds)
            ]
            cells = [f"{length:6}"]
            for name, width in (("new_seconds", 13), ("rate", 16), ("whole_rate", 14)):
                both = [tuple(getattr(each, name) for each in pair) for pair in rounds]
                figures = " / ".join(f"{median(column):.2f}" for column in zip(*both, strict=True))
                ratio = median(without / with_it for with_it, without in both)
                cells.append(f"{figures:>{width}}  {ratio:5.2f}")
            better = 1 / max(ratio, 1 / ratio) if (ratio > 1) != (chosen == "off") else 1.0
            print("  ".join(cells), f" {better:14.2f}", flush=True)


if __name__ == "__main__":
    main()
