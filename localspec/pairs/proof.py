"""Whether two headers make a pair that can run, before the weights are here."""

from localspec.errors import BadModelFile
from localspec.gguf.facts import ModelFacts
from localspec.gguf.header import Header
from localspec.gguf.shared_tokens import SharedTokens
from localspec.pairs.compatibility import common_tokens, refuse_head_alone


def prove(target: Header, draft: Header | None) -> SharedTokens | None:
    """What a draft of another vocabulary shares with its target; None where they have one.

    Raises BadModelFile for a file that is no whole model, IncompatiblePair naming the difference.
    """
    refuse_part(target, "target")
    if draft is not None:
        refuse_part(draft, "draft")
    refuse_head_alone(target, "the target file")
    return None if draft is None else common_tokens(target, draft)


def refuse_part(header: Header, role: str) -> None:
    """Raises BadModelFile for what is no whole model."""
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
            f"the {role} file has no vocabulary of its own, so it is no model that runs alone",
            hint="files called mtp-, eagle3- or dflash- are parts for other ways of drafting",
        )
