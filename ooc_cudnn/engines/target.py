"""Planning target: device, memory limit, machine model, known engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from ooc_cudnn.call_planner.plan import Plan
from ooc_cudnn.call_planner.planner import AskWorkspace
from ooc_cudnn.call_planner.request import Request
from ooc_cudnn.call_planner.search import LaunchOf
from ooc_cudnn.devices.base import Device
from ooc_cudnn.devices.engines import Option
from ooc_cudnn.devices.machines import machine_for
from ooc_cudnn.devices.tuning_database import tables_of
from ooc_cudnn.devices.view import WIDEST_ACCESS_BYTES
from ooc_cudnn.operations.convolution.gradients import AnyConvolution
from ooc_cudnn.operations.core.call import TiledCall
from ooc_cudnn.operations.core.launch_cache import launches_on
from ooc_cudnn.operations.core.strided_views import channels_of_wider, takes_wider
from ooc_cudnn.pipeline.program import Binding, Program, Task
from ooc_cudnn.settings_table import Settings
from ooc_cudnn.tensor import ORDERS, TensorSpec, packed_strides, same_strides
from perfmodel import MachineModel


class Target(NamedTuple):
    """Target that a call is planned for.

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
    trial_device : Device, optional
        The device on which launches may be tried; None where there is none, where a machine was
        named to predict for, or where plans must not depend on timings (`deterministic`).
    options : callable, optional
        What is known of the engines that can run a convolution, the fastest first
        (`Tables.options`): `machine` has the seconds of the fastest. A device that is asked for
        workspace says which of them a plan has.
    """

    machine: MachineModel
    limit_bytes: int
    room_bytes: int
    layouts: tuple[str, ...]
    ask_workspace: AskWorkspace | None
    overlap: bool
    trial_device: Device | None = None
    options: Callable[[AnyConvolution], Sequence[Option]] | None = None

    @classmethod
    def here(cls, device: Device, limit: int, dtype: str, settings: Settings) -> Target:
        """The device in use, as the settings have it."""
        return cls(
            machine_for(device, settings.machine),
            limit,
            limit - device.arena.array_bytes,
            device.layouts(dtype),
            workspace_of(device),
            settings.overlap,
            None if settings.machine is not None or settings.deterministic else device,
        )

    @property
    def beside_bytes(self) -> int:
        """Bytes of the limit that are taken, by arrays on the device and results made there."""
        return self.limit_bytes - self.room_bytes

    def asking(self, *, ask: bool, sparing: int) -> Target:
        """The same, but not asking the device; or for engines that take less workspace."""
        if not ask:
            return self._replace(ask_workspace=None, options=None)
        if sparing and self.trial_device is not None:
            return self._replace(ask_workspace=workspace_of(self.trial_device, sparing))
        return self


def workspace_of(device: Device, sparing: int = 0) -> AskWorkspace:
    """Return what asks a device for workspace: of engines that take less of it, by `sparing`.

    Plans are remembered by it, as long as nothing else is known of its engines.
    """
    if device.engines is None:
        return device.workspace
    return _Inquiry(device, sparing, tables_of(device).version)


@dataclass(frozen=True)
class _Inquiry:
    device: Device
    sparing: int
    version: int

    def __call__(
        self, launches: tuple[LaunchOf, ...], budget_bytes: int | None
    ) -> tuple[int, tuple[str, ...]] | None:
        return self.device.workspace(launches, budget_bytes, sparing=self.sparing)


class PlannedPart(NamedTuple):
    """One of the tasks that make up a call: most calls are a single one.

    `names` says what its operands are in the call, where they are not called the same.
    """

    request: Request
    plan: Plan
    names: Mapping[str, str]


class PlannedCall(NamedTuple):
    """A plan, the tasks that make it up, and the device memory that it could choose from.

    `between` are the intermediates that the tasks hand on, by name.
    """

    parts: tuple[PlannedPart, ...]
    plan: Plan
    available_bytes: int
    between: Mapping[str, TensorSpec] = MappingProxyType({})

    @property
    def program(self) -> Program:
        """The program of the call: what its tasks hand on goes through host memory."""
        bindings: dict[str, Binding] = {}
        tasks = []
        for part in self.parts:
            binds = {own: part.names.get(own, own) for own in part.request.specs}
            bindings |= {binds[own]: Binding(spec) for own, spec in part.request.operands}
            tasks.append(Task(self.plan.function, part.request, part.plan, binds))
        # in the order of the call's operands, by whose addresses a bound call is known
        order = [*(name for name, _ in self.plan.operands), *self.between]
        return Program(
            self.plan.function,
            tuple(tasks),
            {name: bindings[name] for name in order},
            max(part.plan.device_bytes for part in self.parts),
            self.between,
            self.plan.overlap,
        )


def make_request(
    function: str,
    chain: TiledCall,
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
    lead_order = _order_of(specs[chain.lead]) or "channels_first"
    orders = {name: _order_of(spec) or lead_order for name, spec in specs.items()}
    in_place, wider = [], {}
    for name, spec in specs.items():
        if spec.placement != "device" or not aligned.get(name, True):
            continue
        packed = packed_strides(spec.shape, orders[name])
        channels = channels_of_wider(spec, orders[name])
        if channels and _takes_wider(chain, name, layouts, orders):
            wider[name] = channels
        if name in wider or same_strides(spec.shape, spec.strides, packed):
            image_bytes = spec.strides[0] * spec.itemsize
            in_place.append((name, image_bytes % WIDEST_ACCESS_BYTES == 0))
    return Request(
        function=function,
        chain=chain,
        operands=tuple(specs.items()),
        in_place=tuple(in_place),
        wider=tuple(wider.items()),
        orders=tuple(orders.items()),
        machine=machine,
        memory_limit=memory_limit,
        # An order that needs no re-laying comes first: it is taken when the seconds are equal.
        layouts=tuple(sorted(layouts, key=lambda layout: layout != lead_order)),
        overlap=overlap,
        row_axes=chain.row_axes,
    )


def _order_of(spec: TensorSpec) -> str | None:
    """The memory order in which slots have an operand; None for strides that fit neither order.

    On the device some channels of a tensor are in its order.
    """
    if spec.placement == "device" and len(spec.shape) > 2 and spec.order is None:
        found = (order for order in ORDERS if channels_of_wider(spec, order))
        return next(found, None)
    return spec.order


def _takes_wider(
    chain: TiledCall, name: str, layouts: Sequence[str], orders: Mapping[str, str]
) -> bool:
    """True if a call can be computed on some channels of a wider tensor where they lie."""
    launches = (
        launches_on(chain, chain.whole_piece(sweep), layout=layout, orders=orders)
        for layout in layouts
        for sweep in range(chain.sweeps)
    )
    return all(takes_wider(name, *each) for each in launches if name in each[1])
