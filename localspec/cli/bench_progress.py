"""Where a bench stands: one line that is drawn over, or a line for each prompt without a terminal."""

import sys
from typing import TYPE_CHECKING

from localspec.cli.printing import DrawnLine, say

if TYPE_CHECKING:
    from localspec.measure.bench.bench import BenchStep, Limits

_BAR = 16  # characters


class BenchProgress:
    """Draws the steps of a bench on stderr."""

    def __init__(self, blocks_in_round: int, limits: "Limits") -> None:
        self._limits = limits
        self._blocks = blocks_in_round * (limits.rounds or 0)
        self._line = DrawnLine(sys.stderr)
        self._blocks_said = -1

    def show(self, step: "BenchStep") -> None:
        line = progress_text(step, share(step, self._blocks, self._limits.seconds))
        if not self._line.draw(line) and step.blocks_done > self._blocks_said:
            self._blocks_said = step.blocks_done
            say(line, to=sys.stderr)

    def clear(self) -> None:
        self._line.clear()


def share(step: "BenchStep", blocks: int, seconds: float | None) -> float:
    """How much is done, by the limit that is nearer."""
    done = [step.blocks_done / blocks] if blocks else []
    done += [step.seconds / seconds] if seconds else []
    return min(max(done, default=0.0), 1.0)


def progress_text(step: "BenchStep", done: float) -> str:
    """How far, what runs now, and the speed of the reply before it."""
    filled = int(done * _BAR)
    minutes, seconds = divmod(int(step.seconds), 60)
    line = (
        f"{'█' * filled}{'░' * (_BAR - filled)} {done:4.0%}  {minutes}:{seconds:02d}  "
        f"{step.block.prompt.category}: {step.block.prompt.name}, "
        f"T={step.block.temperature:g}, {step.arm.name}"
    )
    if step.last:
        line += f"  (before: {step.last.arm} {step.last.tokens_per_second:.1f} tokens/s)"
    return line
