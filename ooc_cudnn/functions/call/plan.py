"""Planning of a described call: the same whether it then runs or is only looked at."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from ooc_cudnn.engines.target import PlannedCall, Target, make_request
from ooc_cudnn.engines.trials import plan_after_trials
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.functions.call.plan_chain import plan_segments
from ooc_cudnn.operations.core.call import Operand, TiledCall
from ooc_cudnn.tensor import ITEM_BYTES, TensorSpec, packed_strides
from ooc_cudnn.units import format_bytes
from perfmodel import MachineModel

__all__ = [
    "PlannedCall",
    "Target",
    "make_request",
    "place_results",
    "plan_call",
]

#: What a process can address; no result is larger.
MOST_BYTES = 2**47


def plan_call(
    function: str,
    chain: TiledCall,
    operands: Mapping[str, TensorSpec],
    outs: Mapping[str, TensorSpec],
    target: Target,
    *,
    aligned: Mapping[str, bool],
    share: float = 1.0,
) -> PlannedCall:
    """Plan a call, its results where `outs` says or where the functions' rule puts them.

    Parameters
    ----------
    outs : mapping
        Specs of the results that are given.
    aligned : mapping
        Whether each operand, and each result that is given, starts on a 16-byte boundary.
    share : float
        Of the available memory that may be used.

    Raises
    ------
    ValueError, TypeError
        If a result does not fit what is given for it.
    PlanInfeasibleError
        With the smallest limit that would do.
    """
    available = target.room_bytes

    def planned(*, on_device: bool) -> PlannedCall:
        nonlocal available
        placed, available = place_results(
            chain, operands, outs, target.room_bytes, on_device=on_device
        )
        request = make_request(
            function,
            chain,
            {**operands, **placed},
            target.machine,
            max(int(available * share), 0),
            target.layouts,
            overlap=target.overlap,
            aligned=aligned,
        )

        def make(
            machine: MachineModel, layouts: tuple[str, ...], *, ask: bool = True, sparing: int = 0
        ) -> PlannedCall:
            made = replace(request, machine=machine, layouts=layouts)
            return plan_segments(made, target.asking(ask=ask, sparing=sparing), available, aligned)

        if target.trial_device is None:
            return make(target.machine, request.layouts)
        return plan_after_trials(
            make, request.layouts, target.machine, target.trial_device, target.limit_bytes
        )

    try:
        try:
            return planned(on_device=True)
        except PlanInfeasibleError:
            if available == target.room_bytes:
                raise
            # New results that leave no room to work in go to the host.
            return planned(on_device=False)
    except PlanInfeasibleError as error:
        # The limit to set counts the arrays that take their share of it.
        smallest, beside = error.smallest_bytes, target.limit_bytes - available
        raise PlanInfeasibleError(
            function=function,
            limit_bytes=target.limit_bytes,
            smallest_bytes=None if smallest is None else smallest + beside,
            reason=error.reason,
            beside_bytes=beside,
        ) from None


def place_results(
    chain: TiledCall,
    operands: Mapping[str, TensorSpec],
    outs: Mapping[str, TensorSpec],
    room_bytes: int,
    *,
    on_device: bool = True,
) -> tuple[dict[str, TensorSpec], int]:
    """Return the results' specs, and the device memory that remains for the call.

    A result that is not given goes where the placement and the order of the leading operand say.
    One that is still to be allocated on the device takes its room from the limit; one that does not
    fit there, or must not be there (`on_device`), is pinned.

    Raises
    ------
    ValueError, TypeError
        If a result does not fit what is given for it.
    """
    lead = {**operands, **outs}[chain.lead]
    placed = {}
    for name in chain.results:
        operand = chain.operands[name]
        _check_size(name, operand)
        if name in outs:
            _check_result("out" if len(chain.results) == 1 else name, outs[name], operand)
            placed[name] = outs[name]
            continue
        order = lead.order or "channels_first"
        strides = packed_strides(operand.shape, order)
        placement = "pageable" if lead.placement in ("pageable", "disk") else "pinned"
        spec = TensorSpec(operand.shape, operand.dtype, placement, strides)
        if lead.placement == "device" and on_device and spec.nbytes <= room_bytes:
            spec = replace(spec, placement="device")
            room_bytes -= spec.nbytes
        placed[name] = spec
    return placed, room_bytes


def _check_size(name: str, operand: Operand) -> None:
    nbytes = math.prod(operand.shape) * ITEM_BYTES[operand.dtype]
    if nbytes > MOST_BYTES:
        shape = " x ".join(map(str, operand.shape))
        raise ValueError(
            f"{name} would be {shape}, {format_bytes(nbytes)}: more than any process can hold; "
            "check the shapes, padding, stride and dilation"
        )


def _check_result(name: str, given: TensorSpec, made: Operand) -> None:
    if given.shape != made.shape:
        raise ValueError(f"{name} must have shape {made.shape}, not {given.shape}")
    if given.dtype != made.dtype:
        raise TypeError(f"{name} must be {made.dtype}, the dtype of the result, not {given.dtype}")
