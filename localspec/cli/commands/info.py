"""Report whether draft and target fit each other, and plan the memory of this machine. It reads the headers of the
files, over the network a few megabytes; without a network the plan of a known pair is an estimate.
"""

import argparse
import math
import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial

from localspec.cli.commands.completion import complete_with_pairs
from localspec.cli.fetching import tell_models
from localspec.cli.options import add_option, given_of
from localspec.display import DrawnLine, note, printable, say, say_json, size_text
from localspec.gguf import matching
from localspec.gguf.facts import DraftKind, trained_context, vocabulary_of
from localspec.gguf.header import Header
from localspec.gguf.tensor_types import BLOCKS
from localspec.health.devices import last_devices
from localspec.health.servers import use_servers
from localspec.models import inspection
from localspec.models.hub import Unreachable
from localspec.models.memory import MemoryWishes, wishes_of
from localspec.models.names import LOOKUP, SeveralModels, is_file_reference, model_file
from localspec.models.placement import DEFAULT_CONTEXT
from localspec.models.places import ModelFile
from localspec.models.plan import Plan
from localspec.models.probe import plan_for
from localspec.models.registry import Pair, is_known, named
from localspec.options import LOAD, configured


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "a pair by name, a GGUF file, or ORG/REPO:QUANT; `localspec pairs` lists the names"
    complete_with_pairs(parser.add_argument("pair", metavar="NAME|FILE", help=what))
    about = "the draft to check with it, named the same way; lookup drafts from the text alone"
    parser.add_argument("--draft", metavar="FILE", help=about)
    for name in LOAD:
        if name not in ("threads", "mmap", "parallel"):  # the memory plan does not read these
            add_option(parser, name)
    about = "plan without a draft, as --draft lookup does"
    parser.add_argument("--no-draft", dest="draft", action="store_const", const=LOOKUP, help=about)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    settings = configured(**given_of(arguments, LOAD))
    if rpc := settings.get("rpc"):
        use_servers(rpc)
    with DrawnLine(sys.stderr) as line:
        line.draw(f"reading the headers of {arguments.pair}")
        pair = replace(_named(arguments), lora=matching.adapters_of(settings.get("lora", "")))
        wishes = wishes_of(settings)
        try:
            _ = [file.header for file in pair.files]  # one that cannot be read leaves nothing to show
            found = inspection.inspect(pair, wishes)
        except Unreachable as error:
            if not pair.name or arguments.json:
                raise

            def estimated(wishes: MemoryWishes) -> Plan:
                return inspection.estimated_plan(pair, last_devices(), wishes)

            plan_lines = _plan_lines(estimated, wishes, "estimated")
            line.clear()
            note(f"{error}. So this is an estimate, and the files are not checked.")
            files = [f"{file.name:<48} {size_text(file.all_bytes):>8}" for file in pair.files]
            say("\n".join([*_head(pair), *files, *plan_lines]))
            return 0
    if arguments.json:
        say_json(_as_json(pair, found), indent=2)
    else:
        say("\n".join(_as_text(pair, found, wishes)))
    if found.problem is not None:
        raise found.problem
    return 0


def _named(arguments: argparse.Namespace) -> Pair:
    """The named pair, or an unnamed pair of files."""
    is_file = is_file_reference(arguments.pair) or os.path.isfile(arguments.pair)
    try:
        if is_known(arguments.pair) or not is_file:
            pair = named(arguments.pair)
        else:
            pair = Pair("", DraftKind.MODEL, model_file(arguments.pair))
        if arguments.draft is None:
            return pair
        if arguments.draft == LOOKUP:
            return pair.alone
        return Pair("", DraftKind.MODEL, pair.target, model_file(arguments.draft))
    except SeveralModels as several:
        tell_models(several)
        raise


def _as_text(pair: Pair, found: inspection.Inspection, wishes: MemoryWishes) -> list[str]:
    lines = _head(pair) if pair.name else []
    for role, file in zip(("target", "draft"), pair.files, strict=False):
        lines += [f"{role:<12} {file.name}", *_side_lines(file), ""]
    is_alone = not pair.name and pair.draft is None and found.problem is None
    if is_alone and (draft := inspection.suggested_draft(pair.target.name, pair.target.header)):
        lines += [f"draft        {draft.repo}:{draft.file} can draft for it: add --draft"]
    if found.plan and found.plan.draft:
        lines += [f"fit          {_fit(pair, found.plan, found.shared)}"]
    if too_large := inspection.too_large(pair):
        lines += [f"caution      {too_large}"]
    if found.plan and not found.plan.target.devices and inspection.slow_on_cpu(pair.target):
        lines += [
            "caution      this target is slow on a CPU; `localspec pairs` marks a pair for this machine"
        ]
    if found.plan:
        lines += _plan_lines(partial(plan_for, pair), wishes, "as llama.cpp plans it")
    return lines


