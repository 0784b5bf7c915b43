"""`plan`: how a call would run, and how long it would take, without running it."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Mapping
from typing import Any

from ooc_cudnn.arrays.operands import wrap
from ooc_cudnn.devices import get_device
from ooc_cudnn.devices.machines import named_machine
from ooc_cudnn.devices.view import WIDEST_ACCESS_BYTES
from ooc_cudnn.functions import (
    batch_normalization,
    chain,
    convolution,
    convolution_backward,
    elementwise,
    fused,
    pooling,
    softmax,
)
from ooc_cudnn.functions.description import Description, given_results
from ooc_cudnn.functions.planning import Planned, Target, plan_call
from ooc_cudnn.memory.limit import limit_bytes
from ooc_cudnn.operations.splittable import Splittable
from ooc_cudnn.pipeline.plan import Plan
from ooc_cudnn.pipeline.planner import with_alternative
from ooc_cudnn.pipeline.pricing import Request
from ooc_cudnn.settings import current
from ooc_cudnn.settings_table import Settings
from ooc_cudnn.tensor import ORDERS, TensorSpec
from ooc_cudnn.units import parse_limit, resolve_limit
from perfmodel import MachineModel

#: Every public function that can be planned, and what describes its call.
FUNCTIONS = {
    **convolution.DESCRIBED,
    **convolution_backward.DESCRIBED,
    **elementwise.DESCRIBED,
    **pooling.DESCRIBED,
    **softmax.DESCRIBED,
    **batch_normalization.DESCRIBED,
    **fused.DESCRIBED,
    **chain.DESCRIBED,
}


def plan(
    function: str,
    *,
    machine: MachineModel | str | os.PathLike[str] | None = None,
    memory_limit: int | float | str | None = None,
    out: Any = None,
    **arguments: Any,
) -> Plan:
    """Return the plan of a call: split, memory, predicted seconds. No data is touched.

    Parameters
    ----------
    function : str
        Name of a public function, "convolution_forward" for one.
    machine : MachineModel, path or name of a shipped profile, optional
        Plan for that machine, without asking a device: in whichever memory order is predicted to
        be faster, and without the scratch memory that cuDNN might ask for. When left out, it is
        the plan that the call would be run by, here and now: with the device, the machine model
        and the memory limit of the settings.
    memory_limit : int, str or float, optional
        Device memory the call may hold: bytes, "16GiB", or a fraction of the machine's. Else the
        setting ``memory_limit``, else 90 % of the machine's memory.
    out : TensorSpec or array, optional
        Where the result goes; by the functions' own rule when left out.
    **arguments
        The function's own, by name. An operand is an array or a `TensorSpec`.

    Returns
    -------
    Plan
        ``print(plan)`` shows it as a table.

    Raises
    ------
    ValueError, TypeError
        For an unknown function (the nearest is suggested) and whatever the function itself would
        raise; for a `machine` whose memory is not known, without a `memory_limit`.
    PlanInfeasibleError
        If the memory limit admits no plan, with the smallest that would.

    Examples
    --------
    >>> from ooc_cudnn.tensor import TensorSpec
    >>> x, w = TensorSpec((512, 64, 256, 256)), TensorSpec((64, 64, 3, 3), placement="device")
    >>> found = plan("convolution_forward", x=x, w=w, padding=1, out=x, machine="h200",
    ...              memory_limit="16GiB")
    >>> found.binding_stage, found.device_bytes < 2**34, 0.15 < found.seconds < 0.2
    ('copy_out', True, True)
    """
    found = planned_call(function, machine, memory_limit, out, arguments)
    if len(found.parts) > 1:
        return found.plan
    return with_alternative(found.parts[0].request, found.plan)


def plan_request(
    function: str,
    *,
    machine: MachineModel | str | os.PathLike[str] | None = None,
    memory_limit: int | float | str | None = None,
    out: Any = None,
    **arguments: Any,
) -> Request:
    """Return what `plan` would plan: what `pipeline.simulate` takes beside the plan.

    Raises
    ------
    ValueError
        For a chain that is cut into shorter ones.
    """
    (part,) = planned_call(function, machine, memory_limit, out, arguments).parts
    return part.request


def described(function: str, **arguments: Any) -> Splittable:
    """Return a call of a public function as what it may be cut into.

    Parameters
    ----------
    function : str
    **arguments
        As for `plan`.
    """
    settings = current()
    description, specs, _ = _describe(function, arguments, None, settings)
    given = given_results(description, None)
    outs = {name: _spec(array, name, settings)[0] for name, array in given.items()}
    return _build(description, specs, outs, settings)


def _build(
    description: Description,
    specs: Mapping[str, TensorSpec],
    outs: Mapping[str, TensorSpec],
    settings: Settings,
) -> Splittable:
    further = {n: _spec(array, n, settings)[0] for n, array in description.beside.items()}
    further |= {name: outs[name] for name in description.updated}
    return description.build({**specs, **further}, settings)


def planned_call(
    function: str,
    machine: MachineModel | str | os.PathLike[str] | None,
    memory_limit: int | float | str | None,
    out: Any,
    arguments: Mapping[str, Any],
) -> Planned:
    """Return what `plan` returns, with the requests and the runs that make up the call."""
    settings = current()
    limit: int | float | None = settings.memory_limit
    if memory_limit is not None:
        limit = parse_limit(memory_limit, name="memory_limit")
    description, specs, aligned = _describe(function, arguments, out, settings)
    outs = {}
    for name, array in given_results(description, out).items():
        given = name if name in description.updated else "out"
        outs[name], aligned[name] = _spec(array, given, settings)
    made = _build(description, specs, outs, settings)
    if machine is not None:
        model = named_machine(machine)
        room = _limit_of(model, limit)
        target = Target(model, room, room, ORDERS, None, settings.overlap)
        return plan_call(description.function, made, specs, outs, target, aligned=aligned)
    device = get_device(settings.device)
    with device.arena.lock:
        target = Target.here(device, limit_bytes(device, limit), made.dtype, settings)
        return plan_call(description.function, made, specs, outs, target, aligned=aligned)


def describe_call(function: str, arguments: Mapping[str, Any], out: Any) -> Description:
    """Describe a call, its arguments bound as the public function would.

    Raises
    ------
    ValueError, TypeError
        As `plan`.
    """
    if function not in FUNCTIONS:
        nearest = difflib.get_close_matches(str(function), FUNCTIONS, n=1, cutoff=0.4)
        hint = f" (did you mean {nearest[0]!r}?)" if nearest else ""
        raise ValueError(f"function={function!r} is not known{hint}; it is {_any_of(FUNCTIONS)}")
    public, describe = FUNCTIONS[function]
    try:
        bound = inspect.signature(public).bind(**arguments)
    except TypeError as error:
        raise TypeError(f"{function}: {error}") from None
    bound.apply_defaults()
    del bound.arguments["out"]
    # Where `out` shapes the call: its shape is the result's, or nothing is done in place.
    shaped_by_out = {"_out": out, "_apart": out is not None}
    taken = inspect.signature(describe).parameters
    bound.arguments.update({n: value for n, value in shaped_by_out.items() if n in taken})
    return describe(**bound.arguments)


def _describe(
    function: str, arguments: Mapping[str, Any], out: Any, settings: Settings
) -> tuple[Description, dict[str, TensorSpec], dict[str, bool]]:
    """Describe a call; its operands as specs, and whether they are aligned."""
    description = describe_call(function, arguments, out)
    specs, aligned = {}, {}
    for name, operand in description.arrays.items():
        specs[name], aligned[name] = _spec(operand, name, settings)
    return description, specs, aligned


def _any_of(names: Mapping[str, Any]) -> str:
    return "one of " + ", ".join(names)


def _spec(operand: Any, name: str, settings: Settings) -> tuple[TensorSpec, bool]:
    """Return an operand's spec and whether it starts on a 16-byte boundary."""
    if isinstance(operand, TensorSpec):
        return operand, True
    try:
        wrapped = wrap(operand, get_device(settings.device), name=name)
    except TypeError as error:
        if hasattr(operand, "dtype"):
            raise
        raise TypeError(f"{name} must be an array or a TensorSpec, not {operand!r:.60}") from error
    return wrapped.spec, wrapped.pointer % WIDEST_ACCESS_BYTES == 0


def _limit_of(machine: MachineModel, limit: int | float | None) -> int:
    """Resolve a memory limit on a machine that is not at hand."""
    if isinstance(limit, int):
        return limit
    if machine.device_bytes is None:
        raise ValueError(
            f"the machine model {machine.name!r} does not say how much memory its device has; "
            'give memory_limit in bytes, as in memory_limit="16GiB"'
        )
    return resolve_limit(limit, machine.device_bytes)
