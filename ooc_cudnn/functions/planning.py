"""From a described call to its plan: the same way whether it then runs or is only looked at."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ooc_cudnn.devices.base import Device
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.machines import machine_for
from ooc_cudnn.operations.chain import Chain
from ooc_cudnn.pipeline.plan import Plan
from ooc_cudnn.pipeline.planner import AskWorkspace, make_plan
from ooc_cudnn.pipeline.pricing import Request
from ooc_cudnn.settings_table import Settings
from ooc_cudnn.tensor import TensorSpec, packed_strides
from perfmodel import MachineModel

#: Makes the chain of a call from the operands' specs and the settings; raises on bad arguments.
Build = Callable[[Mapping[str, TensorSpec], Settings], Chain]


class Description(NamedTuple):
    """What a public function is asked to do, before it is known whether to run or only to plan it.

    Attributes
    ----------
    function : str
        The public function's name.
    build : callable
        Makes the chain.
    arrays : mapping
        The operands in the chain's order, x first, without the result: arrays, or specs to plan.
    parameters : hashable
        All arguments that shape the chain: with the specs and the settings, what a plan depends on.
    beta : float
        Whether the result's old content counts; then `out` is required.
    """

    function: str
    build: Build
    arrays: Mapping[str, Any]
    parameters: Hashable
    beta: float


class Target(NamedTuple):
    """What a call is planned for.

    Attributes
    ----------
    machine : MachineModel
    limit_bytes, room_bytes : int
        The memory limit, and what of it is not taken by arrays that the user holds.
    layouts : tuple of str
        Memory orders that windows can be computed in.
    ask_workspace : callable, optional
        `Device.workspace`; None where there is no device to ask.
    overlap : bool
    """

    machine: MachineModel
    limit_bytes: int
    room_bytes: int
    layouts: tuple[str, ...]
    ask_workspace: AskWorkspace | None
    overlap: bool

    @classmethod
    def here(cls, device: Device, limit: int, dtype: str, settings: Settings) -> Target:
        """The device in use, as the settings have it."""
        return cls(
            machine_for(device, settings.machine),
            limit,
            limit - device.arena.array_bytes,
            device.layouts(dtype),
            device.workspace,
            settings.overlap,
        )


class Planned(NamedTuple):
    """A plan, the request it answers, and the device memory that it could choose from."""

    request: Request
    plan: Plan
    available_bytes: int


def plan_call(
    function: str,
    chain: Chain,
    operands: Mapping[str, TensorSpec],
    out: TensorSpec | None,
    target: Target,
    *,
    aligned: Mapping[str, bool],
    share: float = 1.0,
) -> Planned:
    """Plan a call on operands, its result where `out` says or where the functions' rule puts it.

    Parameters
    ----------
    aligned : mapping
        Whether each operand, and y, starts on a 16-byte boundary.
    share : float
        Of the available memory that may be used.

    Raises
    ------
    ValueError, TypeError
        If `out` does not fit the result.
    PlanInfeasibleError
        With the smallest limit that would do.
    """
    specs = dict(operands)
    specs["y"], available = place_result(chain, specs["x"], out, target.room_bytes)

    def planned() -> Planned:
        request = make_request(
            function,
            chain,
            specs,
            target.machine,
            max(int(available * share), 0),
            target.layouts,
            overlap=target.overlap,
            aligned=aligned,
        )
        return Planned(request, make_plan(request, target.ask_workspace), available)

    try:
        try:
            return planned()
        except PlanInfeasibleError:
            if out is not None or specs["y"].placement != "device":
                raise
            # A new result that leaves no room to work in goes to the host.
            specs["y"], available = replace(specs["y"], placement="pinned"), target.room_bytes
            return planned()
    except PlanInfeasibleError as error:
        # The limit to set counts the arrays that take their share of it.
        raise PlanInfeasibleError(
            function=function,
            limit_bytes=target.limit_bytes,
            smallest_bytes=error.smallest_bytes + target.limit_bytes - available,
        ) from None


def check_beta(beta: float, out: object) -> None:
    """Raise ValueError if there is nothing for beta to scale."""
    if out is None and beta:
        raise ValueError(f"beta={beta} needs out, whose content it scales")


def make_request(
    function: str,
    chain: Chain,
    specs: Mapping[str, TensorSpec],
    machine: MachineModel,
    memory_limit: int,
    layouts: tuple[str, ...],
    *,
    overlap: bool,
    aligned: Mapping[str, bool],
) -> Request:
    """Describe a call to the planner.

    Parameters
    ----------
    aligned : mapping
        Whether each operand starts on a 16-byte boundary.
    """
    x_order = specs["x"].order or "channels_first"
    in_place = []
    for name, spec in specs.items():
        packed = spec.strides == packed_strides(spec.shape, spec.order or "channels_first")
        if spec.placement == "device" and packed and aligned[name]:
            in_place.append((name, spec.strides[0] * spec.itemsize % 16 == 0))
    return Request(
        function=function,
        chain=chain,
        operands=tuple(specs.items()),
        in_place=tuple(in_place),
        orders=tuple((name, spec.order or x_order) for name, spec in specs.items()),
        machine=machine,
        memory_limit=memory_limit,
        # An order that needs no re-laying comes first: it is taken when the seconds are equal.
        layouts=tuple(sorted(layouts, key=lambda layout: layout != x_order)),
        overlap=overlap,
    )


def place_result(
    chain: Chain, x: TensorSpec, out: TensorSpec | None, room_bytes: int
) -> tuple[TensorSpec, int]:
    """Return the result's spec, and the device memory that remains for the call.

    Without `out` the result goes where x's placement and order say. One that is still to be
    allocated on the device takes its room from the limit.

    Raises
    ------
    ValueError, TypeError
        If `out` does not fit the result.
    """
    y = chain.operands["y"]
    if out is not None:
        if out.shape != y.shape:
            raise ValueError(f"out must have shape {y.shape}, not {out.shape}")
        if out.dtype != y.dtype:
            raise TypeError(f"out must be {y.dtype} like x, not {out.dtype}")
        return out, room_bytes
    order = x.order or "channels_first"
    strides = packed_strides(y.shape, order)
    if x.placement != "device":
        placement = "pinned" if x.placement == "pinned" else "pageable"
        return TensorSpec(y.shape, y.dtype, placement, strides), room_bytes
    spec = TensorSpec(y.shape, y.dtype, "device", strides)
    if spec.nbytes <= room_bytes:
        return spec, room_bytes - spec.nbytes
    return TensorSpec(y.shape, y.dtype, "pinned", strides), room_bytes
