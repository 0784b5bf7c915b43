"""The table of settings: what can be set, how a value is checked, and the frozen snapshot of all.

`SETTINGS` is the only list of what can be set; parsing, documentation and tests follow from it.
`ooc_cudnn.settings` says where a value comes from.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from ooc_cudnn.units import parse_bytes, parse_limit

if TYPE_CHECKING:
    from perfmodel.machine import MachineModel

#: Of the environment variables.
PREFIX: Final = "OOC_CUDNN_"

Progress = Literal["auto"] | bool | Callable[[int, int], object]


def _parse_device(value: object, name: str) -> str:
    choices = "give 'auto', 'cuda', 'cuda:N' (N is the device's number) or 'host'"
    if not isinstance(value, str):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; {choices}")
    device = value.strip().lower()
    if not re.fullmatch(r"auto|host|cuda(:(0|[1-9][0-9]{0,3}))?", device):
        raise ValueError(f"{name}={value!r} is not a device; {choices}")
    return device


def _parse_memory_limit(value: object, name: str) -> int | float | None:
    return None if value is None else parse_limit(value, name=name)


def _parse_host_memory_limit(value: object, name: str) -> int | None:
    return None if value is None else parse_bytes(value, name=name)


_WORDS: Final = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


def _parse_switch(value: object, name: str) -> bool:
    choices = f"give True or False; as text, one of {', '.join(_WORDS)}"
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if not isinstance(value, str):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; {choices}")
    try:
        return _WORDS[value.strip().lower()]
    except KeyError:
        raise ValueError(f"{name}={value!r} is neither on nor off; {choices}") from None


def _parse_count(value: object, name: str) -> int:
    rule = "give a whole number, 0 or more"
    if isinstance(value, str):
        if not re.fullmatch(r"[0-9]{1,18}", value.strip()):
            raise ValueError(f"{name}={value!r} is not a count; {rule}")
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; {rule}")
    if value < 0:
        raise ValueError(f"{name}={value!r} is negative; {rule}")
    return int(value)


def _parse_seconds(value: object, name: str) -> float:
    rule = "give seconds, 0 or more"
    if isinstance(value, bool) or not isinstance(value, str | int | float | np.number):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; {rule}")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    except ValueError:
        raise ValueError(f"{name}={value!r} is no number; {rule}") from None
    if not 0.0 <= seconds < math.inf:
        raise ValueError(f"{name}={value!r} is not a number of seconds; {rule}")
    return seconds


def _parse_machine(value: object, name: str) -> MachineModel | str | None:
    choices = "give a MachineModel, the path of a saved one, or the name of a shipped profile"
    if value is None:
        return None
    if isinstance(value, str | os.PathLike):
        text = os.fspath(value)
        if not isinstance(text, str):
            raise TypeError(f"{name}={value!r} is a path of bytes; {choices}")
        if not text.strip():
            raise ValueError(f"{name}={value!r} is empty; {choices}")
        # Only those who pass one need it loaded. What cannot be used is said here, not in the midst
        # of a call; and a call finds the same file from another folder.
        from perfmodel import shipped_names
        from perfmodel.named import is_file_name, named_machine

        named_machine(text, name=name)
        is_file = text not in shipped_names() and is_file_name(text)
        return os.path.abspath(text) if is_file else text
    from perfmodel.machine import MachineModel

    if not isinstance(value, MachineModel):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; {choices}")
    return value


def _parse_progress(value: object, name: str) -> Progress:
    choices = "give 'auto', True, False or a callable taking (done, total)"
    if callable(value):
        return value
    if isinstance(value, str) and value.strip().lower() == "auto":
        return "auto"
    try:
        return _parse_switch(value, name)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}={value!r} is not a kind of progress; {choices}") from None


@dataclass(frozen=True)
class Setting:
    """One row of the table: what a setting does, and what is gained and lost by changing it.

    `parse` takes a value and the name that an error calls it by; it returns the value in its one
    normal form, or raises ``TypeError`` or ``ValueError``.

    >>> SETTINGS[0].environment_variable
    'OOC_CUDNN_DEVICE'
    """

    name: str
    default: Any
    parse: Callable[[object, str], Any]
    meaning: str
    trade_off: str

    @property
    def environment_variable(self) -> str:
        """The environment variable that sets it."""
        return f"{PREFIX}{self.name.upper()}"


SETTINGS: Final = (
    Setting(
        "device",
        "auto",
        _parse_device,
        "Where operations run: 'cuda', 'cuda:1' (a device by number), 'host' (NumPy on the CPU), "
        "or 'auto': cuda where it works, else host.",
        "'auto' always runs but may run slowly; 'cuda' raises an error where there is no GPU.",
    ),
    Setting(
        "memory_limit",
        None,
        _parse_memory_limit,
        "All the device memory that the library may hold: bytes, '16GiB', or a fraction of what "
        "is free (0.5, '50%'). None is 90 % of what is free.",
        "Less leaves room for other libraries; below a few pieces of 32 MiB per operand, copies "
        "and computation overlap less.",
    ),
    Setting(
        "host_memory_limit",
        None,
        _parse_host_memory_limit,
        "All the pinned (page-locked) host memory that the library may hold: bytes or '64GiB'. "
        "None is no limit. Staging takes up to 256 MiB of it, at the first call that needs it.",
        "Pinned memory copies fastest and cannot be swapped out; too much of it starves the "
        "machine.",
    ),
    Setting(
        "allow_tf32",
        True,
        _parse_switch,
        "Whether float32 convolutions may use TF32 tensor cores. Off is strict float32, enforced.",
        "On is several times faster where computation binds, with 10 bits of mantissa in the "
        "products.",
    ),
    Setting(
        "deterministic",
        False,
        _parse_switch,
        "Whether results repeat bit by bit on one machine.",
        "On leaves out cuDNN's algorithms that add in any order, some of which are the fastest. "
        "Normalizations then give the same bits under every memory limit.",
    ),
    Setting(
        "overlap",
        True,
        _parse_switch,
        "Whether copies and computation run at the same time. Off runs the same steps one by one.",
        "Off is slower by up to three times; it makes a fault easier to find.",
    ),
    Setting(
        "verify",
        0,
        _parse_count,
        "How many random patches of each output are recomputed on the host in float64; a mismatch "
        "raises VerificationError. 0 is none. Steps of networks are not looked at.",
        "Each patch costs milliseconds, and catches a cuDNN that is wrong on this machine.",
    ),
    Setting(
        "machine",
        None,
        _parse_machine,
        "The performance model that plans are made with: a MachineModel, the path of a saved one, "
        "or the name of a shipped profile ('rtx4090'). None is the one fitted on this machine. A "
        "file that is not there or is no machine model is an error when it is set.",
        "Another machine's model gives correct results from slower plans; use it to plan for that "
        "machine.",
    ),
    Setting(
        "tune_seconds",
        0.0,
        _parse_seconds,
        "Seconds that planning a network may take to time what cuDNN's heuristics rank for "
        "convolutions of which nothing was measured, and as many to time what the plan launches "
        "then. What was timed is kept for later processes.",
        "What is not measured is predicted by a line, which may be several times off for one "
        "convolution. A `tune` by hand tries more engines, and checks them.",
    ),
    Setting(
        "planning_seconds",
        10.0,
        _parse_seconds,
        "Seconds of a core that the search for the plan of a network's step may take. They are "
        "counted in work, not by a clock, so that plans are the same on every host. While the "
        "best plan is slow it may take twice as many; a first plan is made in any case.",
        "More may find a faster plan for a small limit, and `explain()` says where it may; with "
        "fewer the first step comes sooner.",
    ),
    Setting(
        "plan_cache",
        True,
        _parse_switch,
        "Whether plans of networks that take long are kept on disk, beside the machine models, and "
        "found there by later processes. A plan that is found is checked and placed anew.",
        "Off plans again in each process, which takes seconds for a large network; nothing is "
        "written then.",
    ),
    Setting(
        "progress",
        "auto",
        _parse_progress,
        "A progress bar: 'auto' (on calls longer than 2 s in a terminal or notebook), True, False, "
        "or a callable that is given (done, total). Beside it a line says for how long a model "
        "is being captured, a step planned, engines measured, kernels compiled or memory "
        "page-locked, and the best plan so far. Nothing is written to a pipe or a file unasked.",
        "A callable runs between the pieces of a call, so a slow one slows the call.",
    ),
)
"""Every setting, in the order of the documentation."""


@dataclass(frozen=True)
class Settings:
    """Every setting at one moment: what `current` returns.

    Frozen and hashable, so it can be part of a cache's key. `machine` and `progress` count in
    comparisons but not in the hash, since what users put there need not be hashable.

    Parameters
    ----------
    device, memory_limit, host_memory_limit, allow_tf32, deterministic, overlap, verify, machine, \
tune_seconds, planning_seconds, plan_cache, progress
        As in `SETTINGS`, each in its normal form. `memory_limit` is bytes (``int``), a fraction of
        the free memory (``float``) or None: see `ooc_cudnn.units.resolve_limit`.
    """

    device: str
    memory_limit: int | float | None
    host_memory_limit: int | None
    allow_tf32: bool
    deterministic: bool
    overlap: bool
    verify: int
    machine: MachineModel | str | None = field(hash=False)
    tune_seconds: float
    planning_seconds: float
    plan_cache: bool
    progress: Progress = field(hash=False)
