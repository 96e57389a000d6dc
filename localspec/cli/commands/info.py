"""Report whether draft and target match, and plan their memory on this machine. The command reads only headers of
files: a few megabytes over the network. Without a network the plan of a known pair is an estimate.
"""

import argparse
import math
import os
import sys
from dataclasses import asdict, replace
from typing import Any

from localspec.cli.commands.completion import complete_with_pairs
from localspec.cli.fetching import tell_models
from localspec.cli.options import PAIR_HELP, add_option, given_of
from localspec.display import DrawnLine, print_notice, printable, say, say_json, size_text
from localspec.errors import LocalspecError
from localspec.gguf import matching
from localspec.gguf.facts import DraftKind, trained_context
from localspec.loading import pair_info
from localspec.loading.attention import NEW_TOKENS, REPLY_TOKENS, has_choice, measures_attention
from localspec.loading.memory import LoadChoices
from localspec.loading.plan import Plan
from localspec.machine.devices import last_devices
from localspec.machine.servers import use_servers
from localspec.models.hub import Unreachable
from localspec.models.local_models import ModelFile
from localspec.models.names import LOOKUP, SeveralModels, is_file_reference, model_file
from localspec.models.own_draft import suggested_draft, with_own_draft
from localspec.models.projector import projector_of
from localspec.models.registry import Pair, is_known, named
from localspec.options import LOAD, configured


def add_arguments(parser: argparse.ArgumentParser) -> None:
    complete_with_pairs(parser.add_argument("pair", metavar="NAME|FILE", help=PAIR_HELP))
    about = "the draft to check: a GGUF file, ORG/REPO:QUANT, or lookup in the text"
    parser.add_argument("--draft", metavar="FILE", help=about)
    for name in LOAD:
        if name not in ("threads", "mmap", "parallel"):  # the memory plan does not use these
            add_option(parser, name)
    about = "plan the memory without a draft, like --draft lookup"
    parser.add_argument("--no-draft", dest="draft", action="store_const", const=LOOKUP, help=about)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    settings = configured(**given_of(arguments, LOAD))
    if rpc := settings.get("rpc"):
        use_servers(rpc)
    with DrawnLine(sys.stderr) as line:
        line.draw(f"reading the headers of {arguments.pair}")
        pair = replace(_named(arguments), lora=matching.adapters_of(settings.get("lora", "")))
        if pair.on_disk:
            pair = replace(pair, projector=projector_of(pair, settings.get("mmproj")))
        choices = LoadChoices.of(settings)
        try:
            _ = [file.header for file in pair.files]  # raises an error if a file is unreadable
        except Unreachable as error:
            if not pair.name or arguments.json:
                raise
            plan = pair_info.estimated_plan(pair, last_devices(), choices)
            line.clear()
            print_notice(f"{error}. The plan is an estimate, and the files are not checked.")
            files = [f"{file.name:<48} {size_text(file.all_bytes):>8}" for file in pair.files]
            say("\n".join([*_head(pair), *files, *_plan_lines(plan, "estimated")]))
            return 0
        found: Plan | LocalspecError
        try:
            found = pair_info.planned(pair, choices)
        except LocalspecError as error:
            found = error
    if arguments.json:
        say_json(_as_json(pair, found), indent=2)
    else:
        say("\n".join(_as_text(pair, found)))
    if isinstance(found, LocalspecError):
        raise found
    return 0


def _named(arguments: argparse.Namespace) -> Pair:
    """Return the known pair that the arguments name, or a pair made of the files that they name."""
    is_file = is_file_reference(arguments.pair) or os.path.isfile(arguments.pair)
    try:
        if is_known(arguments.pair) or not is_file:
            pair = named(arguments.pair)
            pair = pair if pair.listed else replace(pair, name="")  # an opened file is no named pair
        else:
            pair = Pair("", DraftKind.MODEL, model_file(arguments.pair))
        if arguments.draft is None:
            return with_own_draft(pair)
        if arguments.draft == LOOKUP:
            return pair.alone
        return Pair("", DraftKind.MODEL, pair.target, model_file(arguments.draft))
    except SeveralModels as several:
        tell_models(several)
        raise


def _as_text(pair: Pair, found: Plan | LocalspecError) -> list[str]:
    """Return the report; `found`: the plan, or why the pair cannot run here."""
    plan, lines = found if isinstance(found, Plan) else None, _head(pair) if pair.name else []
    for role, file in zip(("target", "draft"), pair.files, strict=False):
        lines += [f"{role:<12} {file.name}", *_side_lines(file), ""]
    is_alone = (pair.found or not pair.name) and pair.draft is None and plan
    if is_alone and (draft := suggested_draft(pair)):
        how = f"`localspec pull {pair.name}`" if pair.found else "add --draft"
        size = size_text(draft.all_bytes)
        lines += [f"draft        {draft.repo}:{draft.file} ({size}) can draft for it: {how}"]
    if pair.has_own_draft and pair.draft:
        lines += [f"own draft    {pair.draft.name} was found for the target; --draft lookup leaves it out"]
    if stored := pair.found:
        lines += [
            f"taken        from {stored.store}: {name} {value!r}" for name, value in stored.options.items()
        ]
        length = f"not taken    num_ctx {stored.context}: `--context {stored.context}` takes it"
        lines += [length] * bool(stored.context)
    if plan and plan.draft:
        lines += [f"fit          {_fit(pair, plan.shared)}"]
    is_mixture = pair.target.header.of_model("expert_count")  # a mixture reads few bytes a token
    if plan and not plan.target.devices and pair.target.all_bytes > pair_info.SLOW_BYTES and not is_mixture:
        why = "this target is slow on a CPU; `localspec pairs` marks a pair for this machine"
        lines += [f"caution      {why}"]
    lines += [f"attention    {chosen}"] if plan and (chosen := _attention(pair, plan)) else []
    if pair.projector:
        lines += [
            f"images       read with {pair.projector.name} ({size_text(pair.projector.stat().st_size)})"
        ]
    elif pair.images:
        lines += [f"images       `localspec pull {pair.name} --images` downloads what it needs to read them"]
    how = "as llama.cpp plans it" if pair.on_disk else "estimated"
    return [*lines, *(_plan_lines(plan, how) if plan else [])]


