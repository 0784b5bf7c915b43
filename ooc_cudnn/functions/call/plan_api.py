"""The planning API of one call: how it would run, and how long, without running it."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Mapping
from typing import Any

from ooc_cudnn.arrays.operands import ArrayRef, array_ref
from ooc_cudnn.call_planner.plan import Plan
from ooc_cudnn.call_planner.request import Request
from ooc_cudnn.devices import get_device
from ooc_cudnn.functions.call.arguments import check_scaling
from ooc_cudnn.functions.call.bind import Bound, bind
from ooc_cudnn.functions.call.decorator import FUNCTIONS
from ooc_cudnn.functions.call.plan import PlannedCall, Target
from ooc_cudnn.functions.call.spec import Description
from ooc_cudnn.memory.limit import limit_bytes
from ooc_cudnn.operations.core.call import TiledCall
from ooc_cudnn.settings import current
from ooc_cudnn.tensor import ORDERS, TensorSpec
from ooc_cudnn.units import MOST_BYTES, parse_limit, resolve_limit
from perfmodel import MachineModel
from perfmodel.named import named_machine


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
    return planned_call(
        function, machine=machine, memory_limit=memory_limit, out=out, **arguments
    ).plan


def plan_request(function: str, **asked: Any) -> Request:
    """Return what `plan` would plan, asked the same: what `simulate` takes beside the plan.

    Raises
    ------
    ValueError
        For a chain that is cut into shorter ones.
    """
    (part,) = planned_call(function, **asked).parts
    return part.request


def tiled_call_of(function: str, **arguments: Any) -> TiledCall:
    """Return a call of a public function as what it may be cut into.

    Parameters
    ----------
    function : str
    **arguments
        As for `plan`.
    """
    return _bound(function, arguments).build(current())


def planned_call(
    function: str,
    *,
    machine: MachineModel | str | os.PathLike[str] | None = None,
    memory_limit: int | float | str | None = None,
    **arguments: Any,
) -> PlannedCall:
    """Return what `plan` returns, with the requests and the runs that make up the call."""
    settings = current()
    limit: int | float | None = settings.memory_limit
    if memory_limit is not None:
        limit = parse_limit(memory_limit, name="memory_limit")
    bound = _bound(function, arguments)
    call = bound.build(settings)
    if machine is not None:
        model = named_machine(machine)
        room = limit_of(model, limit)
        return bound.plan(call, Target(model, room, room, ORDERS, None, settings.overlap))
    device = get_device(settings.device)
    with device.arena.lock:
        target = Target.here(device, limit_bytes(device, limit), call.dtype, settings)
        return bound.plan(call, target)


def describe_call(function: str, arguments: Mapping[str, Any]) -> Description:
    """Describe a call, its arguments bound as the public function would.

    Raises
    ------
    ValueError, TypeError
        As `plan`.
    """
    if function not in FUNCTIONS:
        nearest = difflib.get_close_matches(str(function), FUNCTIONS, n=1, cutoff=0.4)
        hint = f" (did you mean {nearest[0]!r}?)" if nearest else ""
        known = f"one of {', '.join(FUNCTIONS)}"
        raise ValueError(f"function={function!r} is not known{hint}; it is {known}")
    describe = FUNCTIONS[function]
    try:
        inspect.signature(describe).bind(**arguments)
    except TypeError as error:
        raise TypeError(f"{function}: {error}") from None
    values = dict(arguments)
    check_scaling(values)
    return describe(**values)


def _bound(function: str, arguments: Mapping[str, Any]) -> Bound:
    return bind(function, describe_call(function, arguments), _spec_or_array, None)


def _spec_or_array(operand: Any, device: None, *, name: str, written: bool = False) -> ArrayRef:
    """Take an operand; of a spec, what an array that starts on a 16-byte boundary would give."""
    if isinstance(operand, TensorSpec):
        return ArrayRef(None, operand, 0)
    try:
        return array_ref(operand, get_device(current().device), name=name, written=written)
    except TypeError as error:
        if hasattr(operand, "dtype"):
            raise
        raise TypeError(f"{name} must be an array or a TensorSpec, not {operand!r:.60}") from error


def limit_of(machine: MachineModel, limit: int | float | None) -> int:
    """Resolve a memory limit on a machine that is not at hand."""
    if isinstance(limit, int):
        return min(limit, MOST_BYTES)
    if machine.device_bytes is None:
        raise ValueError(
            f"the machine model {machine.name!r} does not say how much memory its device has; "
            'give memory_limit in bytes, as in memory_limit="16GiB"'
        )
    return resolve_limit(limit, machine.device_bytes)
