"""Required calls by a target with random weights in ten forms, and a thousand changes of the text of every form.

    python -m benchmarks.call_forms [--count 500] [--changes 1000] [--limit 160]

The vocabulary is the demo's. A complete reply holds valid calls only. A changed text that is accepted reads as such.
"""

import argparse
import random
from collections import Counter
from time import perf_counter

import jsonschema

import localspec
from localspec.chat.session import Session
from localspec.events import FinishReason
from localspec.structure.call_form import CallForm
from localspec.structure.call_grammar import calls_grammar
from localspec.structure.constraint import GrammarTokens
from localspec.structure.read_calls import calls_in
from tests.chat.carried import TEMPLATES
from tests.structure.test_forms import CALLS, DISTINCT, FUNCTIONS, TOOLS, ToyBytes, change
from tests.toy_engine import engine_of, toys

TEN = (
    "Qwen-Qwen3-0.6B", "meta-llama-Llama-3.2-3B-Instruct", "mistralai-Mistral-Nemo-Instruct-2407", "Qwen3.5-4B",
    "unsloth-mistral-Devstral-Small-2507", "GLM-4.6", "deepseek-ai-DeepSeek-V3.2", "openai-gpt-oss-120b",
    "google-gemma-4-31B-it", "LFM2.5-8B-A1B",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("--count", 500), ("--changes", 1000), ("--limit", 160)):
        parser.add_argument(name, type=int, default=default)
    arguments = parser.parse_args()
    with localspec.load(threads=1) as loaded:
        for name in TEN if arguments.count else ():
            began, vocabulary = perf_counter(), loaded.pair.vocabulary
            models = toys(vocabulary, 1, capacity=4000, agreement=0.5)
            session = Session(engine_of(vocabulary, TEMPLATES[name], *models))
            found = Counter(required(session, seed, arguments.limit) for seed in range(arguments.count))
            print(f"{name}: {dict(found)}, {perf_counter() - began:.0f} s", flush=True)
    for form, name in DISTINCT.items() if arguments.changes else ():
        print(f"{name}: {dict(changed(form, arguments.changes))}", flush=True)


def required(session: Session, seed: int, limit: int) -> str:
    session.reset()
    reply = session.run("Go.", seed=seed, max_tokens=limit, tools=TOOLS, tool_choice="required", think=False)
    for call in reply.tool_calls:
        jsonschema.validate(call.arguments, FUNCTIONS[call.name])
    if reply.finish_reason is FinishReason.LENGTH:
        return "cut"
    return "complete" if reply.tool_calls and not reply.text else f"WRONG {reply.text!r}"


def changed(form: CallForm, count: int) -> Counter[str]:
    grammar = calls_grammar(form, FUNCTIONS, choice="required", names={})
    matcher, rnd = GrammarTokens(ToyBytes()).matcher(grammar), random.Random(1)
    texts = [form.written(given[:1] if form.between is None else given) for given in CALLS.values()]
    found: Counter[str] = Counter()
    for _ in range(count):
        while (text := change(rnd.choice(texts), rnd)) in texts:
            pass
        matcher.reset()
        raw = list(text.encode())
        if matcher.try_consume_tokens(raw) < len(raw) or not matcher.is_accepting():
            found["refused"] += 1
            continue
        calls, rest = calls_in(text, form, FUNCTIONS)
        for call in calls:
            jsonschema.validate(call.arguments, FUNCTIONS[call.name])
        found["accepted and valid" if calls and not rest.strip() else f"WRONG {text!r}"] += 1
    return found


if __name__ == "__main__":
    main()
