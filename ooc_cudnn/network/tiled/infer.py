"""Inference of an output too large for its maps to be on the device: block by block, all exact.

A block is a step of its own (`tile_step.py`), which keeps what it makes on the device. What is in
the halo of two blocks is made for both. That is less work than to bring whole maps to the host and
back as soon as blocks are large, and the halo is a small part of them.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np

from ooc_cudnn.activity import activity, say
from ooc_cudnn.arrays.operands import ArrayRef
from ooc_cudnn.arrays.stores import Store, room_for
from ooc_cudnn.errors import PlanInfeasibleError
from ooc_cudnn.memory.files import bases
from ooc_cudnn.network.cost.compute_seconds import layout_seconds
from ooc_cudnn.network.graph.graph import Graph
from ooc_cudnn.network.graph.parameters import Parameters
from ooc_cudnn.network.ir.constraints import PlanConstraints
from ooc_cudnn.network.ir.plan import NetworkPlan
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.runtime.constraints_here import Limit, constraints_for
from ooc_cudnn.network.runtime.executable import DEFAULT_ALLOCATION, ResultAllocation
from ooc_cudnn.network.runtime.inference import ForwardStep
from ooc_cudnn.network.runtime.plan_cache import load_or_plan
from ooc_cudnn.network.tiled.tile_grid import Grid, GridTile
from ooc_cudnn.network.tiled.tile_step import step_of_tile
from ooc_cudnn.operations.core.call import Region
from ooc_cudnn.operations.core.row_axis import ROW_AXIS
from ooc_cudnn.settings import current
from ooc_cudnn.tensor import ITEM_BYTES, ORDERS, TensorSpec
from ooc_cudnn.units import format_seconds
from perfmodel import MachineModel

#: How often the longest axis may be cut; the others into blocks of like extents.
CUTS = tuple(sorted({count for power in range(10) for count in (2**power, 3 * 2**power)}))
#: Extents of blocks are multiples of it: those of maps that are halved four times.
TIDY = 16
#: Beside this many times what computing the whole takes, it is planned whole, too.
MUCH_HALO = 1.5


class StepHolder:
    """Holder of one step by itself: its parameters are handed in."""

    def __init__(self, step: Step) -> None:
        self.graph, self.parameters, self.running = Graph(), Parameters(0), Parameters(0)
        self.graph.tensors = {n: each for n, each in step.tensors.items() if not each.of}


def standalone_forward(step: Step, memory_limit: Limit = None) -> ForwardStep:
    """Return a step of inference that is planned and run by itself."""
    return ForwardStep(StepHolder(step), lambda: step, memory_limit, {}, None)


@dataclass(frozen=True)
class TilePlan:
    """Plan of an output that is made in tiles.

    Attributes
    ----------
    cuts : tuple of tuple of int
        Where blocks begin along each axis of the output, and where the last one ends.
    plan : NetworkPlan
        Of a block in the middle; of all of it where there is one.
    seconds : float
        Predicted, for all blocks.
    """

    cuts: tuple[tuple[int, ...], ...]
    plan: NetworkPlan
    seconds: float

    @property
    def count(self) -> int:
        """Number of tiles."""
        return math.prod(len(each) - 1 for each in self.cuts)

    @property
    def block(self) -> tuple[int, ...]:
        """The extents of the largest."""
        return tuple(max(b - a for a, b in pairwise(each)) for each in self.cuts)

    @property
    def device_bytes(self) -> int:
        """Device memory that it takes."""
        return self.plan.device_bytes

    def __repr__(self) -> str:
        blocks = f"{self.count} blocks, {format_seconds(self.seconds)} predicted; of one: "
        return f"<TilePlan: {blocks * (self.count > 1)}{self.plan.summary}>"

    def explain(self) -> str:
        """The blocks, and the plan of one of them, for a person to read."""
        shape = " x ".join(map(str, self.block))
        blocks = f"{self.count} blocks of {shape}, {format_seconds(self.seconds)} predicted"
        return (
            f"{blocks}; of these\n{self.plan.explain()}" if self.count > 1 else self.plan.explain()
        )


class TiledInference:
    """One output of a step of inference, in blocks of one grid.

    Parameters
    ----------
    step : Step
        Its one output is a map.
    cuts : sequence of sequence of int
        As in `TilePlan`.
    memory_limit : int, float or str, optional
    counts_given : bool
        As of `ForwardStep`.
    """

    def __init__(
        self,
        step: Step,
        cuts: Sequence[Sequence[int]],
        memory_limit: Limit,
        *,
        counts_given: bool = False,
    ) -> None:
        self.grid, self._limit, self._counts_given = Grid(step, cuts), memory_limit, counts_given
        self._ready: dict[tuple[int, ...], ForwardStep] = {}

    def _ready_for(self, place: GridTile) -> ForwardStep:
        forward = self._ready.get(place.kind)
        if forward is None:
            tile = step_of_tile(self.grid.step, self.grid.output, place.region)
            forward = self._ready[place.kind] = standalone_forward(tile.step, self._limit)
            forward.counts_given = self._counts_given
        return forward

    def run(
        self,
        inputs: Mapping[str, Any],
        out: Any,
        lasting: Mapping[str, Any],
        making: ResultAllocation = DEFAULT_ALLOCATION,
    ) -> None:
        """Make every block, each in its part of `out`.

        Parameters
        ----------
        inputs, lasting : mapping
            Arrays by name.
        out : array
            Of the output's shape and dtype; a `Store` as well, as inputs may be.
        """

        def taken(place: GridTile) -> tuple[GridTile, dict[str, Any]]:
            return place, {name: _read(inputs[name], part) for name, part in place.inputs.items()}

        made, count = 0, math.prod(len(cuts) - 1 for cuts in self.grid.cuts)
        making_blocks = activity("making blocks", current().progress, holds_line=True)
        # files are read for the next block while this one is made
        with ThreadPoolExecutor(1) as pool, making_blocks:
            ahead = deque[Future[tuple[GridTile, dict[str, Any]]]]()
            for next_place in chain(self.grid, (None,)):
                if next_place is not None:
                    ahead.append(pool.submit(taken, next_place))
                if len(ahead) == 2 or (next_place is None and ahead):
                    place, parts = ahead.popleft().result()
                    say(f"{made} of {count} made")
                    region = _slices(place.region)
                    block = room_for(out, region)
                    self._ready_for(place).run(parts, {self.grid.output: block}, lasting, making)
                    if isinstance(out, Store):
                        out[region] = block
                    made += 1

    @property
    def plan(self) -> NetworkPlan | None:
        """Plan of the last tile."""
        ran = [each.plan for each in self._ready.values() if each.plan is not None]
        return max(ran, key=lambda plan: plan.seconds, default=None)


class TilingConstraints(NamedTuple):
    """Constraints that blocks are planned under.

    Attributes
    ----------
    memory_limit : int, float or str, optional
    given : mapping
        How what is handed in lies, the inputs as a whole.
    machine : MachineModel or str, optional
        To predict for; the one at hand when left out.
    more_bytes : int
        As `kept_bytes` of `constraints_for`.
    """

    memory_limit: Limit
    given: Mapping[str, ArrayRef]
    machine: MachineModel | str | os.PathLike[str] | None = None
    more_bytes: int = 0

    def constraints(self, step: Step, *, of_block: bool = False) -> PlanConstraints:
        """Those of a step; of a block, what lies in files is in memory when it begins."""
        wrapped = {
            name: each._replace(array=None, spec=_with_shape(each.spec, step.tensors[name].shape))
            for name, each in self.given.items()
            if name in step.tensors
        }
        for name, array in wrapped.items() if of_block else ():
            if array.spec.placement == "disk":
                wrapped[name] = array._replace(spec=replace(array.spec, placement="pageable"))
        return constraints_for(self.memory_limit, self.machine, step, wrapped, self.more_bytes)

    def plan(self, step: Step, cuts: Sequence[Sequence[int]]) -> TilePlan:
        """The plan of all blocks, by that of one in the middle, which has a halo on every side."""
        region = tuple(
            (each[cut := (len(each) - 1) // 2 - (len(each) == 3)], each[cut + 1]) for each in cuts
        )
        tile = step_of_tile(step, step.outputs[0], region).step
        plan = load_or_plan("forward", tile, self.constraints(tile, of_block=True)).plan
        blocks = math.prod(len(each) - 1 for each in cuts)
        return TilePlan(tuple(map(tuple, cuts)), plan, plan.seconds * blocks)

    def plan_whole(self, step: Step) -> TilePlan:
        """The plan of one block, which is all of it."""
        shape = step.tensors[step.outputs[0]].shape
        plan = load_or_plan("forward", step, self.constraints(step)).plan
        return TilePlan(tuple((0, extent) for extent in shape), plan, plan.seconds)


def plan_tiles(step: Step, under: TilingConstraints) -> TilePlan:
    """Choose the blocks in which an output is made in the least time; one, where it fits.

    Parameters
    ----------
    step : Step
        Its one output is a map.
    under : TilingConstraints

    Raises
    ------
    PlanInfeasibleError
        If the memory limit admits no plan.
    """
    with activity("planning in blocks", current().progress, holds_line=True):
        return _fastest_tiles(step, under)


def _fastest_tiles(step: Step, under: TilingConstraints) -> TilePlan:
    target = under.constraints(step).target
    computing = layout_seconds(step, target.machine, ORDERS).throughout[0][1]
    fewest = _largest_phase_bytes(step) / max(target.room_bytes, 1)
    tiles: TilePlan | None = None
    if fewest > 1:
        tiles = _best_tiles(step, under, fewest)
        if tiles is not None and tiles.seconds <= MUCH_HALO * computing:
            return tiles
    try:
        whole = under.plan_whole(step)
    except PlanInfeasibleError:
        tiles = tiles or _best_tiles(step, under, fewest)
        if tiles is None:
            raise
        return tiles
    if fewest <= 1 and whole.seconds > MUCH_HALO * computing:
        tiles = _best_tiles(step, under, fewest)
    return tiles if tiles is not None and tiles.seconds < whole.seconds else whole


def _best_tiles(step: Step, under: TilingConstraints, fewest: float) -> TilePlan | None:
    """The best of blocks that are ever smaller, until two in turn take longer.

    None of what has no sites, as a loss.
    """
    shape = step.tensors[step.outputs[0]].shape
    if len(shape) <= ROW_AXIS:
        return None
    best, longer = None, 0
    tried: set[tuple[tuple[int, ...], ...]] = {tuple((0, extent) for extent in shape)}
    for count in CUTS:
        cuts = (tuple(range(shape[0] + 1)), (0, shape[1]), *_cuts(shape[ROW_AXIS:], count))
        if math.prod(len(each) - 1 for each in cuts) < fewest or cuts in tried:
            continue
        tried.add(cuts)
        try:
            plan = under.plan(step, cuts)
        except PlanInfeasibleError:
            continue
        except ValueError:  # a phase needs whole images
            return None
        if best is None or plan.seconds < best.seconds:
            best, longer = plan, 0
        elif (longer := longer + 1) == 2:
            break
    return best


def _cuts(sites: Sequence[int], count: int) -> tuple[tuple[int, ...], ...]:
    """Cut the longest axis into so many parts, and the others into parts as long.

    >>> _cuts((100, 60), 4)
    ((0, 32, 64, 96, 100), (0, 32, 60))
    """
    if not sites:
        return ()
    side = -(-max(sites) // count)
    side = -(-side // TIDY) * TIDY
    return tuple((*range(0, extent, side), extent) for extent in sites)


def _with_shape(spec: TensorSpec, shape: tuple[int, ...]) -> TensorSpec:
    return spec if spec.shape == shape else TensorSpec(shape, spec.dtype, spec.placement)


def _largest_phase_bytes(step: Step) -> int:
    """Bytes of the maps of the phase that has most: on the device at once, or else in pieces."""
    return max(
        sum(
            math.prod(operand.shape) * ITEM_BYTES[operand.dtype]
            for name, operand in phase.call.operands.items()
            if name in phase.call.streamed
        )
        for phase in step.phases
    )


def _read(array: Any, region: Region) -> Any:
    """A part of an array; of a file, in memory."""
    part = array[_slices(region)]
    return np.array(part) if any(isinstance(each, np.memmap) for each in bases(part)) else part


def _slices(region: Region) -> tuple[slice, ...]:
    return tuple(slice(*each) for each in region)
