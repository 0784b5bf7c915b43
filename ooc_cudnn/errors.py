"""The errors that users meet: each carries its numbers, and its message ends with what to do.

Bad arguments raise plain ``ValueError`` and ``TypeError``; the classes here are for what goes wrong
with good arguments. Each also derives from the built-in error that a caller would expect, so
``except MemoryError`` works without knowing this library. All of them can be pickled.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ooc_cudnn.units import format_bytes


class OocError(Exception):
    """The root of this library's errors.

    Examples
    --------
    >>> issubclass(PlanInfeasibleError, OocError) and issubclass(PlanInfeasibleError, ValueError)
    True
    """

    def __reduce__(self) -> tuple[object, ...]:
        # Exception would call the class with the message alone; the fields are in __dict__.
        return _empty, (type(self), self.args), self.__dict__


def _empty(kind: type[OocError], arguments: tuple[object, ...]) -> OocError:
    # Not kind.__new__: under two bases that is MemoryError's, which Python refuses to call here.
    return Exception.__new__(kind, *arguments)


@dataclass(eq=False, repr=False, kw_only=True)
class PlanInfeasibleError(OocError, ValueError):
    """No split of the call fits the memory limit.

    Parameters
    ----------
    function : str
        The public function that was called.
    limit_bytes : int
        The memory limit it was planned under.
    smallest_bytes : int or None
        The smallest limit that would do; None where none would.
    reason : str
        Where none would, why.
    beside_bytes : int
        Of the smallest, what else is on the device takes: arrays, and what is made there.
    instead : str
        What may do under a smaller limit.

    Examples
    --------
    >>> error = PlanInfeasibleError(
    ...     function="convolution_forward", limit_bytes=2**20, smallest_bytes=2**21 + 256
    ... )
    >>> print(error)
    convolution_forward has no plan within 1.00 MiB of device memory; the least that would do is \
