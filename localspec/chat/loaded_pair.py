"""A loaded pair, for conversations; `localspec.models.load` makes it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from localspec.algorithm.protocols import Decoder, Drafter, Rule, Strategy, Vocabulary
from localspec.chat.logits import LogitLog
from localspec.chat.options import Request
from localspec.chat.template import ChatTemplate
from localspec.sampler.sampling import Sampling

TOY = "This demo pair is a toy: its speed says nothing about real pairs. `localspec demo` shows what drafting gains."


class StrategyMaker(Protocol):
    """Makes the strategy of each reply, and keeps what drafting learns between replies."""

    seeds_keep_threads: bool  # whether a reply with a seed decodes with the usual number of threads

    @property
    def crowded(self) -> bool:
        """Whether other programs keep the processor busy that a model is on."""

    def strategy(self, rule: Rule, request: Request, predicted: Sequence[int] = ()) -> Strategy:
        """The drafting strategy of this reply; `predicted`: tokens that the caller expects."""

    def store(self) -> None:
        """Store costs and acceptance for the next run."""

    def calibrate(self, text: Sequence[int], budget_seconds: float, stop: Callable[[], bool]) -> None:
        """Measure the cost of batches of these tokens, unless it is known or `stop` turns true."""


@dataclass(frozen=True, slots=True)
class LoadedPair:
    """A loaded pair, ready to run; `close` frees it."""

    name: str
    target_name: str
    draft_name: str  # of the model that drafts; "" when none does
    target: Decoder
    drafters: Sequence[Drafter]  # those that run models, and live as long as the target
    rollback_limit: int | None  # draft tokens that the target can take back; None: all
    widest_batch: int  # tokens that the target verifies at once
    vocabulary: Vocabulary
    template: ChatTemplate
    sampling: Sampling  # the model's own defaults
    expected_acceptance: float | None  # accepted / drafted tokens that were published for it
    notices: tuple[str, ...]  # notices about this pair, sent with the first reply
    drafting: StrategyMaker
    close: Callable[[], None]
    is_toy: bool = False  # the embedded demo
    log: LogitLog | None = None  # of replies, where the user wants one
