"""Barriers: phases of whole images, between regions of a step that run block by block.

The mean of a map, its largest value, the statistics of an instance or group normalisation: the map
before is made block by block, dask reduces it in a tree of fixed shape, and what comes after reads
both. So the cluster holds such a map whole (on disk where memory is short: dask spills), as every
exact normalisation must.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import dask.array as da

from ooc_cudnn.network.graph.autodiff_emit import identity
from ooc_cudnn.network.ir.step import Phase, Step
from ooc_cudnn.network.ir.tensor import Tensor, extents, hull, meet, relative_region
from ooc_cudnn.operations.chain.chain import Chain
from ooc_cudnn.operations.core.call import TiledCall
from ooc_cudnn.operations.core.row_axis import ROW_AXIS
from ooc_cudnn.operations.normalization.channel_reduction import SAVED
from ooc_cudnn.operations.normalization.group import GroupStatisticsCall
from ooc_cudnn.operations.pooling.forward import Pooling
from ooc_cudnn.operations.pooling.global_average import GlobalAverageCall
from ooc_cudnn.tensor import ACCUMULATOR, numpy_dtype


class Barrier(NamedTuple):
    """A phase that reads whole images: the map that it reads, and in which tensor that lies."""

    phase: Phase
    base: str


def first_barrier(step: Step, arrays: Mapping[str, da.Array]) -> Barrier | None:
    """The first phase of which dask makes the results; None where chunks hold whole images."""
    if all(count == 1 for array in arrays.values() for count in array.numblocks[ROW_AXIS:]):
        return None
    for phase in step.phases:
        if is_reduced(phase.call):
            return Barrier(phase, step.base(phase.binds["x"]))
    return None


def is_reduced(call: TiledCall) -> bool:
    """True if dask can make its results by a reduction over the sites of x."""
    return isinstance(call, GlobalAverageCall | GroupStatisticsCall) or _is_maximum(call)


def _is_maximum(call: TiledCall) -> bool:
    if not isinstance(call, Chain) or len(call.operations) > 1:
        return False
    (operation,) = call.operations
    return (
        isinstance(operation, Pooling)
        and operation.is_max
        and operation.window == operation.x_shape[ROW_AXIS:]
        and math.prod(operation.output_shape[ROW_AXIS:]) == 1
    )


def reduce_results(call: TiledCall, x: da.Array) -> dict[str, da.Array]:
    """Every result of such a call, from its map."""
    sites = tuple(range(ROW_AXIS, x.ndim))
    if isinstance(call, GroupStatisticsCall):
        return dict(zip(SAVED, _statistics(call, x, sites), strict=True))
    (result,) = call.results
    if isinstance(call, GlobalAverageCall):
        array = x.mean(axis=sites, dtype="float64", keepdims=True).astype(x.dtype)
    else:
        array = x.max(axis=sites, keepdims=True)
    return {result: array}


def _statistics(
    call: GroupStatisticsCall, x: da.Array, sites: tuple[int, ...]
) -> Iterable[da.Array]:
    """Mean and inverse deviation of each channel's group, in two passes."""

    def of_groups(means: da.Array) -> da.Array:
        n, c = call.shape[:2]
        grouped = means.reshape(n, call.groups, call.of_group).mean(axis=2, keepdims=True)
        spread = da.broadcast_to(grouped, (n, call.groups, call.of_group)).reshape(n, c)
        return spread.reshape(n, c, *(1 for _ in sites))

    mean = of_groups(x.mean(axis=sites, dtype="float64"))
    centred = x - mean
    variance = of_groups((centred * centred).mean(axis=sites, dtype="float64"))
    dtype = numpy_dtype(ACCUMULATOR[call.dtype])
    return mean.astype(dtype), (1 / da.sqrt(variance + call.epsilon)).astype(dtype)


def isolate_map(step: Step, barrier: Barrier) -> tuple[Step, Barrier]:
    """The step with a barrier's map in a tensor of its own, where other parts need the barrier.

    So it is in a concatenation of a map and of what is made of that map's mean. What wrote a part
    of the map writes it alone; a copy follows, to where others look for it.
    """
    if barrier.phase not in phases_up_to(step, barrier.base).phases:
        return step, barrier
    places = {name: step.place(name) for name in step.tensors}
    base, region = places[barrier.phase.binds["x"]]
    written = [places[name] for phase in step.phases for name in phase.writes]
    for place in written:  # what is written at once stays together
        if place.base == base and meet(place.region, region):
            region = hull(place.region, region)
    tensors = dict(step.tensors)
    alone = Tensor(f"{base} for {barrier.phase.name}", extents(region), tensors[base].dtype)
    tensors[alone.name] = alone
    for name, place in places.items():
        if name != base and place.base == base and hull(place.region, region) == region:
            part = relative_region(place.region, region)
            tensors[name] = replace(tensors[name], of=alone.name, region=part)
    moved = replace(step, tensors=tensors)
    phases = list[Phase]()
    for phase in step.phases:
        phases.append(phase)
        for name in phase.writes:
            if moved.base(name) == alone.name:
                target = Tensor(f"{name} in {base}", tensors[name].shape, tensors[name].dtype)
                tensors[target.name] = replace(target, of=base, region=places[name].region)
                binds = {"x": name, "y": target.name}
                call = identity(target)
                phases.append(replace(phase, name=f"{name} copy", call=call, binds=binds))
    isolated = replace(step, tensors=tensors, phases=tuple(phases), forward_count=len(phases))
    return isolated, Barrier(barrier.phase, alone.name)


def phases_up_to(step: Step, output: str) -> Step:
    """The phases that an output needs, and no others."""
    needed, phases = {step.place(output)}, list[Phase]()
    for phase in reversed(step.phases):
        written = [step.place(name) for name in phase.writes]
        if any(a.base == b.base and meet(a.region, b.region) for a in written for b in needed):
            phases.append(phase)
            needed |= {step.place(name) for name in phase.reads}
    phases.reverse()
    return replace(step, phases=tuple(phases), outputs=(output,), forward_count=len(phases))


def step_behind(step: Step, barrier: Barrier, given: Iterable[str]) -> Step:
    """Return the rest of a step once these tensors are given: they are inputs of it."""
    names = frozenset(given)
    tensors = {
        name: replace(tensor, kind="input") if name in names else tensor
        for name, tensor in step.tensors.items()
    }
    phases = tuple(
        phase
        for phase in step.phases
        if phase is not barrier.phase and not names & {step.base(name) for name in phase.writes}
    )
    left = replace(step, tensors=tensors, phases=phases, forward_count=len(phases))
    (output,) = step.outputs
    return phases_up_to(left, output)


def read_by(step: Step, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Select the arrays that a step reads, by name."""
    read = {step.base(name) for phase in step.phases for name in phase.binds.values()}
    return {name: array for name, array in arrays.items() if name in read}
