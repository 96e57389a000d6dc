"""An engine on exact models, for any vocabulary: what sessions are tested with."""

from threading import Condition

from localspec.chat.loaded_pair import LoadedPair, Slot, Slots
from localspec.drafters.model import ModelDrafter
from localspec.llama.threads import Contention, Threads
from localspec.loading.drafting import Drafting, estimated_costs
from localspec.prompt.template import ChatTemplate
from localspec.sampler.sampling import Sampling
from tests.algorithm.exact_models import Blend, ExactModel


class ExactContext(ExactModel):
    """An exact model with what the composition root asks of a context."""

    rollback_limit = None
    threads, calling = Threads(1), Condition()


class ExactDraftContext(Blend):
    rollback_limit = None
    threads, calling = Threads(1), Condition()


def exact_pair(vocabulary, seed, *, capacity, agreement, draft=True):
    """A target and its draft, or None; the draft sees the target's logits in `agreement` of the states."""
    target = ExactContext(seed, capacity=capacity, vocabulary=vocabulary.size)
    if not draft:
        return target, None
    return target, ExactDraftContext(seed, agreement, capacity=capacity, vocabulary=vocabulary.size)


def engine_of(
    vocabulary,
    template,
    target,
    draft,
    *,
    sampling=Sampling(),  # noqa: B008  frozen
    deepest=32,
    drafters=(),
    notices=(),
    close=lambda: None,
):
    drafters = [ModelDrafter(draft, vocabulary.is_end)] if draft else drafters
    drafting = Drafting(
        drafters,
        estimated_costs("cpu", {}),
        most=deepest if target.rollback_limit is None else min(deepest, target.rollback_limit),
        target=target,
        decoding=[target, *([draft] if draft else [])],
    )
    return LoadedPair(
        name="exact",
        target_name="exact target",
        draft_name="exact draft" if draft else "",
        slots=Slots([Slot(target, drafters, drafting)]),
        rollback_limit=None,
        widest_batch=deepest + 1,
        vocabulary=vocabulary,
        template=ChatTemplate(template, bos_text="", eos_text=""),
        sampling=sampling,
        threads=Contention(1),
        notices=notices,
        close=close,
    )
