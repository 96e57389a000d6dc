"""Scores of tokens in the two forms that OpenAI's clients read."""

from collections.abc import Sequence
from typing import Any

from localspec.events import Likelihood, Scored


def of_chat(scores: Sequence[Scored]) -> dict[str, Any]:
    """For chat completions: one entry a token."""
    entries = [{**entry(s.chosen), "top_logprobs": [entry(a) for a in s.alternatives]} for s in scores]
    return {"content": entries, "refusal": None}


def of_text(scores: Sequence[Scored], start: int) -> dict[str, Any]:
    """For completions: lists side by side; `start`: characters of the text before."""
    texts = [text_of(s.chosen) for s in scores]
    offsets = [start + sum(map(len, texts[:n])) for n in range(len(texts))]
    return {
        "tokens": texts,
        "token_logprobs": [s.chosen.logprob for s in scores],
        "top_logprobs": [{text_of(a): a.logprob for a in s.alternatives} for s in scores],
        "text_offset": offsets,
    }


def entry(found: Likelihood) -> dict[str, Any]:
    return {"token": text_of(found), "logprob": found.logprob, "bytes": found.piece}


def text_of(found: Likelihood) -> str:
    """A token's text; incomplete characters become U+FFFD."""
    return bytes(found.piece).decode(errors="replace")
