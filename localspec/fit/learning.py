"""From answers to a draft: trains until the end or a stop, and writes the best draft so far."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from localspec.fit.cut import TensorFile
from localspec.fit.export import export
from localspec.fit.making import Plan
from localspec.fit.texts import texts_in
from localspec.fit.training import Training

BETWEEN_CHECKPOINTS = 60.0  # seconds, at least
TIMES = 10  # as long as judging the draft and writing it takes, at least


@dataclass(frozen=True, slots=True)
class Progress:
    """How far training is, and how good its draft was on held-out answers."""

    visits: int
    loss: float  # of the last step
    overlap: float  # how often a sampled token would be kept
    right: float  # how often the likeliest token is the target's


def learn(
    source: Path,
    target: str,
    folder: Path,
    path: Path,
    plan: Plan,
    told: Callable[[Progress], object],
    stopped: Callable[[], bool],
) -> Progress:
    """Train layers of `source` on the answers in `folder`, write the best draft to `path`; resumes from a checkpoint.

    target: the name of the answering model; told: called after every step.
    Raises BadSetting, OSError.
    """
    texts = list(texts_in(folder))
    model = TensorFile(source)
    training = Training(model, plan, texts, folder / "checkpoint.pt")
    answered = f"{sum(len(text.tokens) for text in texts):,} tokens to {len(texts):,} prompts"
    overlap, right = training.judged()
    loss, kept_at, took = 0.0, monotonic(), 0.0
    while True:
        began, over = monotonic(), training.visits >= plan.visits or stopped()
        if over or began - kept_at > max(BETWEEN_CHECKPOINTS, TIMES * took):
            overlap, right = training.judged()
            if overlap > training.best or not path.exists():
                said = {
                    "target": target,
                    "made_of": source.name,
                    "answers": answered,
                    "visits": f"{training.visits:,}",
                    "held_out": f"overlap {overlap:.3f}, first choices equal {right:.3f}",
                }
                export(path, model, training.learned(), training.token_ids, said)
                training.best = overlap
            training.save()
            kept_at = monotonic()
            took = kept_at - began
        progress = Progress(training.visits, loss, overlap, right)
        told(progress)
        if over:
            return progress
        loss = training.advance(plan.visits)
