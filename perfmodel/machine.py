"""Everything fitted on one machine, as one value and as one file.

A machine file says what it is and in which version, so that an empty, cut-off, foreign or newer
file is told apart and the error names the remedy. Profiles of known machines are shipped with the
package: `shipped("h200")`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from .cached import cached_property
from .compute import ComputeModel
from .files import read_file, replace_file
from .linear import Line
from .record import Record, Table, mapping, number, text
from .samples import Samples
from .transfer import TransferModel

FORMAT = "ooc_cudnn machine model"
#: Version 4 has one term for rows of pinned memory, and one for wide windows.
FORMAT_VERSION = 4

LINE_LENGTH = 100

LARGEST_BYTES = 2**26
"""Larger files were not written here."""

_UNKNOWN_IN_SOME = ("staged_step_seconds", "operand_seconds")
SECONDS = ("call_seconds", "launch_seconds", "step_seconds", *_UNKNOWN_IN_SOME)
"""Seconds of the host for the parts of a call, while the device works on what is issued."""

FEWEST_OPERANDS = 2
"""Operands of the call that `call_seconds` is measured on: one it reads and one it writes."""

BEFORE_SHARE = 0.5
"""Share of `call_seconds` that passes before the device has anything to do: the rest passes while
it works."""

STEPS_OF_A_PIECE = 3
"""It is copied in, computed and copied out: what is slower where threads stage one of its copies,
though they do not issue steps (on an H200, pieces of which small results went to a file took 0.4 to
0.5 ms, three times `staged_step_seconds`)."""

REPEATED_SHARE = 0.3
"""Share of `call_seconds` of a call that copies nothing and is not cut: it is repeated as it was
(on an H200, such calls took 40 to 50 us longer than their kernels, and others 120 to 160)."""

LOSSES = ("copies", "steps")
"""Causes for which computing may lose seconds."""

FROM_DATA_SHEETS = "from data sheets"
UNDATED = ("shipped", FROM_DATA_SHEETS)
"""What stands in place of the date of a calibration."""

REMEDY = "to replace it, run 'ooc-cudnn calibrate'"
"""End of every message of a machine file that cannot be used."""


class MachineFileError(ValueError):
    """A machine file that cannot be used; the message names the file and the remedy."""


@dataclass(frozen=True)
class MachineModel(Record):
    """The fitted performance model of one machine.

    Parameters
    ----------
    name : str
        Short, for people: "h200".
    identity : mapping from str to str
        What the model holds for: gpu, driver, cudnn, host; `note` says where figures come from,
        `device_bytes`, if present, how much memory the device has (a whole number).
    transfer : TransferModel
    compute : ComputeModel
    calibrated : str
        ISO date of the calibration, "shipped", or "from data sheets": nobody measured it.
    call_seconds : float
        What a call takes on the host before its first step (`setup_seconds`) and after that.
    launch_seconds : float
        What the host takes to launch a kernel.
    step_seconds : float
        What the host takes to issue a step, be it a copy or a computation.
    staged_step_seconds : float
        The same where copies are staged: steps go from hand to hand between the threads in front of
        the streams, or whoever issues them contends with those that stage. Where it is less,
        `step_seconds` holds.
    operand_seconds : float
        What each operand takes beyond those two of the call that `call_seconds` stands for.
    losses : mapping from "copies" and "steps" to float
        Seconds, at most 1, that computing loses for each second of copies beside it, and of issuing
        steps. A card loses a little of its memory's bandwidth to copies, and nothing to steps;
        where processors compute they do the rest, too.
    quality : mapping from the name of a line to mapping from str to float
        How each line was found: residual, held_out_error, samples, spread. Empty where unknown.
    samples : mapping from the name of a line to Samples
        What each line was fitted to. Empty where unknown.
    facts : mapping from str to float
        What was measured besides, and predicts nothing; a name ends in its unit.
    """

    name: str
    identity: Mapping[str, str]
    transfer: TransferModel
    compute: ComputeModel
    calibrated: str = "shipped"
    call_seconds: float = 0.0
    launch_seconds: float = 0.0
    step_seconds: float = 0.0
    staged_step_seconds: float = 0.0
    operand_seconds: float = 0.0
    losses: Mapping[str, float] = field(default_factory=dict)
    # plans are remembered by their model: what predicts nothing does not count in its hash
    quality: Mapping[str, Mapping[str, float]] = field(default_factory=dict, hash=False)
    samples: Mapping[str, Samples] = field(default_factory=dict, hash=False)
    facts: Mapping[str, float] = field(default_factory=dict, hash=False)

    optional = (*_UNKNOWN_IN_SOME, "losses")

    def __post_init__(self) -> None:
        text("name", self.name)
        for key, value in self.identity.items():
            if not isinstance(value, str):
                raise TypeError(f"identity[{key!r}] is {value!r}; it must be a string")
        if not self.identity.get("device_bytes", "1").isdecimal():
            count = self.identity["device_bytes"]
            raise ValueError(f"identity['device_bytes'] is {count!r}; it must be a whole number")
        if text("calibrated", self.calibrated) not in UNDATED:
            try:
                datetime.fromisoformat(self.calibrated)
            except ValueError:
                raise ValueError(
                    f"calibrated is {self.calibrated!r}; it must be an ISO date or one of {UNDATED}"
                ) from None
        for name in SECONDS:
            object.__setattr__(self, name, number(name, getattr(self, name)))
        losses = {name: number(f"losses[{name!r}]", held) for name, held in self.losses.items()}
        if any(name not in LOSSES or held > 1.0 for name, held in losses.items()):
            raise ValueError(f"losses is {losses!r}; it must hold at most 1 for each of {LOSSES}")
        object.__setattr__(self, "losses", Table(losses))
        quality = {
            line: Table({name: number(f"quality of {line}: {name}", v) for name, v in held.items()})
            for line, held in self.quality.items()
        }
        object.__setattr__(self, "identity", Table(self.identity))
        object.__setattr__(self, "quality", Table(quality))
        object.__setattr__(self, "samples", Table(self.samples))
        facts = {name: number(name, value, -math.inf) for name, value in self.facts.items()}
        object.__setattr__(self, "facts", Table(facts))

    @cached_property
    def lines(self) -> dict[str, Line]:
        """Every line, of copies and of computing, by the key that `quality` and `samples` have."""
        copies = {
            f"{way}/{placement}": line
            for way in ("copy_in", "copy_out")
            for placement, line in getattr(self.transfer, way).items()
        }
        return copies | dict(self.compute.lines)

    @property
    def device_bytes(self) -> int | None:
        """Memory of the device, or None where the model does not know it.

        Examples
        --------
        >>> from perfmodel import shipped
        >>> shipped("h200").device_bytes
        150754820096
        """
        count = self.identity.get("device_bytes")
        return None if count is None else int(count)

    @property
    def is_of_gpu(self) -> bool:
        """Return whether the device is a GPU: not the host itself.

        Examples
        --------
        >>> from perfmodel import shipped
        >>> shipped("h200").is_of_gpu, shipped("host").is_of_gpu
        (True, False)
        """
        return self.identity.get("gpu", "none") != "none"

    def setup_seconds(self, operands: int = FEWEST_OPERANDS) -> float:
        """Return for how long the device has nothing to do: until the first step is issued.

        Parameters
        ----------
        operands : int
            Of the call, results included: each is looked at.

        Examples
        --------
        >>> from dataclasses import replace
        >>> from perfmodel import shipped
        >>> machine = replace(shipped("h200"), call_seconds=8e-5, step_seconds=1e-5)
        >>> machine.setup_seconds()
        5e-05
        >>> round(replace(machine, operand_seconds=5e-6).setup_seconds(6) * 1e6)
        70
        """
        more = self.operand_seconds * max(operands - FEWEST_OPERANDS, 0)
        return BEFORE_SHARE * self.call_seconds + self.step_seconds + more

    @property
    def repeated_seconds(self) -> float:
        """Return the same for a call of one step, which copies nothing.

        Examples
        --------
        >>> from dataclasses import replace
        >>> from perfmodel import shipped
        >>> round(replace(shipped("h200"), call_seconds=1e-4).repeated_seconds * 1e6)
        30
        """
        return REPEATED_SHARE * self.call_seconds

    def seconds_of_step(self, *, staged: bool) -> float:
        """Return what the host takes to issue a step of a call, which may be staged by threads."""
        return max(self.step_seconds, self.staged_step_seconds * staged)

    def issue_seconds(self, steps: Any, launching: Any, *, staged: Any = 0) -> Any:
        """Return for how long the host is at a call after that, numbers or arrays of them.

        Parameters
        ----------
        steps : float or array
            Copies and computations of the call.
        launching : float or array
            Seconds of the host to launch what is computed.
        staged : float or array
            Of the steps, those that threads issue which stage, or that are issued beside them.

        Examples
        --------
        >>> from dataclasses import replace
        >>> from perfmodel import shipped
        >>> host = replace(shipped("h200"), call_seconds=8e-5, step_seconds=1e-5)
        >>> round(host.issue_seconds(6, 3e-5) * 1e6)
        120
        >>> host = replace(host, staged_step_seconds=3e-5)
        >>> round(host.issue_seconds(6, 3e-5, staged=3) * 1e6)
        180
        """
        each = self.seconds_of_step(staged=False)
        more = staged * (self.seconds_of_step(staged=True) - each)
        issuing = steps * each + more + launching
        return self.call_seconds - self.setup_seconds() + issuing

    def lost_seconds(self, compute: Any, copies: Any, issuing: Any) -> Any:
        """Return what computing loses to what runs beside it, numbers or arrays of them.

        Parameters
        ----------
        compute, copies, issuing : float or array
            Seconds of computing by itself, of copies while it is computing, and of issuing steps.

        Examples
        --------
        >>> from dataclasses import replace
        >>> from perfmodel import shipped
        >>> float(replace(shipped("h200"), losses={"copies": 0.5}).lost_seconds(4.0, 2.0, 1.0))
        1.0
        """
        each, of_steps = (self.losses.get(name, 0.0) for name in LOSSES)
        # beside copies both ways throughout; but at half its speed, if that is faster
        share = min(2.0 * each, 0.5)
        lost = np.minimum(each * copies, share / (1.0 - share) * compute)
        return lost + of_steps * issuing if of_steps else lost

    def to_json(self) -> dict[str, Any]:
        """Return a dict of plain JSON values."""
        about = {"format": FORMAT, "version": FORMAT_VERSION}
        known = {"name": self.name, "calibrated": self.calibrated}
        return {**about, **known, **super().to_json()}

    @classmethod
    def from_json(cls, data: object) -> MachineModel:
        """Build from what `to_json` returned; ValueError says what does not fit."""
        held = mapping("machine model", data)
        if held.get("format") != FORMAT:
            raise ValueError(f"not an ooc_cudnn machine model (its format is not {FORMAT!r})")
        version = held.get("version")
        if type(version) is not int or version < 1:
            raise ValueError(f"version is {version!r}; it must be a whole number of at least 1")
        if version > FORMAT_VERSION:
            raise ValueError(
                f"written by a newer ooc_cudnn (format version {version}; "
                f"this one reads up to {FORMAT_VERSION}), so upgrade ooc_cudnn"
            )
        if version < FORMAT_VERSION:
            raise ValueError(
                f"written by an older ooc_cudnn (format version {version}, now {FORMAT_VERSION}), "
                "which measured less"
            )
        return super().from_json({k: v for k, v in held.items() if k not in ("format", "version")})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to `path`, making its folder; whoever reads sees the old file or the new one."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target, _laid_out(self.to_json()) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> MachineModel:
        """Read a file that `save` wrote.

        Raises
        ------
        MachineFileError
            If the file is empty, cut off, of another kind, or from a newer version.
        OSError
            If there is no such file or it cannot be read: a folder, a pipe or a device, too.
        """
        try:
            content = read_file(path, LARGEST_BYTES)
        except ValueError as error:
            raise MachineFileError(f"machine file {path}: {error}; {REMEDY}") from error
        return cls.parse(content, str(path))

    @classmethod
    def parse(cls, content: bytes, path: str) -> MachineModel:
        """Build from what the file at a path holds; `MachineFileError` says what is wrong."""
        if not content.strip():
            raise MachineFileError(f"machine file {path} is empty; {REMEDY}")
        try:
            data = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise MachineFileError(
                f"machine file {path} is corrupt, not JSON ({error}); {REMEDY}"
            ) from error
        try:
            return cls.from_json(data)
        except (TypeError, ValueError) as error:
            raise MachineFileError(f"machine file {path}: {error}; {REMEDY}") from error


def _laid_out(value: Any, indent: str = "") -> str:
    """JSON in which what is short stands on one line, as does every list."""
    flat = json.dumps(value, allow_nan=False)
    if not isinstance(value, dict) or len(flat) + len(indent) <= LINE_LENGTH:
        return flat
    inner = indent + "  "
    members_ = (
        f"{inner}{json.dumps(name)}: {_laid_out(held, inner)}" for name, held in value.items()
    )
    return "{\n" + ",\n".join(members_) + f"\n{indent}}}"