def _head(pair: Pair) -> list[str]:
    drafters = {DraftKind.MODEL: "a small model", DraftKind.LOOKUP: "lookup in the text"}
    kind = pair.drafter if pair.found else pair.kind
    drafting = f"drafting     by {drafters.get(kind, 'a head of the target')}"
    lines = [f"{pair.name}  {pair.use}", drafting]
    return [*lines, *(f"measured     {text}" for text in pair.published), ""]


def _plan_lines(plan: Plan, how: str) -> list[str]:
    together = f"draft at {plan.draft.length:,}" if plan.draft else "no draft"
    lines = [f"plan         context {plan.target.length:,} tokens, {together}; memory {how}:"]
    for need in plan.needs:
        parts = (("weights", need.weights), ("caches", need.cache), ("buffers", need.compute))
        shares = ", ".join(f"{name} {size_text(size)}" for name, size in parts)
        lines += [f"  {need.device:<10} {size_text(need.total)} of {size_text(need.free)} free: {shares}"]
    return [*lines, *(f"  {line}" for line in plan.lines)]


def _fit(pair: Pair, shared: matching.SharedTokens | None) -> str:
    if pair.draft is None:
        return "the prediction head inside the target drafts for it"
    if pair.drafter.is_head:
        return "the head belongs to the target: same width, layers and vocabulary"
    if shared:
        return f"the draft can draft for the target {matching.in_words(shared)}"
    return "the draft can draft for the target: same vocabulary, by llama.cpp's rule"


def _attention(pair: Pair, plan: Plan) -> str:
    if (known := plan.attention) is None:
        measured = has_choice(pair.target.header) and measures_attention(plan.target, pair.drafter)
        return "flash attention; `localspec bench --attention` measures whether plain is faster" * measured
    chosen = "plain" if plan.target.flash_attn == "off" else "flash"
    turn = f"a turn of {NEW_TOKENS} new tokens and a reply of {REPLY_TOKENS} takes"
    long, short = (
        f"{flash:.1f} s with flash and {plain:.1f} s without"
        for flash, plain in ((known.flash, known.plain), (known.short_flash, known.short_plain))
    )
    return f"{chosen} attention: {turn} {long} behind a long text, {short} behind a short one"


def _side_lines(file: ModelFile) -> list[str]:
    facts, words = _side_json(file), matching.vocabulary_of(file.header)
    count, context = facts["parameters"], facts["context"]
    parameters = f"{count / 1e9:.2f} billion" if count >= 1e8 else f"{count / 1e6:.1f} million"
    rows = {
        "size": f"{size_text(facts['bytes'])}, {parameters} parameters",
        "here": facts["path"] or "no",
        "model": f"{facts['name'] or '-'}, {facts['architecture']}, {facts['layers'] or '-'} layers",
        "context": f"{context:,} tokens" if context else "not recorded",
        "vocabulary": f"{words.kind}, {words.count:,} tokens" if words else "none",
        "template": "yes" if facts["chat_template"] else "none: not made for chat",
        "license": file.license or "not recorded",
    }
    return [f"  {name:<10} {value}" for name, value in rows.items()]


def _as_json(pair: Pair, found: Plan | LocalspecError) -> dict[str, object]:
    plan = found if isinstance(found, Plan) else None
    shared = plan.shared if plan else None
    return {
        "pair": pair.name or None,
        "kind": pair.kind if pair.name else None,
        "target": _side_json(pair.target),
        "draft": _side_json(pair.draft) if pair.draft else None,
        "projector": str(pair.projector) if pair.projector else None,
        "shared_tokens": shared.count if shared else None,
        "coverage": round(shared.coverage, 4) if shared else None,
        "problem": None if plan else str(found),
        "plan": {k: v for k, v in asdict(plan).items() if k != "shared"} if plan else None,
    }


def _side_json(file: ModelFile) -> dict[str, Any]:
    header, words = file.header, matching.vocabulary_of(file.header)
    return {
        "file": file.name,
        "path": str(file.path) if file.path else None,
        "bytes": header.file_bytes,
        "name": printable(header.text("general.name")),
        "architecture": printable(header.architecture),
        "layers": header.of_model("block_count") or None,
        "parameters": sum(math.prod(tensor.shape) for tensor in header.tensors),
        "context": trained_context(header),
        "vocabulary": words.count if words else None,
        "chat_template": bool(header.text("tokenizer.chat_template")),
    }
