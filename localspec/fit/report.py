"""The drafts that were made on this machine, and what each file says of where it comes from."""

from pathlib import Path

from localspec import settings
from localspec.errors import BadModelFile
from localspec.gguf.header import header_at
from localspec.gguf.trimmed import PROVENANCE, is_trimmed
from localspec.pairs.registry import all_pairs
from localspec.units import size_text


def report() -> str:
    """Some lines for every draft in the folder of fitted ones. Raises BadSetting for a models.toml that is damaged."""
    folder, pairs = settings.data_dir() / "fitted", {pair.name: pair for pair in all_pairs()}
    drafts = [path for path in sorted(folder.glob("*.gguf")) if not path.name.endswith(".tokens.gguf")]
    blocks = []
    for path in drafts:
        pair = pairs.get(path.stem)
        used = pair.use if pair else "no pair has it: it was not faster, or was taken out"
        blocks.append("\n  ".join([f"{path.stem}: {used}", size_text(path.stat().st_size), *_told(path)]))
    return "\n".join(blocks) or "No draft was made here yet."


def _told(path: Path) -> list[str]:
    """What stands in a draft's header."""
    try:
        header = header_at(path)
    except BadModelFile as error:
        return [str(error)]
    said = {
        key: str(entry.value) for key, entry in header.entries.items() if key.startswith(f"{PROVENANCE}.")
    }
    if not said and is_trimmed(header):
        return ["trimmed, nothing learned"]
    return [f"{key.rpartition('.')[2].replace('_', ' ')}: {value}" for key, value in said.items()]
