"""The demo pair in larger shapes that compute the same function: real cost, a real pair's acceptance."""

from dataclasses import dataclass
from pathlib import Path

from localspec import demo
from tools.enlarge import NAMED, enlarge


@dataclass(frozen=True, slots=True)
class Files:
    """A pair that both programs load."""

    name: str
    target: Path
    draft: Path


def enlarged(folder: Path, kind: str, target_shape: str = "1b", draft_shape: str = "0.1b") -> Files:
    """Made on first use, in a folder outside the checkout; kind is f16, q8_0, q4_0 or q4_k_m."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"target-{target_shape}-{kind}.gguf"
    draft = folder / f"draft-{draft_shape}-{kind}.gguf"
    for source, out, shape in (
        (demo.target_path(), target, target_shape),
        (demo.draft_path(), draft, draft_shape),
    ):
        if not out.exists():
            unfinished = out.with_suffix(".part")
            enlarge(source, unfinished, NAMED[shape], kind)
            unfinished.rename(out)
    return Files(f"{target_shape} + {draft_shape} in {kind.upper()}", target, draft)
