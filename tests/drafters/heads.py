"""Targets with heads on tiny GGUFs, driven pass by pass."""

from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

from localspec.algorithm.loop import speculate
from localspec.algorithm.protocols import Drafter
from localspec.algorithm.verification import make_rule
from localspec.drafters.head import ASSISTANT, EAGLE3, MTP, BlockDrafter, ChainDrafter, Steps
from localspec.drafters.selection import Fixed, Plain
from localspec.gguf.facts import has_markov_chain
from localspec.gguf.header import header_at
from localspec.llama.context import Context
from localspec.llama.head import BlockContext, HeadContext
from localspec.llama.load import Load
from localspec.llama.model import Model
from localspec.sampler.passes import ForwardPass, HiddenRows
from localspec.sampler.sampling import Sampling
from tests.algorithm.exact_models import never
from tests.gguf.heads import Walk, write_assistant, write_dflash, write_eagle3, write_mtp, write_target

LENGTH = 512
GREEDY = make_rule("greedy", Sampling(temperature=0), 0)


@dataclass(frozen=True)
class Kind:
    walk: Walk
    write: object  # None: it is inside the target
    layout: object  # None: it guesses a whole block

    @property
    def keeps(self):
        return self.layout is None or self.layout.keeps

    def files(self, folder):
        target = write_target(folder / "target.gguf", self.walk)
        return target, self.write(folder / "head.gguf", self.walk) if self.write else None


KINDS = {
    "eagle3": Kind(Walk(), write_eagle3, EAGLE3),
    "mtp inside": Kind(Walk("qwen35", nextn=1), None, MTP),
    "mtp in a file": Kind(Walk("mimo2", nextn=1), write_mtp, MTP),
    "mtp in a chain": Kind(Walk("mimo2", nextn=3), None, MTP),
    "assistant": Kind(Walk("gemma4"), write_assistant, ASSISTANT),
    "dflash": Kind(Walk(), write_dflash, None),
    "dspark": Kind(Walk(), partial(write_dflash, variant="dspark"), None),
    "dflash2": Kind(Walk(), partial(write_dflash, variant="dflash2"), None),
}


@dataclass
class Opened:
    target: Context
    drafter: Drafter | None = None

    def begin(self, prompt):
        """As a reply begins: what the cache has in common with the prompt stays."""
        common = 0
        while (
            common < min(self.target.length, len(prompt) - 1) and self.target.tokens[common] == prompt[common]
        ):
            common += 1
        keep = self.target.rewind(common)
        if self.drafter:
            self.drafter.begin()
            self.drafter.observe(ForwardPass(0, prompt[:keep]), keep)
        for batch in self.target.prefill(prompt[keep:-1]):
            if self.drafter:
                self.drafter.observe(batch, len(batch.tokens))

    def cycles(self, text, depth, room, rule=GREEDY):
        strategy = Fixed(self.drafter, depth, rule) if depth else Plain()
        yield from speculate(self.target, strategy, text, rule=rule, room=room, is_end=never)
        assert not self.drafter or self.drafter.failure is None


@cache
def plain_texts(walk, asked):
    """Of a target, each prompt with as many greedy tokens as asked for."""
    with TemporaryDirectory() as folder, Model(write_target(Path(folder) / "target.gguf", walk)) as model:
        plain, texts = Opened(Context(model, length=LENGTH, snapshots=5, threads=1)), []
        for prompt, room in asked:
            text = list(prompt)
            plain.begin(text)
            for _ in plain.cycles(text, 0, room):
                pass
            texts.append(text)
        return texts


@contextmanager
def opened(kind, files):
    with opened_slots(kind, files, 1) as (pair,):
        yield pair


@contextmanager
def opened_slots(kind, files, slots, **room):
    """A target with its head for each slot; several heads share a context."""
    room = {"length": LENGTH, "snapshots": 5, "saved_bytes": 100_000_000} | room
    target_file, head_file = files
    with Model(target_file, prediction=head_file is None) as model:
        target = Context(model, threads=1, slots=slots, **room)
        predicts = kind.layout in (MTP, ASSISTANT)
        file = Model(head_file, prediction=predicts) if head_file else model
        wants = HiddenRows(output=True) if predicts else HiddenRows((0, 2, 3))
        load = Load(room["length"], threads=1, slots=slots)
        if kind.layout is None:
            anchored = has_markov_chain(header_at(head_file))
            head = BlockContext(file, target, load, layers=3, anchored=anchored)
            how = (BlockDrafter,)
        else:
            head = HeadContext(file, target, load, encodes=kind.layout is EAGLE3)
            how = (ChainDrafter, kind.walk.nextn) if kind.walk.nextn > 1 else (Steps, kind.layout)
        target.shared.extract(wants)
        for slot in target.slots:
            slot.head_state = how[0](head.on(slot.sequence), wants, never, *how[1:])
        try:
            yield [Opened(slot, slot.head_state) for slot in target.slots]
        finally:
            head.close()
            if file is not model:
                file.close()
