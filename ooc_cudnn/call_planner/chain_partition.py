"""Split a chain that does not fit into shorter ones; intermediates spill to the host.

A piece of a chain needs room for the widest of its intermediates, and each of its operations rows
enough to be worth a launch. Where memory is short for that, two chains with an intermediate between
them in pinned memory can be faster, or be what fits at all.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from ooc_cudnn.call_planner.plan import Plan
from ooc_cudnn.call_planner.request import Request
from ooc_cudnn.call_planner.search import Search
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.tensor import TensorSpec, packed_strides
from ooc_cudnn.units import format_bytes

#: Of the limit, what the smallest piece of a shorter chain may take: the rest is for larger pieces.
SHARE_OF_SMALLEST = 1 / 8
#: A chain is worth cutting once its pieces make it this much slower than one large piece.
WORTH_CUTTING = 1.1


class ChainPart(NamedTuple):
    """A shorter chain, and what its operands are in the whole: its own name -> theirs.

    What lies between two parts is called "between <index of the operation that reads it>".
    """

    chain: Chain
    names: Mapping[str, str]


def partition_chain(chain: Chain, cuts: tuple[int, ...]) -> tuple[ChainPart, ...]:
    """Cut a chain before the operations of the given indices."""
    ends = (*cuts, len(chain.operations))
    return tuple(
        sub_chain(chain, start, stop) for start, stop in zip((0, *cuts), ends, strict=True)
    )


def sub_chain(chain: Chain, start: int, stop: int) -> ChainPart:
    """Operations [start, stop) of a chain; alpha and beta go with the last one."""
    last = stop == len(chain.operations)
    part = replace(
        chain,
        operations=chain.operations[start:stop],
        alpha=chain.alpha if last else 1.0,
        beta=chain.beta if last else 0.0,
    )
    names = {"x": f"between {start}" if start else "x", "y": "y" if last else f"between {stop}"}
    for local, whole in zip(part.parameter_names, chain.parameter_names[start:stop], strict=True):
        names |= zip(local, whole, strict=True)
    return ChainPart(part, names)


def choose_cuts(chain: Chain, fits: Callable[[int, int], bool]) -> tuple[int, ...] | None:
    """Cut a chain into as few parts as fit, where its intermediates are smallest.

    Parameters
    ----------
    fits : callable
        Whether the smallest piece of operations [start, stop) fits: if so, then that of fewer.

    Returns
    -------
    tuple of int, or None
        None if some operations that must stay together do not fit by themselves.
    """
    ends = [*chain.seams, len(chain.operations)]
    cuts: list[int] = []
    start = 0
    while True:
        later = ends[bisect_right(ends, start) :]

        def is_too_long(end: int, start: int = start) -> bool:
            return not fits(start, end)

        fitting = later[: bisect_left(later, True, key=is_too_long)]
        if not fitting:
            return None
        if fitting[-1] == len(chain.operations):
            return tuple(cuts)
        start = min(
            fitting, key=lambda end: (math.prod(chain.operations[end - 1].output_shape), -end)
        )
        cuts.append(start)


def intermediate_placement(chain: Chain, cut: int, x: TensorSpec) -> TensorSpec:
    """Place the intermediate before an operation: pinned, in the memory order of x."""
    shape = chain.operations[cut - 1].output_shape
    strides = packed_strides(shape, x.order or "channels_first")
    return TensorSpec(shape, chain.dtype, "pinned", strides)


class LargePiece(NamedTuple):
    """A chain in one piece, in the memory order that takes least, whatever memory there is.

    Seconds of computing it; of that or of copying every operand once, whichever takes longer; and
    the device memory that it takes.
    """

    compute_seconds: float
    seconds: float
    memory_bytes: int


def large_piece(request: Request) -> LargePiece:
    """Cost of a chain in one piece."""
    chain = request.chain
    priced = [
        Search(request, layout).with_rings(chain.extents, chain.loop_order, 1, True)
        for layout in request.layouts
    ]
    copying = {"in": 0.0, "out": 0.0}
    for (way, name), line in request.copy_lines.items():
        copying[way] += line.per_byte * request.specs[name].nbytes
    compute = min(float(one.stages.compute) for one in priced)
    least = max(compute, *copying.values())
    return LargePiece(compute, least, min(one.memory_bytes for one in priced))


def join_plans(request: Request, plans: tuple[Plan, ...], cuts: tuple[int, ...], why: str) -> Plan:
    """One plan of several that run one after the other."""
    largest = max(plans, key=lambda plan: plan.device_bytes)
    stages_seconds = {
        stage: sum(getattr(plan, f"{stage}_seconds") for plan in plans)
        for stage in ("copy_in", "compute", "copy_out")
    }
    slowest = max(plans, key=lambda plan: plan.seconds)
    host = (
        sum(spec.nbytes for plan in plans for name, spec in plan.operands if name == "x")
        - dict(plans[0].operands)["x"].nbytes
    )
    return replace(
        largest,
        function=request.function,
        operands=request.operands,
        split=slowest.split,
        pieces=sum(plan.pieces for plan in plans),
        algorithms=tuple(dict.fromkeys(name for plan in plans for name in plan.algorithms)),
        bytes_in=sum(plan.bytes_in for plan in plans),
        bytes_out=sum(plan.bytes_out for plan in plans),
        copy_in_seconds=stages_seconds["copy_in"],
        compute_seconds=stages_seconds["compute"],
        copy_out_seconds=stages_seconds["copy_out"],
        seconds=sum(plan.seconds for plan in plans),
        binding_stage=slowest.binding_stage,
        alternatives=(),
        parts=plans,
        reason=f"cut before operation{'s' * (len(cuts) > 1)} {', '.join(map(str, cuts))}, {why}; "
        f"{format_bytes(host)} of intermediates go through pinned memory",
    )
