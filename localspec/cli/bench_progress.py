"""Where a bench stands, in a line."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from localspec.measure.bench.bench import BenchStep, Limits

_BAR = 16  # characters


def progress_text(step: "BenchStep", blocks_in_round: int, limits: "Limits") -> str:
    """How far by the limit that is nearer, what runs now, and the speed of the reply before it."""
    shares = [step.seconds / limits.seconds] if limits.seconds else []
    shares += [step.blocks_done / (blocks_in_round * limits.rounds)] if limits.rounds else []
    done = min(max(shares, default=0.0), 1.0)
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
