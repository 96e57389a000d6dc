"""What passes cost on a simulated device: by width, and by what ran before."""

from collections.abc import Iterable

from .worlds import Curve

RECORDED = 256  # tokens: llama.cpp pads the cache to so many, and a recorded pass holds for one length of it


class Recorder:
    """What launching adds to the passes of one model: a pass is launched, recorded, and from the third on replayed."""

    def __init__(self, direct: float, capture: float, first: float, known: Iterable[int]) -> None:
        self._extras = (direct, capture)
        self._first = first
        self._known = set(known)  # widths whose kernels are loaded
        self._latest: tuple[int, int] | None = None
        self._run = 0

    def extra(self, width: int, position: int) -> float:
        """Of a pass over `width` tokens behind `position` others."""
        shape = width, position // RECORDED
        self._run = self._run + 1 if shape == self._latest else 1
        self._latest = shape
        loading = 0.0 if width in self._known else self._first
        self._known.add(width)
        return loading + (self._extras[self._run - 1] if self._run <= len(self._extras) else 0.0)


class Device:
    """What the passes of a pair take, in plain steps, reply after reply."""

    def __init__(self, curve: Curve, warm: Iterable[int] = range(1, 100)) -> None:
        """`warm`: widths that were decoded at load."""
        launches = curve.launches
        self._curve = curve
        self._target = Recorder(launches.direct, launches.capture, launches.first, warm)
        self._draft = Recorder(launches.draft_direct, launches.draft_capture, 0.0, ())
        self._unread = 0  # tokens that the draft model has yet to read, the newest one aside

    def verify(self, width: int, at: int) -> float:
        """A pass of the target over `width` tokens, `at` tokens into the text."""
        return self._curve.verify(width) + self._target.extra(width, at)

    def draft(self, drawn: int, at: int) -> tuple[float, int]:
        """Seconds and runs for drawing so many tokens; after a proposal that was kept whole there are two to read.

        They are read one after the other where passes are recorded.
        """
        apart = self._unread if self._curve.launches.draft_direct else 0
        widths = [1 + self._unread - apart, *[1] * (drawn + apart - 1)]
        seconds = self._curve.draft(drawn) + apart * self._curve.draft(1)
        return seconds + sum(self._draft.extra(width, at) for width in widths), drawn + apart

    def observe(self, drawn: int, kept: int) -> None:
        """What became of the tokens that were drawn."""
        if drawn:
            self._unread = int(kept == drawn)
