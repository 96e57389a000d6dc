"""Whether a draft can draft for a target, on headers alone.

A draft of the target's vocabulary follows llama.cpp's rule; a draft of another vocabulary uses the shared tokens.
common/speculative.cpp, common_speculative_are_compatible: same kind of vocabulary, same begin and end tokens
where they are added, sizes that differ by at most 128, and the same text for every token from id 5 on.
"""

from pathlib import Path

from localspec.errors import BadModelFile, IncompatiblePair
from localspec.gguf.facts import ModelFacts, VocabularyFacts
from localspec.gguf.header import Header, header_at
from localspec.gguf.heads import draft_kind, misfit
from localspec.gguf.shared_tokens import SharedTokens, comparable, shared_tokens
from localspec.gguf.trimmed import is_trimmed


def prove(target: Header, draft: Header | None) -> SharedTokens | None:
    """The tokens that a draft of another vocabulary shares with its target; None for one vocabulary.

    Raises BadModelFile for a file that is not a whole model, IncompatiblePair naming the difference.
    """
    refuse_part(target, "target")
    if draft is not None:
        refuse_part(draft, "draft")
    refuse_head_alone(target, "the target file")
    return None if draft is None else common_tokens(target, draft)


def refuse_part(header: Header, role: str) -> None:
    """Raises BadModelFile for a file that is not a whole model."""
    facts = ModelFacts.from_header(header)
    if (parts := header.number("split.count") or 0) > 1:
        raise BadModelFile(
            f"the {role} file is one of {parts} parts of a model",
            hint="fetch all of them into one folder, and name the first by its path",
        )
    if not facts.architecture or not header.tensors:
        raise BadModelFile(f"the {role} file holds no model", hint="choose another file")
    if facts.vocabulary is None:
        raise BadModelFile(
            f"the {role} file has no vocabulary of its own, so it cannot run alone",
            hint="files called mtp-, eagle3- or dflash- are parts for other ways of drafting",
        )


MAX_SIZE_DIFFERENCE = 128  # tokens
LEAST_COVERAGE = 0.5  # of what a draft of another vocabulary writes: with less it would mostly be wrong
FIRST_COMPARED = 5  # token id
_SHOWN = 40  # characters of a token's text


def check(target: Path, draft: Path) -> SharedTokens | None:
    """The tokens that a draft of another vocabulary shares with its target; None for one vocabulary.

    Raises IncompatiblePair when the draft file cannot draft for the target file, or BadModelFile.
    """
    return common_tokens(header_at(target), header_at(draft), target.name, draft.name)


def common_tokens(
    target: Header, draft: Header, target_name: str = "the target", draft_name: str = "the draft"
) -> SharedTokens | None:
    """As `check`, of headers."""
    if not (found := problems(target, draft)):
        return None
    why = found[0]
    ours, theirs = (ModelFacts.from_header(header).vocabulary for header in (target, draft))
    is_model = not draft_kind(draft).is_head and not is_trimmed(draft)
    if is_model and ours and theirs and comparable(ours) and comparable(theirs):
        shared = shared_tokens(ours, theirs)
        if shared.coverage >= LEAST_COVERAGE:
            return shared
        why = (
            f"their vocabularies differ, and only {shared.coverage:.0%} of the tokens that it writes are the "
            f"target's too ({LEAST_COVERAGE:.0%} are needed)"
        )
    raise IncompatiblePair(
        f"{draft_name} cannot draft for {target_name}: {why}",
        hint="choose a draft of the target's own family; `localspec pairs` lists pairs that fit",
    )


def refuse_head_alone(target: Header, name: str) -> None:
    """Raises BadModelFile for a target that is a prediction head."""
    if draft_kind(target).is_head:
        raise BadModelFile(
            f"{name} is a prediction head: it drafts for another model and runs with it alone",
            hint="give it as the draft of its target: --target FILE --draft HEAD",
        )


def problems(target: Header, draft: Header) -> list[str]:
    """The first difference of each kind that keeps the two from working together."""
    if fault := misfit(target, draft):
        return [fault]
    return differences(ModelFacts.from_header(target), ModelFacts.from_header(draft))


def differences(target: ModelFacts, draft: ModelFacts) -> list[str]:
    """The differences between a target and a whole model."""
    ours, theirs = target.vocabulary, draft.vocabulary
    for name, vocabulary in (("target", ours), ("draft", theirs)):
        if vocabulary is None:
            return [f"the {name} has no vocabulary"]
        if not vocabulary.kind:
            return [f"the {name} has a tokenizer that llama.cpp does not know"]
    assert ours is not None
    assert theirs is not None
    if ours.kind != theirs.kind:
        return [f"the target's vocabulary is {ours.kind}, the draft's is {theirs.kind}"]
    found = _ends("begin", ours.adds_bos, theirs.adds_bos, ours.bos, theirs.bos)
    found += _ends("end", ours.adds_eos, theirs.adds_eos, ours.eos, theirs.eos)
    if abs(ours.count - theirs.count) > MAX_SIZE_DIFFERENCE:
        found.append(
            f"the target knows {ours.count:,} tokens, the draft {theirs.count:,}, "
            f"and more than {MAX_SIZE_DIFFERENCE} apart is too far"
        )
    if difference := first_difference(ours, theirs):
        token, text, other = difference
        found.append(f"token {token} is {_quoted(text)} in the target and {_quoted(other)} in the draft")
    return found


def first_difference(ours: VocabularyFacts, theirs: VocabularyFacts) -> tuple[int, bytes, bytes] | None:
    """The first token from id 5 on whose texts differ, with both texts; None for equal texts."""
    if ours.texts == theirs.texts:
        return None
    pairs = zip(ours.texts.texts(), theirs.texts.texts(), strict=False)
    for token, (text, other) in enumerate(pairs):
        if (
            text != other
            and token >= FIRST_COMPARED
            and _as_compared(text, token) != _as_compared(other, token)
        ):
            return token, text, other
    return None


def _as_compared(text: bytes, token: int) -> bytes:
    """A token's text as llama.cpp compares it: up to a zero byte, and an empty one has a name."""
    return text.split(b"\0", 1)[0] if text else b"[EMPTY_%d]" % token


def _ends(which: str, ours_added: bool, theirs_added: bool, ours: int, theirs: int) -> list[str]:
    if ours_added != theirs_added:
        article = "an" if which == "end" else "a"
        one, other = ("target", "draft") if ours_added else ("draft", "target")
        return [f"the {one} puts {article} {which} token, the {other} does not"]
    if ours_added and ours != theirs:
        return [f"the {which} token is {ours} in the target and {theirs} in the draft"]
    return []


def _quoted(text: bytes) -> str:
    shown = text.decode("utf-8", "replace")
    return repr(shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "...")
