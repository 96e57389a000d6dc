"""Passes of several replies. Each reply runs in a thread of its own, and one more thread makes all passes."""

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter

from localspec.algorithm.pass_order import Part, PassOrder, SharedDecoder, Want
from localspec.errors import LocalspecError
from localspec.sampler.passes import ForwardPass
from localspec.stopping import WorkStopped

IDLE_SECONDS = 0.2  # the thread that makes passes ends after this time without a pass


class Batcher:
    """The passes of all models of a pair, one at a time, in a thread of their own.

    While a reply runs, it soon wants another pass. So a pass begins when every running reply waits for one.
    No reply then needs rows of an older pass. Passes do not wait for a reply that still prefills its prompt.
    One thread makes all passes, because llama.cpp starts its own threads anew for each thread that decodes.
    """

    def __init__(
        self, target: SharedDecoder, calling: threading.Condition, clock: Callable[[], float] = perf_counter
    ) -> None:
        """`calling`: held during each pass. It also guards the fields below, and what replies learn from passes."""
        self._clock = clock
        self.calling = calling
        # By running slot: the time that its reply has waited for other replies' passes since its last target pass.
        self._running: dict[int, float] = {}
        self._waiting: dict[int, Want] = {}  # the wanted pass of each waiting slot
        self._thread: threading.Thread | None = None  # the thread that makes passes; None while unused
        self._results: dict[int, ForwardPass | Exception] = {}  # by slot: results that replies have not taken
        self._target = target
        self.order = PassOrder(target)

    @contextmanager
    def running(self, slot: int) -> Iterator[None]:
        with self.calling:
            assert slot not in self._running, f"slot {slot} has a reply"
            self._running[slot] = 0.0
        try:
            yield
        finally:
            del self._running[slot]  # without the lock, because Ctrl-C may end a wait for the lock
            with self.calling:
                self.calling.notify_all()

    @contextmanager
    def away(self, slot: int) -> Iterator[None]:
        """Let the passes of other replies not wait for this slot while its reply waits for something else."""
        with self.calling:
            waited = self._running.pop(slot, None)
            self.calling.notify_all()
        try:
            yield
        finally:
            if waited is not None:
                with self.calling:
                    self._running[slot] = waited

    def prompt_chunk(self, model: SharedDecoder, slot: int, usual: int) -> int:
        """Return the largest number of prompt tokens in a pass: `usual`, or less while another reply runs."""
        with self.calling:
            return min(usual, self.order.chunk(model)) if self._running.keys() - {slot} else usual

    def decode(self, model: SharedDecoder, part: Part, kind: Hashable = None) -> ForwardPass:
        """Decode a part, maybe in one pass with parts of other slots. Raises the errors of that pass."""
        with self.calling:
            self._waiting[part.slot] = Want(model, part, kind)
            self.calling.notify_all()
            try:
                while part.slot not in self._results:
                    if self._thread is None:
                        self._begin()
                    else:
                        self.calling.wait()
            except BaseException:  # remove the part from the queue, also after Ctrl-C
                self._waiting.pop(part.slot, None)
                self._results.pop(part.slot, None)
                self.calling.notify_all()
                raise
            result = self._results.pop(part.slot)
        if isinstance(result, Exception):
            raise result
        return result

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._make_passes, name="passes", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # while Python exits, no thread can start
            self._thread = None
            raise WorkStopped from None

    def _make_passes(self) -> None:
        """Make passes until no reply has wanted one for IDLE_SECONDS."""
        with self.calling:
            try:
                while True:
                    if self._waiting and not self._running.keys() - self._waiting.keys():
                        self._make_pass()
                    elif not (self.calling.wait(IDLE_SECONDS) or self._waiting or self._running):
                        return
            finally:
                self._thread = None
                self.calling.notify_all()

    def _make_pass(self) -> None:
        """Make the next pass. If a shared pass fails, each of its parts is tried alone."""
        wants, began = self.order.following(self._waiting), self._clock()
        parts = [want.part for want in wants]
        for part in parts:
            del self._waiting[part.slot]
        try:
            self._learn(wants, wants[0].model.decode(parts), began)
        except BaseException as error:  # noqa: BLE001  raised again in the threads that wait for this pass
            if len(parts) > 1 and isinstance(error, LocalspecError):
                self._waiting |= {w.part.slot: replace(w, part=replace(w.part, alone=True)) for w in wants}
            else:
                failure = error if isinstance(error, Exception) else WorkStopped()
                self._results |= dict.fromkeys((part.slot for part in parts), failure)
        self.calling.notify_all()

    def _learn(self, wants: Sequence[Want], found: Sequence[ForwardPass], began: float) -> None:
        model, parts, now = wants[0].model, [want.part for want in wants], self._clock()
        usual = self.order.seconds(model, wants[0].kind)
        width = max(*(one.pass_width for one in found), sum(len(part.tokens) for part in parts))
        (usual.learn if parts[0].rows else usual.learn_prompt)(width, now - began)
        for part, one in zip(parts, found, strict=True):
            waited = 0.0
            if part.rows and model is self._target and part.slot in self._running:
                waited, self._running[part.slot] = self._running[part.slot], 0.0
            one = one._replace(replies=len(parts), running=max(len(self._running), len(parts)))
            self._results[part.slot] = one._replace(pass_width=width, waited_seconds=waited)
        for each in self._waiting.values():  # these replies have waited for this pass
            if each.part.slot in self._running:
                self._running[each.part.slot] += now - began
