"""From files to a running pair: models, contexts, drafting, closed again in order."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from localspec.chat.options import Request
from localspec.chat.session import Engine
from localspec.chat.template import template_of
from localspec.drafters.fixed import Fixed, Plain
from localspec.drafters.model import ModelDrafter
from localspec.errors import BadSetting, RollbackUnsupported
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.models.resolve import PairFiles
from localspec.speculation.chain import Chain
from localspec.speculation.protocols import Candidates, Rule, Strategy
from localspec.speculation.sampling import Sampling

CONTEXT_LENGTH = 8192  # tokens, where neither the user nor the model asks for less
WIDEST_BATCH = 33  # tokens in a verify batch: the newest token and at most 32 draft tokens
RECURRENT_DEPTH = 7  # draft tokens that can be taken back from a recurrent state: each costs a copy of it

DEMO_NOTICE = (
    "this is the small embedded demonstration pair; `localspec pairs` lists real ones, "
    "`localspec pull NAME` fetches one"
)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the caller wants of the loaded pair; none means that localspec decides."""

    context_length: int | None = None  # tokens
    gpu_layers: int | None = None
    threads: int | None = None
    kv_type: str = "f16"  # of the target; anything else changes its distribution
    draft_device: str | None = None
    drafts: bool = True  # False: no draft model is loaded

    def __post_init__(self) -> None:
        for name, least in (("context_length", 16), ("gpu_layers", 0), ("threads", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise BadSetting(f"{name} is {value}", hint=f"give a whole number of at least {least}")


def open_engine(files: PairFiles, wishes: Wishes, on_stage: Callable[[str], None]) -> Engine:
    """Load a pair; what was opened is closed again when a later step fails."""
    with ExitStack() as opened:
        on_stage(f"loading target {files.target.name}")
        target_model = opened.enter_context(Model(files.target, gpu_layers=wishes.gpu_layers))
        length = wishes.context_length or min(target_model.trained_context_length, CONTEXT_LENGTH)
        drafts = wishes.drafts and files.draft is not None
        snapshots = RECURRENT_DEPTH if drafts and not target_model.can_roll_back else 0
        target = opened.enter_context(open_context(target_model, length, wishes, WIDEST_BATCH, snapshots))
        draft = None
        if drafts and files.draft is not None:
            if target.rollback_limit == 0:
                raise RollbackUnsupported(
                    f"{target_model.name} is recurrent: its state cannot step back to reject drafts",
                    hint="run it without a draft model: --no-draft",
                )
            on_stage(f"loading draft {files.draft.name}")
            draft_model = opened.enter_context(
                Model(files.draft, gpu_layers=0 if wishes.gpu_layers == 0 else None)
            )
            draft = opened.enter_context(open_context(draft_model, length, wishes, rows=1))
        sampling, unsupported = Sampling.from_metadata(target_model.metadata)
        vocabulary = target_model.vocab
        template, template_notices = template_of(target_model.chat_template, vocabulary)
        on_stage("ready")
        return Engine(
            name=files.name,
            target_name=target_model.name,
            draft_name=draft_model.name if draft else "",
            target=target,
            draft=draft,
            can_roll_back=target_model.can_roll_back,
            vocabulary=vocabulary,
            template=template,
            sampling=sampling,
            notices=(*([DEMO_NOTICE] if files.name == "demo" else []), *unsupported, *template_notices),
            drafting=PairDrafting(target, draft, vocabulary.is_end, files.starting_depth),
            close=opened.pop_all().close,
        )


def open_context(model: Model, length: int, wishes: Wishes, rows: int, snapshots: int = 0) -> Context:
    return Context(
        model,
        length=length,
        threads=wishes.threads,
        rows_max=rows,
        snapshots=snapshots,
        kv_type_k=wishes.kv_type,
        kv_type_v=wishes.kv_type,
        candidates=Candidates,
    )


class PairDrafting:
    """Makes the strategy of each reply from the pair's draft model."""

    def __init__(
        self, target: Context, draft: Context | None, is_end: Callable[[int], bool], starting_depth: int
    ) -> None:
        self._target = target
        self._draft = draft
        self._is_end = is_end
        self._starting_depth = starting_depth
        limit = target.rollback_limit
        self._deepest = WIDEST_BATCH - 1 if limit is None else limit

    def strategy(self, rule: Rule, request: Request) -> Strategy:
        needed = Chain(request.sampling).candidates_needed()
        self._target.set_top_k(needed)
        depth = self._starting_depth if request.depth is None else request.depth
        depth = min(depth, self._deepest)
        if self._draft is None or not request.speculate or depth == 0:
            return Plain()
        self._draft.set_top_k(needed)
        return Fixed(ModelDrafter(self._draft, rule, self._is_end), depth)
