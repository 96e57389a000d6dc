"""Where a bench stands: one line that is drawn over, or a line for each prompt without a terminal."""

import shutil
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from localspec.measure.bench import Limits, Step

_BAR = 16  # characters


class BenchProgress:
    """Draws the steps of a bench on stderr."""

    def __init__(self, stream: TextIO, blocks_in_round: int, limits: "Limits") -> None:
        self._stream, self._limits = stream, limits
        self._blocks = blocks_in_round * (limits.rounds or 0)
        self._drawn = False
        self._blocks_said = -1

    def show(self, step: "Step") -> None:
        line = progress_text(step, share(step, self._blocks, self._limits.seconds))
        if self._stream.isatty():
            width = shutil.get_terminal_size().columns - 1
            self._stream.write("\r\x1b[K" + line[:width])
            self._stream.flush()
            self._drawn = True
        elif step.blocks_done > self._blocks_said:
            self._blocks_said = step.blocks_done
            print(line, file=self._stream, flush=True)

    def clear(self) -> None:
        """Take the line away, so that something else can be written."""
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn = False


def share(step: "Step", blocks: int, seconds: float | None) -> float:
    """How much is done, by the limit that is nearer."""
    done = [step.blocks_done / blocks] if blocks else []
    done += [step.seconds / seconds] if seconds else []
    return min(max(done, default=0.0), 1.0)


def progress_text(step: "Step", done: float) -> str:
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
