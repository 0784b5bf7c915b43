"""Calls that were measured, as `model_accuracy` keeps them: what ran in which way, and how long."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import ooc_cudnn
from benchmarks.accuracy_draw import Drawn, Operand
from benchmarks.accuracy_operands import Bound, stored_shape
from ooc_cudnn.call_planner.plan import Plan
from ooc_cudnn.call_planner.request import Request
from ooc_cudnn.functions.call.plan import PlannedCall
from ooc_cudnn.functions.call.plan_api import planned_call
from ooc_cudnn.tensor import TensorSpec, packed_strides
from perfmodel import MachineModel, Split


class Way(NamedTuple):
    """How a call runs: what tells its plans apart."""

    split: Split
    order: tuple[str, ...]
    rings: tuple[tuple[str, int], ...]
    layout: str

    @classmethod
    def of(cls, ran: Mapping[str, Any]) -> Way:
        """The way of a plan that was kept."""
        rings = tuple(ran["rings"].items())
        return cls(Split(**ran["split"]), tuple(ran["order"]), rings, ran["layout"])


class Run(NamedTuple):
    """A way that a call ran, and the seconds that it took."""

    way: Way
    seconds: float


@dataclass(frozen=True)
class Measured:
    """A call that ran in one way, or in all those of a grid."""

    kind: str
    drawn: Drawn
    limit_bytes: int
    machine: MachineModel
    runs: tuple[Run, ...]
    then: float = float("nan")

    @cached_property
    def planned(self) -> tuple[Request, Plan] | None:
        """What is planned for it; None where it is cut into several runs."""
        parts = planned_for(self.drawn, self.machine, self.limit_bytes).parts
        return (parts[0].request, parts[0].plan) if len(parts) == 1 else None


def planned_for(drawn: Drawn, machine: MachineModel | str, limit_bytes: int) -> PlannedCall:
    """What is planned for a drawn call, of which no array is needed."""
    given = Described(drawn).arguments()
    with ooc_cudnn.settings(device="host", allow_tf32=drawn.allow_tf32):
        return planned_call(drawn.function, machine=machine, memory_limit=limit_bytes, **given)


class Described(Bound):
    """A drawn call whose operands are specs."""

    def __init__(self, drawn: Drawn) -> None:
        specs: dict[str, Any] = {operand.name: spec_of(operand) for operand in drawn.operands}
        self.drawn, self.arrays = drawn, specs


def spec_of(operand: Operand) -> TensorSpec:
    order = "channels_first" if operand.order == "rows_apart" else operand.order
    strides = packed_strides(stored_shape(operand), order)
    return TensorSpec(operand.shape, operand.dtype, operand.placement, strides)


def measured(path: Path) -> Iterator[Measured]:
    """The calls of a record; those that ran as several calls are left out."""
    held = json.loads(path.read_text(encoding="utf-8"))["measurements"]
    machine = MachineModel.from_json(held["machine model"])
    device = "host" if "host" in path.name else "card"
    for call in held.get("calls", ()):
        if call["parts"] == 1:
            runs = (Run(Way.of(call["profile"]), call["seconds"]),)
            drawn, limit = Drawn.from_json(call["drawn"]), call["memory_limit"]
            then = call["predicted/measured"]
            yield Measured(f"{device}, calls", drawn, limit, machine, runs, then)
    for problem in held.get("splits", ()):
        runs = tuple(Run(Way.of(each), each["seconds"]) for each in problem["splits"])
        drawn, limit = Drawn.from_json(problem["drawn"]), problem["memory_limit"]
        yield Measured(f"{device}, splits", drawn, limit, machine, runs)
