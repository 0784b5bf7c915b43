"""Where chunks cut images, what is made of whole images stands between two stretches of blocks.

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

from ooc_cudnn.network.phases import Phase, Step
from ooc_cudnn.operations.chain import Chain
from ooc_cudnn.operations.channel_statistics import SAVED
from ooc_cudnn.operations.global_average import GlobalAverage
from ooc_cudnn.operations.group_normalization import GroupStatistics
from ooc_cudnn.operations.pooling import Pooling
from ooc_cudnn.operations.rows import ROW_AXIS
from ooc_cudnn.operations.splittable import Splittable
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


def is_reduced(call: Splittable) -> bool:
    """Whether dask can make its results by a reduction over the sites of x."""
    return isinstance(call, GlobalAverage | GroupStatistics) or _is_maximum(call)


def _is_maximum(call: Splittable) -> bool:
    if not isinstance(call, Chain) or len(call.operations) > 1:
        return False
    (operation,) = call.operations
    return (
        isinstance(operation, Pooling)
        and operation.is_max
        and operation.window == operation.x_shape[ROW_AXIS:]
        and math.prod(operation.output_shape[ROW_AXIS:]) == 1
    )


def reduced(call: Splittable, x: da.Array) -> dict[str, da.Array]:
    """Every result of such a call, from its map."""
    sites = tuple(range(ROW_AXIS, x.ndim))
    if isinstance(call, GroupStatistics):
        return dict(zip(SAVED, _statistics(call, x, sites), strict=True))
    (result,) = call.results
    if isinstance(call, GlobalAverage):
        made = x.mean(axis=sites, dtype="float64", keepdims=True).astype(x.dtype)
    else:
        made = x.max(axis=sites, keepdims=True)
    return {result: made}


def _statistics(call: GroupStatistics, x: da.Array, sites: tuple[int, ...]) -> Iterable[da.Array]:
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


def up_to(step: Step, output: str) -> Step:
    """The phases that an output needs, and no others."""
    needed, phases = {output}, list[Phase]()
    for phase in reversed(step.phases):
        if needed & {step.base(name) for name in phase.writes}:
            phases.append(phase)
            needed |= {step.base(name) for name in phase.binds.values()}
    phases.reverse()
    return replace(step, phases=tuple(phases), outputs=(output,), forward_count=len(phases))


def behind(step: Step, barrier: Barrier, given: Iterable[str]) -> Step:
    """What is left of a step once these tensors are given: they are inputs of it."""
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
    return up_to(left, output)


def read_by(step: Step, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Of arrays by name those that a step reads."""
    read = {step.base(name) for phase in step.phases for name in phase.binds.values()}
    return {name: array for name, array in arrays.items() if name in read}