2.00 MiB. Set memory_limit=2097408 or more.
    """

    function: str
    limit_bytes: int
    smallest_bytes: int | None
    reason: str = ""
    beside_bytes: int = 0
    instead: str = ""

    def __post_init__(self) -> None:
        if self.smallest_bytes is None:
            message = f"{self.function} has no plan, whatever the memory limit: {self.reason}"
        else:  # The advice carries the exact number: a rounded one could be too small.
            held = f", {format_bytes(self.beside_bytes)} of it for what else is on the device"
            message = (
                f"{self.function} has no plan within {format_bytes(self.limit_bytes)} of device "
                f"memory; the least that would do is {format_bytes(self.smallest_bytes)}"
                f"{held if self.beside_bytes else ''}. "
                f"Set memory_limit={self.smallest_bytes} or more"
                f"{f', or {self.instead}' if self.instead else ''}."
            )
        super().__init__(message)


@dataclass(eq=False, repr=False, kw_only=True)
class _OutOfMemoryError(OocError, MemoryError):
    """Base of the errors of both kinds of memory; see `DeviceOutOfMemoryError`."""

    _memory: ClassVar[str]
    _setting: ClassVar[str]
    _freeable: ClassVar[str]

    requested_bytes: int
    available_bytes: int
    limit_bytes: int | None
    held_bytes: int
    purpose: str

    def __post_init__(self) -> None:
        limit_bytes, held_bytes = self.limit_bytes, self.held_bytes
        needed_bytes = held_bytes + self.requested_bytes
        if limit_bytes is not None and needed_bytes > limit_bytes:
            advice = (
                f"Set {self._setting}={needed_bytes} or more, or free {self._freeable} that you "
                "no longer need."
            )
        else:
            obtainable_bytes = max(1, held_bytes + self.available_bytes)
            advice = (
                "The machine has no more to give: free memory that other programs or libraries "
                f"hold, or set {self._setting}={obtainable_bytes} or less."
            )
        limit = "no limit set" if limit_bytes is None else f"limit {format_bytes(limit_bytes)}"
        super().__init__(
            f"no room for {format_bytes(self.requested_bytes)} of {self._memory} for "
            f"{self.purpose}: {format_bytes(self.available_bytes)} available ({limit}, ooc_cudnn "
            f"holds {format_bytes(held_bytes)}). {advice}"
        )


class DeviceOutOfMemoryError(_OutOfMemoryError):
    """Device memory ran out: the limit, or the device itself.

    Parameters
    ----------
    requested_bytes : int
        What was asked for.
    available_bytes : int
        What could have been given.
    limit_bytes : int or None
        The limit in effect; None if there is none.
    held_bytes : int
        What the library held at that moment.
    purpose : str
        What it was for, as a noun: "weights", "a ring buffer", "the cuDNN workspace".

    Examples
    --------
    >>> error = DeviceOutOfMemoryError(
    ...     requested_bytes=2**30, available_bytes=2**29, limit_bytes=2**30, held_bytes=2**29,
    ...     purpose="weights",
    ... )
    >>> print(error)
    no room for 1.00 GiB of device memory for weights: 512.00 MiB available (limit 1.00 GiB, \
ooc_cudnn holds 512.00 MiB). Set memory_limit=1610612736 or more, or free device arrays that you \
no longer need.
    """

    _memory = "device memory"
    _setting = "memory_limit"
    _freeable = "device arrays"


class HostOutOfMemoryError(_OutOfMemoryError):
    """Pinned host memory ran out: its limit, or the machine's memory.

    Parameters
    ----------
    requested_bytes, available_bytes, limit_bytes, held_bytes, purpose
        As in `DeviceOutOfMemoryError`, counted in pinned host memory.

    Examples
    --------
    >>> error = HostOutOfMemoryError(
    ...     requested_bytes=2**30, available_bytes=2**29, limit_bytes=None, held_bytes=0,
    ...     purpose="staging buffers",
    ... )
    >>> print(error)
    no room for 1.00 GiB of pinned host memory for staging buffers: 512.00 MiB available (no limit \
set, ooc_cudnn holds 0 B). The machine has no more to give: free memory that other programs or \
libraries hold, or set host_memory_limit=536870912 or less.
    """

    _memory = "pinned host memory"
    _setting = "host_memory_limit"
    _freeable = "pinned arrays"


@dataclass(eq=False, repr=False, kw_only=True)
class VerificationError(OocError, ArithmeticError):
    """A recomputed output patch differs from the result (setting ``verify``).

    Parameters
    ----------
    function : str
        The public function that was called.
    region : object
        The region of the output that was recomputed; printed as it prints itself.
    expected, actual : float
        The worst element of the patch, recomputed in float64 and as the device computed it.
    error : float
        How far they are apart, in the measure of `tolerance`.
    tolerance : float
        How far they may be.

    Examples
    --------
    >>> error = VerificationError(
    ...     function="convolution_forward", region="[0:1, 3:4, 8:16]", expected=1.0, actual=1.5,
    ...     error=0.5, tolerance=1e-5,
    ... )
    >>> print(error)  # doctest: +ELLIPSIS
    convolution_forward is wrong in region [0:1, 3:4, 8:16]: expected 1.0, got 1.5 (error 0.5, \
tolerance 1e-05). Do not use this result: ...
    """

    function: str
    region: object
    expected: float
    actual: float
    error: float
    tolerance: float

    def __post_init__(self) -> None:
        super().__init__(
            f"{self.function} is wrong in region {self.region}: expected {self.expected!s}, got "
            f"{self.actual!s} (error {self.error:.3g}, tolerance {self.tolerance:.3g}). Do not use "
            "this result: run `ooc-cudnn doctor`, try another cuDNN version or a smaller "
            "memory_limit (smaller pieces avoid cuDNN's faults on huge ones), and report it."
        )


@dataclass(eq=False, repr=False, kw_only=True)
class _RemedyError(OocError, RuntimeError):
    """A reason and its remedy, as two sentences."""

    reason: str = field(kw_only=False)
    remedy: str

    def __post_init__(self) -> None:
        super().__init__(f"{self.reason.rstrip('.')}. {self.remedy}")


class DeviceUnavailableError(_RemedyError):
    """The device that was asked for cannot be used: no GPU, no driver, a broken cuDNN.

    Parameters
    ----------
    reason : str
        What was found.
    remedy : str
        What mends it, as a command where there is one.

    Examples
    --------
    >>> print(DeviceUnavailableError(
    ...     "CuPy is not installed", remedy="Run `pip install 'ooc-cudnn[cuda13]'`."
    ... ))
    CuPy is not installed. Run `pip install 'ooc-cudnn[cuda13]'`.
    """


@dataclass(eq=False, repr=False, kw_only=True)
class CudnnError(_RemedyError):
    """cuDNN refused a call that this library made.

    Parameters
    ----------
    reason : str
        The call and what cuDNN said.
    remedy : str, optional
        What to do.

    Examples
    --------
    >>> print(CudnnError("no engine for int8 convolutions"))
    no engine for int8 convolutions. Run `ooc-cudnn doctor` to see which cuDNN is loaded.
    """

    remedy: str = "Run `ooc-cudnn doctor` to see which cuDNN is loaded."


@dataclass(eq=False, repr=False, kw_only=True)
class SolverError(_RemedyError):
    """The solver of the planner's programs is missing, or failed.

    Parameters
    ----------
    reason : str
        What was found.
    remedy : str, optional
        What to do.

    Examples
    --------
    >>> print(SolverError("HiGHS failed: numerical difficulties"))
    HiGHS failed: numerical difficulties. Another policy, or another version of SciPy, may do.
    """

    remedy: str = "Another policy, or another version of SciPy, may do."


@dataclass(eq=False, repr=False, kw_only=True)
class InternalError(_RemedyError):
    """A fault of this library that it noticed before it could give a wrong number.

    Parameters
    ----------
    reason : str
        What does not fit what.
    remedy : str, optional
        What to do.

    Examples
    --------
    >>> print(InternalError("x has other strides than its graph was built for"))
    x has other strides than its graph was built for. This is a fault of ooc_cudnn, not of the \
call; nothing wrong was computed. Please report it with this message and the call.
    """

    remedy: str = (
        "This is a fault of ooc_cudnn, not of the call; nothing wrong was computed. "
        "Please report it with this message and the call."
    )
