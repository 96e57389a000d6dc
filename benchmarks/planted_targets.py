"""Targets with planted weights: they write a call in their template's form, and answer once its result is there."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from localspec.events import Kind, ToolCall
from localspec.prompt.messages import Message
from localspec.prompt.template import ChatTemplate
from localspec.prompt.tools import read_tools, spelled_out
from localspec.structure.tool_call_format import GENERIC
from tests.gguf.models import closed
from tests.gguf.vocabularies import add_facts

# A template, and the tokens that end a call and an answer.
FORMS = {
    "qwen3": ("Qwen-Qwen3-0.6B", "<|im_end|>", "<|im_end|>"),
    "qwen3-coder": ("Qwen3-Coder", "<|im_end|>", "<|im_end|>"),
    "qwen3.5": ("Qwen3.5-4B", "<|im_end|>", "<|im_end|>"),
    "llama-3": ("meta-llama-Llama-3.2-3B-Instruct", "<|eot_id|>", "<|eot_id|>"),
    "devstral": ("unsloth-mistral-Devstral-Small-2507", "</s>", "</s>"),
    "mistral-small-3.2": ("Mistral-Small-3.2-24B-Instruct-2506", "</s>", "</s>"),
    "gpt-oss": ("openai-gpt-oss-120b", "<|call|>", "<|return|>"),
    "glm-4.6": ("GLM-4.6", "<|observation|>", "<|user|>"),
    "deepseek-v3.2": ("deepseek-ai-DeepSeek-V3.2", "<｜end▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    "kimi-k2": ("Kimi-K2-Instruct", "<|im_end|>", "<|im_end|>"),
    "minimax-m2": ("MiniMax-M2", "[e~[", "[e~["),
    "lfm2.5": ("LFM2.5-8B-A1B", "<|im_end|>", "<|im_end|>"),
    "gemma-4": ("google-gemma-4-31B-it", "<|tool_response>", "<turn|>"),
}
WORD = "zqx"  # in a tool's result: the target answers instead of calling
# What models have as control tokens, and as tokens that any text may have.
_CONTROL = re.compile(
    r'<\|[^<>|\s{}]+\|>|<\|[a-z_"]+\|?>|<[a-z_]+\|>|<｜[^<>｜\s{}%]+｜>|\[/?[A-Z_]{3,}\]|\]~[!b]+~?\[|\]~b\]|\[e~\['
)
_ANYWHERE = re.compile(r"</?(?:think|tool_call|tool_response|arg_key|arg_value|minimax:tool_call)>|｜DSML｜")
_KINDS = gguf.TokenType
_BACK = 24  # tokens that a model looks back at most
_CODE = 32  # width of a token's code, and of an attention head
_CONST, _IS_WORD, _FLAG = range(3)  # dimensions before the codes
_ROPE_BASE = 1e12
_COMMON = """a able about above access action add additional after agent all allow allowed also always an and any api
    are argument arguments array as ask at available avoid be because been before below between both but by call can
    change changes code command commands complete configuration contain content context create current data default
    describe description details directory do does done each edit else empty end ensure error even every example
    execute existing explicitly file files find first following for format from function get git give given has have
    help how if important in include information input inside instead instructions into is it its json just keep
    language last later like line lines list local long make match may message messages mode model more most multiple
    must name need never new next no not note number object of on once one only open optional option options or order
    other out output parameter parameters path pattern perform permission plan please possible prefer process project
    prompt properties property provide read request required response result results return run same sandbox search
    see session set shell should show single skip so some specific start state step string such sure system task
    tasks test text than that the their them then there these they this those to tool tools type unless until
    update use used user using valid value values want was we well were what when where whether which while will
    with without work working would write you your"""


Chain = tuple[list[int], list[int]]  # what prompts end with, and what the target writes then


@dataclass(frozen=True, slots=True)
class Script:
    """What a planted target writes."""

    template: str
    tails: tuple[str, str]  # what prompts end with, and those after a result
    call: str
    answer: str
    controls: tuple[str, ...]
    words: tuple[str, ...] = ()  # tokens that are found in any text
    ends: tuple[str, str] = ("</s>", "</s>")  # after the call, after the answer

    def saying(self, text: str) -> "Script":
        return replace(self, call=text, ends=(self.ends[1], self.ends[1]))


def script_of(
    source: str,
    ends: tuple[str, str],
    call: tuple[str, Mapping[str, Any]],
    answer: str,
    think: bool | None = None,
) -> Script:
    """A call in the form of a template, a name and its arguments, and the answer to its result."""
    template = ChatTemplate(source, bos_text="<s>", eos_text=ends[1])
    form = template.tool_call_format if template.tool_variables(read_tools([{"name": call[0]}])) else GENERIC
    style = template.thinking_style(template.render(_asked("Hi"), think=think))
    written, thoughts = form.written([call]), ("", "")
    if form.other:  # gpt-oss
        written = form.other[0] + call[0] + form.other[1] + json.dumps(call[1])
        answer = f"<|channel|>final<|message|>{answer}"
    if style and style.opened:
        closing = next(marker for marker, kind in style.markers.items() if kind is Kind.ANSWER)
        thoughts = f"I use a tool.\n{closing}\n\n", f"Now I know.\n{closing}\n\n"
    known = "".join((source, *form.marks))
    controls = dict.fromkeys(["<s>", *_CONTROL.findall(known)])
    words = dict.fromkeys(_ANYWHERE.findall(known))

    def tail(one: Sequence[Message], other: Sequence[Message]) -> str:
        """What both prompts end with, from a token of the template on."""
        given = (one, other) if form.native else (spelled_out(one, ()), spelled_out(other, ()))
        first, second = (template.render(messages, think=think) for messages in given)
        same = next(n for n in range(len(first)) if first[-n - 1] != second[-n - 1])
        end = first[len(first) - same :]
        found = re.search("|".join(map(re.escape, [*controls, *words, *ends])), end)
        return end[found.start() :] if found else end

    called = Message("assistant", "", tool_calls=(ToolCall(*call, "abcdefghi"),))
    results = ([*_asked("Hi"), called, Message("tool", text, tool_call_id="abcdefghi")] for text in "ab")
    return Script(
        source,
        (tail(_asked("a"), _asked("b")), tail(*results)),
        thoughts[0] + written,
        thoughts[1] + answer,
        tuple(text for text in controls if text not in ends),
        tuple(words),
        ends,
    )


def _asked(text: str) -> list[Message]:
    return [Message("user", text)]


def write_planted(path: Path, script: Script) -> Path:
    """Write a one-layer llama whose next token follows from the last few and from whether it read `WORD`."""
    kinds = {"<unk>": _KINDS.UNKNOWN}
    kinds |= dict.fromkeys((*script.controls, *script.ends), _KINDS.CONTROL)
    kinds |= dict.fromkeys(script.words, _KINDS.USER_DEFINED)
    special = [text for text in kinds if text != "<unk>"]
    kinds |= {f"<0x{byte:02X}>": _KINDS.BYTE for byte in range(256)}
    kinds |= dict.fromkeys((WORD[:2], WORD, "▁"), _KINDS.NORMAL)
    kinds |= {f"▁{word[:n]}": _KINDS.NORMAL for word in _COMMON.split() for n in range(1, len(word) + 1)}
    ids = {text: n for n, text in enumerate(kinds)}
    parts = zip(script.tails, (script.call, script.answer), script.ends, strict=True)
    chains = [
        (_tokens(tail, special, ids), [*_tokens(text, special, ids), ids[end]]) for tail, text, end in parts
    ]
    weights = _weights(ids, chains, ids[script.ends[1]])
    heads = len(weights["blk.0.attn_q.weight"]) // _CODE
    writer = gguf.GGUFWriter(path, "llama")
    width, hidden = weights["token_embd.weight"].shape[1], len(weights["blk.0.ffn_gate.weight"])
    add_facts(writer, name=path.stem, context_length=2**17, block_count=1, vocab_size=len(ids))
    add_facts(writer, embedding_length=width, feed_forward_length=hidden, layer_norm_rms_eps=1e-9)
    add_facts(writer, head_count=heads, head_count_kv=heads, key_length=_CODE, value_length=_CODE)
    add_facts(writer, rope_dimension_count=_CODE, rope_freq_base=_ROPE_BASE, chat_template=script.template)
    add_facts(writer, tokenizer_model="llama", token_list=list(ids), token_types=list(kinds.values()))
    writer.add_token_scores([-float(n) for n in range(len(ids))])
    add_facts(writer, bos_token_id=1, eos_token_id=ids[script.ends[1]], unk_token_id=0)
    if script.ends[0] != script.ends[1]:
        writer.add_eot_token_id(ids[script.ends[0]])
    add_facts(writer, add_bos_token=False, add_space_prefix=False)
    for name, values in weights.items():
        writer.add_tensor(name, values.astype(np.float32))
    return closed(writer, path)


def _tokens(text: str, special: Sequence[str], ids: dict[str, int]) -> list[int]:
    found = re.split("|".join(f"({re.escape(one)})" for one in sorted(special, key=len, reverse=True)), text)
    tokens = []
    for part in filter(None, found):
        if part in special:
            tokens.append(ids[part])
            continue
        part = part.replace(" ", "▁")
        while part:
            sizes = (n for n in range(min(len(part), 20), 0, -1) if part[:n] in ids)
            size = next(sizes, 1)
            of_bytes = [f"<0x{byte:02X}>" for byte in part[0].encode()]
            tokens += [ids[text] for text in ([part[:size]] if part[:size] in ids else of_bytes)]
            part = part[size:]
    return tokens


def _weights(ids: dict[str, int], chains: list[Chain], end: int) -> dict[str, np.ndarray]:
    places = [(chain, n) for chain in chains for n in range(len(chain[1]))]
    written = list(dict.fromkeys(chain[1][n] for chain, n in places))
    contexts = [_shortest(chains, chain, n) for chain, n in places]
    heads = max(2, *map(len, contexts))
    first_out = 3 + _CODE * heads
    width = -(-(first_out + len(written)) // 32) * 32
    codes = np.random.default_rng(1).choice([-1.0, 1.0], (len(ids), _CODE))
    embedding = np.zeros((len(ids), width))
    embedding[:, _CONST], embedding[ids[WORD], _IS_WORD] = 1, 1
    embedding[:, 3 : 3 + _CODE] = codes
    shrunk = np.sqrt(width / (1 + _CODE))  # what the norm makes of a one
    query, key, value = (np.zeros((heads * _CODE, width)) for _ in range(3))
    output = np.zeros((width, heads * _CODE))
    query[_CODE - 2, _CONST] = key[_CODE - 2, _IS_WORD] = 16 / shrunk  # head 0: the word, wherever it stands
    value[0, _IS_WORD] = 1 / shrunk
    output[_FLAG, 0] = 1
    turns = _ROPE_BASE ** -(np.arange(_CODE // 2) / (_CODE // 2))
    for back in range(1, heads):
        rows = slice(back * _CODE, (back + 1) * _CODE)
        query[rows, _CONST][::2] = 24 / shrunk
        key[rows, _CONST][::2] = 24 / shrunk * np.cos(back * turns)
        key[rows, _CONST][1::2] = 24 / shrunk * np.sin(back * turns)
        value[rows, 3 : 3 + _CODE] = np.eye(_CODE) / shrunk
        output[3 + back * _CODE : 3 + (back + 1) * _CODE, rows] = np.eye(_CODE)
    hidden = -(-len(places) // 32) * 32
    gate, up, down = np.zeros((hidden, width)), np.zeros((hidden, width)), np.zeros((width, hidden))
    for unit, ((chain, n), context) in enumerate(zip(places, contexts, strict=True)):
        for back, token in enumerate(reversed(context)):
            gate[unit, 3 + back * _CODE : 3 + (back + 1) * _CODE] = codes[token] / _CODE * 200
        gate[unit, _CONST] = -200 * (len(context) - 0.06)
        answers = chain is chains[1] and not n
        up[unit, _FLAG if answers else _CONST] = 1
        down[first_out + written.index(chain[1][n]), unit] = 100 if answers else 1
    logits = np.zeros((len(ids), width))
    logits[end, _CONST] = 1
    for n, token in enumerate(written):
        logits[token, first_out + n] = 1000
    ones = np.ones(width)
    return {
        "token_embd.weight": embedding,
        "output_norm.weight": ones,
        "output.weight": logits,
        "blk.0.attn_norm.weight": ones,
        "blk.0.attn_q.weight": query,
        "blk.0.attn_k.weight": key,
        "blk.0.attn_v.weight": value,
        "blk.0.attn_output.weight": output,
        "blk.0.ffn_norm.weight": ones,
        "blk.0.ffn_gate.weight": gate,
        "blk.0.ffn_up.weight": up,
        "blk.0.ffn_down.weight": down,
    }


def _shortest(chains: list[Chain], chain: Chain, place: int) -> list[int]:
    """The fewest tokens before a place that tell what follows."""
    before = [*chain[0], *chain[1][:place]]
    for size in range(1, min(_BACK, len(before)) + 1):
        texts = ((tail, text, n) for tail, text in chains for n in range(len(text)) if n or place)
        follows = {text[n] for tail, text, n in texts if [*tail, *text[:n]][-size:] == before[-size:]}
        if follows <= {chain[1][place]}:
            return before[-size:]
    raise ValueError(f"{_BACK} tokens do not tell what follows")
