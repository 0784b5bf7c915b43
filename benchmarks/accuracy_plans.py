"""Plans of drawn calls, whose operands are specs: nothing is allocated."""

from __future__ import annotations

from typing import Any

import ooc_cudnn
from benchmarks.accuracy_draw import Drawn, Operand
from benchmarks.accuracy_operands import Bound, stored_shape
from ooc_cudnn.functions.call.plan import PlannedCall
from ooc_cudnn.functions.call.plan_api import planned_call
from ooc_cudnn.tensor import TensorSpec, packed_strides
from perfmodel import MachineModel


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
