"""`profile()`: what each call did, in numbers and pictures."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from ooc_cudnn.pipeline.trace import StepTrace, Trace, plot, save_chrome
from ooc_cudnn.units import format_bytes, format_seconds


@dataclass(frozen=True)
class Call:
    """One call as it ran.

    Attributes
    ----------
    function : str
        What ran; of a PyTorch model's step "training_step forward", and "training_step backward".
    plan : Plan, or of a network's step NetworkPlan
        Of a part of a step the whole's, with the figures of that part.
    seconds, predicted_seconds : float
        Measured on the host's clock around the whole run, and what the plan said.
    peak_device_bytes : int
        Most device memory in use, the user's arrays from `empty` included; counted by the arena.
        Memory that is only kept for later is not in use; it counts against the memory limit.
    trace : Trace
        Every step.
    """

    function: str
    plan: Any
    seconds: float
    predicted_seconds: float
    peak_device_bytes: int
    trace: Trace

    @property
    def steps(self) -> tuple[StepTrace, ...]:
        """Every step with its start and end."""
        return self.trace.steps

    @property
    def bytes_in(self) -> int:
        """Bytes copied to the device."""
        return self.trace.moved_bytes("copy_in")

    @property
    def bytes_out(self) -> int:
        """Bytes copied from the device."""
        return self.trace.moved_bytes("copy_out")

    def __str__(self) -> str:
        return (
            f"{self.function}: {format_seconds(self.seconds)} "
            f"(predicted {format_seconds(self.predicted_seconds)}), "
            f"{self.plan.pieces} pieces, {format_bytes(self.bytes_in)} in, "
            f"{format_bytes(self.bytes_out)} out, peak {format_bytes(self.peak_device_bytes)}"
        )


class Profile:
    """The calls of a ``with profile()`` block, in order."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the three streams of each call over time; the format is by the path's suffix.

        Of a network's step what is computed in forward, in backward and again has a colour each.

        Raises
        ------
        ValueError
            If nothing was recorded.
        ModuleNotFoundError
            If matplotlib is missing: ``pip install 'ooc_cudnn[plot]'``.
        """
        self._require_calls()
        # The name, then the figures on a line of their own.
        plot([(str(call).replace(": ", "\n", 1), call.trace) for call in self.calls], path)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a trace that chrome://tracing and ui.perfetto.dev open."""
        self._require_calls()
        save_chrome([(call.function, call.trace) for call in self.calls], path)

    def _require_calls(self) -> None:
        if not self.calls:
            raise ValueError("nothing was recorded: no function was called in the profile block")

    def __str__(self) -> str:
        return "\n".join(str(call) for call in self.calls)


_active: ContextVar[Profile | None] = ContextVar("ooc_cudnn_profile", default=None)


@contextmanager
def profile() -> Iterator[Profile]:
    """Record every call in the block, on this thread; nested blocks each see their own calls.

    Recording times every step and waits for the end of each call; the steps stay the same.

    Examples
    --------
    >>> import numpy as np, ooc_cudnn
    >>> x, w = np.ones((2, 3, 8, 8), "float32"), np.ones((4, 3, 3, 3), "float32")
    >>> with ooc_cudnn.settings(device="host", machine="host"), ooc_cudnn.profile() as p:
    ...     y = ooc_cudnn.convolution_forward(x, w)
    >>> p.calls[0].function, p.calls[0].bytes_out
    ('convolution_forward', 1152)
    """
    recorded = Profile()
    token = _active.set(recorded)
    try:
        yield recorded
    finally:
        _active.reset(token)


def recording() -> list[Call] | None:
    """Return the list that calls are to be added to, or None where nobody records."""
    active = _active.get()
    return active.calls if active is not None else None
