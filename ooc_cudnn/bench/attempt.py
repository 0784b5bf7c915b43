"""One contender's part in a case: it runs for as long as it can, and what stops it is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ooc_cudnn.bench.case import OURS
from ooc_cudnn.bench.contender import Contender, Unavailable
from ooc_cudnn.bench.timing import Timing, timed
from ooc_cudnn.errors import PlanInfeasibleError

#: What takes longer than this once it is warm is run no more: that run is the only sample.
PATIENCE_SECONDS = 5.0


def reason_of(error: Exception, *, baseline: bool) -> str | None:
    """Say why a contender cannot run here; None if the error is a fault and is to be raised.

    What a baseline's own libraries refuse (cuDNN, CUDA and PyTorch raise ``RuntimeError``) is a
    reason, too; the library has no such excuse.
    """
    text = " ".join(str(error).split())
    if isinstance(error, Unavailable | PlanInfeasibleError):
        return text
    if isinstance(error, ModuleNotFoundError):
        return f"{error.name} is not installed"
    kind = type(error).__name__
    out_of_memory = isinstance(error, MemoryError) or kind == "OutOfMemoryError"
    if out_of_memory or (isinstance(error, RuntimeError) and "out of memory" in text.lower()):
        return f"out of memory: {text}" if text else "out of memory"
    if baseline and isinstance(error, RuntimeError):
        return f"{kind}: {text}"
    return None


class Attempt:
    """A contender, guarded: after what it cannot do, nothing more is asked of it.

    Attributes
    ----------
    reason : str or None
        Why it is unavailable.
    timing : Timing or None
    checked : mapping or None
    details : dict
    """

    def __init__(self, name: str, make: Callable[[], Contender]) -> None:
        self.name = name
        self.reason: str | None = None
        self.timing: Timing | None = None
        self.checked: dict[str, Any] | None = None
        self.details: dict[str, Any] = {}
        self.seconds_when_warm: float | None = None
        self._contender: Contender | None = None
        self._prepared = False
        self._guarded(lambda: setattr(self, "_contender", make()))
        self.about = self._contender.about if self._contender else ""
        self.bounds = bool(self._contender and self._contender.bounds)
        self.ours = name == OURS or bool(self._contender and self._contender.ours)

    def prepare(self, synchronize: Callable[[], None]) -> None:
        """Take memory and warm up; twice where it takes long: the first run plans and builds."""
        if self._contender is None:
            return
        self._prepared = True
        self._guarded(self._contender.prepare)
        self.rest()
        self.seconds_when_warm = None
        if self.reason is None and timed(self.run, synchronize) > PATIENCE_SECONDS:
            self.rest()
            self.seconds_when_warm = timed(self.run, synchronize)

    @property
    def is_slow(self) -> bool:
        """Whether the second run of the warm-up has to do for a timing."""
        return self.reason is None and (self.seconds_when_warm or 0.0) > PATIENCE_SECONDS

    @property
    def slow_samples(self) -> list[float]:
        """The only sample of what is slow; none where nothing is."""
        return [self.seconds_when_warm or 0.0] if self.is_slow else []

    def rest(self) -> None:
        """Put operands back."""
        if self._contender is not None:
            self._guarded(self._contender.rest)

    def run(self) -> None:
        """Compute once."""
        if self._contender is not None:
            self._guarded(self._contender.run)

    def time(self, repeats: int, synchronize: Callable[[], None]) -> list[float]:
        """Return the seconds of each repeat; none once it is unavailable."""
        samples = []
        for _ in range(repeats):
            self.rest()
            seconds = timed(self.run, synchronize)
            if self.reason is None:
                samples.append(seconds)
        return samples

    def check(self) -> None:
        """Compare the result, and keep what else is worth keeping."""
        contender = self._contender
        if contender is None:
            return

        def look() -> None:
            found = contender.check()
            self.checked = None if found is None else dict(found)
            self.details = contender.details()

        self._guarded(look)

    def release(self) -> None:
        """Give back what was taken, if anything was."""
        if self._contender is not None and self._prepared:
            self._prepared = False
            self._contender.release()

    def to_json(self, operations: float, ratio: Mapping[str, float] | None) -> dict[str, Any]:
        """Return what is known of it."""
        if self.reason is not None or self.timing is None:
            return {"status": "unavailable", "reason": self.reason, "about": self.about}
        return {
            "status": "measured",
            "about": self.about,
            "bound": self.bounds,
            "seconds": self.timing.to_json(),
            "GFLOPS": operations / self.timing.median / 1e9,
            "ratio": None if ratio is None else dict(ratio),
            "check": self.checked,
            "details": self.details,
        }

    def _guarded(self, action: Callable[[], Any]) -> None:
        if self.reason is not None:
            return
        try:
            action()
        except Exception as error:
            self.reason = reason_of(error, baseline=self.name != OURS)
            if self.reason is None:
                raise