def _head(pair: Pair) -> list[str]:
    """The pair as the registry describes it."""
    drafters = {DraftKind.MODEL: "a small model", DraftKind.LOOKUP: "lookup in the text"}
    depth = f"{pair.starting_depth} guesses a pass at first, then as many as save time"
    drafting = f"drafting     by {drafters.get(pair.kind, 'a head of the target')}: {depth}"
    lines = [f"{pair.name}  {pair.use}", drafting]
    return [*lines, *(f"measured     {text}" for text in pair.published), ""]


def _plan_lines(planned: Callable[[MemoryWishes], Plan], wishes: MemoryWishes, how: str) -> list[str]:
    """The plan, and the memory with the context that `localspec pairs` counts where the plan has a longer one."""
    plan = planned(wishes)
    together = f"draft at {plan.draft.length:,}" if plan.draft else "no draft"
    lines = [f"plan         context {plan.target.length:,} tokens, {together}; memory {how}:"]
    for need in plan.needs:
        parts = (("weights", need.weights), ("caches", need.cache), ("buffers", need.compute))
        shares = ", ".join(f"{name} {size_text(size)}" for name, size in parts)
        lines += [f"  {need.device:<10} {size_text(need.total)} of {size_text(need.free)} free: {shares}"]
    if plan.target.length > DEFAULT_CONTEXT and not wishes.context:
        usual = planned(replace(wishes, context=DEFAULT_CONTEXT))
        total = size_text(sum(need.total for need in usual.needs))
        lines += [f"  A context of {DEFAULT_CONTEXT:,} tokens, as in `localspec pairs`, needs {total}."]
    return [*lines, *(f"  {line}" for line in plan.lines)]


def _fit(pair: Pair, plan: Plan, shared: matching.SharedTokens | None) -> str:
    if pair.draft is None:
        return "the prediction head inside the target drafts for it"
    if plan.draft and plan.draft.kind.is_head:
        return "the head belongs to the target: same width, layers and vocabulary"
    if shared:
        return f"the draft can draft for the target {matching.in_words(shared)}"
    return "the draft can draft for the target: same vocabulary, by llama.cpp's rule"


def _side_lines(file: ModelFile) -> list[str]:
    header, words, count = file.header, vocabulary_of(file.header), _parameters(file.header)
    parameters = f"{count / 1e9:.2f} billion" if count >= 1e8 else f"{count / 1e6:.1f} million"
    context, layers = trained_context(header), header.of_model("block_count") or "-"
    rows = [
        ("size", f"{size_text(header.file_bytes)}, {parameters} parameters"),
        ("weights", _weights(header)),
        ("here", str(file.path or "no")),
        (
            "model",
            f"{_named_in(header)['name'] or '-'}, {_named_in(header)['architecture']}, {layers} layers",
        ),
        ("context", f"{context:,} tokens" if context else "not said"),
        ("vocabulary", f"{words.kind}, {words.count:,} tokens" if words else "none"),
        ("template", "yes" if header.text("tokenizer.chat_template") else "none: no chat with it"),
        ("license", file.license or "not recorded"),
    ]
    return [f"  {name:<10} {value}" for name, value in rows]


def _as_json(pair: Pair, found: inspection.Inspection) -> dict[str, object]:
    plan = {k: v for k, v in asdict(found.plan).items() if k != "shared"} if found.plan else None
    return {
        "pair": pair.name or None,
        "kind": pair.kind if pair.name else None,
        "target": _side_json(pair.target),
        "draft": _side_json(pair.draft) if pair.draft else None,
        "shared_tokens": found.shared.count if found.shared else None,
        "coverage": round(found.shared.coverage, 4) if found.shared else None,
        "problem": str(found.problem) if found.problem else None,
        "plan": plan,
    }


def _side_json(file: ModelFile) -> dict[str, object]:
    header, words = file.header, vocabulary_of(file.header)
    return {
        "file": file.name,
        "path": str(file.path) if file.path else None,
        "bytes": header.file_bytes,
        **_named_in(header),
        "layers": header.of_model("block_count") or None,
        "parameters": _parameters(header),
        "context": trained_context(header),
        "vocabulary": words.count if words else None,
        "chat_template": bool(header.text("tokenizer.chat_template")),
    }


def _named_in(header: Header) -> dict[str, str]:
    """What the file says that it is."""
    return {"name": printable(header.text("general.name")), "architecture": printable(header.architecture)}


def _parameters(header: Header) -> int:
    return sum(math.prod(tensor.shape) for tensor in header.tensors)


def _weights(header: Header) -> str:
    """The tensor types that make up most of the file, by bytes."""
    sizes: Counter[str] = Counter()
    for tensor in header.tensors:
        sizes[BLOCKS[tensor.type][0]] += tensor.bytes
    total = sizes.total() or 1
    return ", ".join(f"{name} {size / total:.0%}" for name, size in sizes.most_common(3))
