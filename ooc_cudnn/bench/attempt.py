"""One contender's part in a case: it runs for as long as it can, and what stops it is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ooc_cudnn.bench.case import OURS
from ooc_cudnn.bench.contender import Contender, Unavailable
from ooc_cudnn.bench.timing import Timing, time_call
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

    `reason` says why it is unavailable; `timing`, `checked` and `details` are what was found.
    """

    def __init__(self, name: str, make: Callable[[], Contender]) -> None:
        self.name = name
        self.reason: str | None = None
        self.timing: Timing | None = None
        self.checked: dict[str, Any] | None = None
        self.details: dict[str, Any] = {}
        self.seconds_when_warm = 0.0
        self._contender: Any = None  # it is asked for nothing where there is a reason
        self._prepared = False
        self._guarded(lambda: setattr(self, "_contender", make()))
        self.about = getattr(self._contender, "about", "")
        self.bounds = getattr(self._contender, "bounds", False)
        self.ours = name == OURS or getattr(self._contender, "ours", False)

    def prepare(self, synchronize: Callable[[], None]) -> None:
        """Take memory and warm up; twice where it takes long: the first run plans and builds."""
        self._prepared = self.reason is None
        self._guarded(lambda: self._contender.prepare())
        self.rest()
        self.seconds_when_warm = 0.0
        if self.reason is None and time_call(self.run, synchronize) > PATIENCE_SECONDS:
            self.rest()
            self.seconds_when_warm = time_call(self.run, synchronize)

    @property
    def slow_samples(self) -> list[float]:
        """The second run of the warm-up, in place of samples of what is slow; else none."""
        slow = self.reason is None and self.seconds_when_warm > PATIENCE_SECONDS
        return [self.seconds_when_warm] if slow else []

    def rest(self) -> None:
        """Put operands back."""
        self._guarded(lambda: self._contender.rest())

    def run(self) -> None:
        """Compute once."""
        self._guarded(lambda: self._contender.run())

    def time(self, repeats: int, synchronize: Callable[[], None]) -> list[float]:
        """Return the seconds of each repeat; none once it is unavailable."""
        samples = []
        for _ in range(repeats):
            self.rest()
            seconds = time_call(self.run, synchronize)
            if self.reason is None:
                samples.append(seconds)
        return samples

    def check(self) -> None:
        """Compare the result, and keep what else is worth keeping."""

        def look() -> None:
            found = self._contender.check()
            self.checked = None if found is None else dict(found)
            self.details = self._contender.details()

        self._guarded(look)

    def release(self) -> None:
        """Give back what was taken, if anything was."""
        if self._prepared:
            self._prepared = False
            self._contender.release()

    def to_json(self, operations: float, ratio: Mapping[str, float] | None) -> dict[str, Any]:
        """Return what is known of it."""
        if self.reason is not None or self.timing is None:
            record: dict[str, Any] = {"status": "unavailable", "reason": self.reason}
            return record | {"about": self.about, "ours": self.ours}
        return {
            "status": "measured",
            "about": self.about,
            "bound": self.bounds,
            "seconds": self.timing.to_json(),
            "GFLOPS": operations / self.timing.median / 1e9,
            "ratio": None if ratio is None else dict(ratio),
            "check": self.checked,
            "details": self.details,
            "ours": self.ours,
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
