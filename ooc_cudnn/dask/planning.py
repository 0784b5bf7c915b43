"""`plan`: how long an array would take on a cluster, and in which chunks; nothing is computed.

A block is priced as a call is, by the worker's machine model. Blocks then go to whichever worker is
free first, as dask's scheduler does it; halos cross the network, inputs and results the store.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import dask.array as da
from distributed import Client

from ooc_cudnn.call_planner.explain import align_columns
from ooc_cudnn.dask.networks import NetworkWork, WantedBlock
from ooc_cudnn.dask.work import Part, Work
from ooc_cudnn.dask.workers import Worker, workers
from ooc_cudnn.engines.target import Target
from ooc_cudnn.functions.call.plan import plan_call
from ooc_cudnn.network.ir.tensor import extents
from ooc_cudnn.network.tiled.infer import standalone_forward
from ooc_cudnn.network.tiled.tile_step import step_of_tile
from ooc_cudnn.operations.core.block_calls import call_of_tile
from ooc_cudnn.settings import current
from ooc_cudnn.tensor import ITEM_BYTES, ORDERS, TensorSpec
from ooc_cudnn.units import format_bytes, format_seconds
from perfmodel import MachineModel

#: Dask's scheduler and workers take about so long for a task: 15 ms a block of 10 tasks were seen,
#: on two local workers that shared two cores with other programs.
SECONDS_PER_TASK = 1.5e-3
#: Of which so long before the first block begins: client and scheduler go through the whole graph.
#: 1.2 s of 2,374 tasks were seen by `benchmarks.dask_scale`, with what is left at the end.
SECONDS_BEFORE_PER_TASK = 0.5e-3
#: Bytes a second between two workers, where nothing is said: 10 gigabit Ethernet.
NETWORK = 1.25e9
#: More blocks than this are not proposed: making their graph takes long by itself.
MOST_BLOCKS = 4096
#: Sides of chunks that are proposed.
SIDES = tuple(2**power for power in range(8, 16))

Makes = Callable[[da.Array], da.Array]


@dataclass(frozen=True)
class ClusterPlan:
    """Predicted seconds of an array on some workers.

    Attributes
    ----------
    chunks : tuple of tuple of int
        Of the input that it is planned for.
    blocks, tasks : int
        Of the result: what is computed, and all there is to schedule.
    computing_seconds : float
        From the first block until the last worker has made its last.
    network_seconds, store_seconds, scheduling_seconds : float
        What crosses the network, what is read and written, what dask itself takes, were it alone.
    starting_seconds : float
        Until the first block begins.
    block_bytes : int
        Of the largest block: what is gathered for it and what it makes, in host memory.
    workers : int
    others : tuple of ClusterPlan
        Other chunks that were compared, the fastest first.
    """

    chunks: tuple[tuple[int, ...], ...]
    blocks: int
    tasks: int
    computing_seconds: float
    network_seconds: float
    store_seconds: float
    scheduling_seconds: float
    starting_seconds: float
    block_bytes: int
    workers: int
    others: tuple[ClusterPlan, ...] = ()

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of what goes on at once, by name."""
        return {
            "computing": self.computing_seconds,
            "network": self.network_seconds,
            "store": self.store_seconds,
            "scheduler": self.scheduling_seconds,
        }

    @property
    def seconds(self) -> float:
        """Predicted: once it has begun all goes on at once, so the slowest binds."""
        return self.starting_seconds + max(self.parts.values())

    @property
    def binding(self) -> str:
        """The resource that binds."""
        return max(self.parts, key=self.parts.__getitem__)

    @property
    def summary(self) -> str:
        """A line: blocks, tasks and workers, seconds, and what binds."""
        return (
            f"{self.blocks} blocks, {self.tasks} tasks on {self.workers} workers: "
            f"{format_seconds(self.seconds)}, bound by the {self.binding}"
        )

    def __repr__(self) -> str:
        return f"<ClusterPlan: {self.summary}>"

    def explain(self) -> str:
        """A table: seconds by what binds, memory, and other chunks."""
        rows = [("chunks", "blocks", "predicted", "  binds", "a block takes")]
        for choice in (self, *self.others):
            sides = " x ".join(str(max(sizes)) for sizes in choice.chunks)
            rows.append(
                (sides, str(choice.blocks), format_seconds(choice.seconds), f"  {choice.binding}",
                 format_bytes(choice.block_bytes))
            )  # fmt: skip
        parts = {"start": self.starting_seconds, **self.parts}
        of_parts = [(name, format_seconds(seconds)) for name, seconds in parts.items()]
        return "\n".join(
            [
                self.summary,
                *align_columns(of_parts, ("<12", ">10")),
                "",
                *align_columns(rows, ("<24", ">8", ">11", "<12", ">14")),
            ]
        )

    __str__ = explain


def plan(
    make: Makes,
    x: da.Array,
    on: Client | Sequence[Worker],
    *,
    sides: Iterable[int] = SIDES,
    network: float = NETWORK,
    store: float | None = None,
) -> ClusterPlan:
    """Predict an array on a cluster, for the chunks that x has and for others; propose the fastest.

    Parameters
    ----------
    make : callable
        Makes the result of x by functions of this module:
        ``lambda x: ooc.forward(net, y, image=x)``.
    x : dask array
        The input; it is not read. Its spatial axes are rechunked to each of `sides`.
    on : Client or sequence of Worker
        Whose workers: `workers` describes those that run, and a `Worker` can be made up.
    sides : iterable of int
        Extents of chunks along every spatial axis that are compared with those that x has.
    network, store : float
        Bytes a second between workers, and from and to the store by all together; a store that
        never binds when left out.

    Returns
    -------
    ClusterPlan
        Of the chunks with which it is fastest; `explain` says the others, too.

    Examples
    --------
    >>> import dask.array as da, numpy as np, ooc_cudnn.dask as ooc
    >>> from perfmodel import shipped
    >>> card = ooc.Worker("", "cuda:0", "cuda", 16 * 2**30, shipped("h200"), "")
    >>> x = da.zeros((1, 64, 8192, 8192), chunks=(1, 64, 1024, 1024), dtype="float32")
    >>> w = np.zeros((64, 64, 3, 3), "float32")
    >>> def layer(x):
    ...     return ooc.convolution_forward(x, w, padding=1)
    >>> one, two = (ooc.plan(layer, x, [card] * count, sides=()) for count in (1, 2))
    >>> one.blocks, one.binding, round(one.computing_seconds / two.computing_seconds, 3)
    (64, 'computing', 2.0)
    """
    pool = workers(on) if isinstance(on, Client) else tuple(on)
    if not pool:
        raise ValueError("on must name at least one worker")
    spatial = range(2, x.ndim)
    grids = [x.chunks]
    for side in sorted(set(sides)):
        cut = {axis: min(side, x.shape[axis]) for axis in spatial}
        blocks = math.prod(-(-x.shape[axis] // size) for axis, size in cut.items())
        if blocks * x.numblocks[0] <= MOST_BLOCKS:
            grids.append(x.rechunk(cut).chunks)
    unique = dict.fromkeys(grids)
    plans = [
        _planned(make, x.rechunk(chunks), pool, network=network, store=store) for chunks in unique
    ]
    best, *others = sorted(plans, key=lambda each: each.seconds)
    return replace(best, others=tuple(others))


def _planned(
    make: Makes, x: da.Array, pool: Sequence[Worker], *, network: float, store: float | None
) -> ClusterPlan:
    array = make(x)
    stages = [stage for layer in array.dask.layers.values() if (stage := _stage(layer)) is not None]
    if array.name not in {name for stage in stages for name in stage.names}:
        raise TypeError(
            "make must return what a function of ooc_cudnn.dask made, and nothing after it: "
            f"{array!r} is not"
        )
    computing = network_bytes = result_bytes = 0.0
    block_bytes = blocks = 0
    for stage in stages:
        priced = {
            kind: _price(stage.work, part, pool) for kind, part in stage.representatives.items()
        }
        computing += _makespan(
            [priced[kind].seconds for kind, count in stage.kinds.items() for _ in range(count)],
            len(pool),
        )
        gathered = sum(priced[kind].bytes_in * count for kind, count in stage.kinds.items())
        halo = max(0, gathered - _read_bytes(stage.work))
        network_bytes += halo * (len(pool) - 1) / len(pool)
        result_bytes = sum(priced[kind].bytes_out * count for kind, count in stage.kinds.items())
        block_bytes = max(
            block_bytes, *(each.bytes_in + each.bytes_out for each in priced.values())
        )
        blocks += sum(stage.kinds.values())
    tasks = len(array.dask.to_dict())
    return ClusterPlan(
        chunks=x.chunks,
        blocks=blocks,
        tasks=tasks,
        computing_seconds=computing,
        network_seconds=network_bytes / (network * len(pool)),
        store_seconds=0.0 if store is None else (x.nbytes + result_bytes) / store,
        scheduling_seconds=tasks * (SECONDS_PER_TASK - SECONDS_BEFORE_PER_TASK),
        starting_seconds=tasks * SECONDS_BEFORE_PER_TASK,
        block_bytes=block_bytes,
        workers=len(pool),
    )


#: Blocks of one kind take equally long: of a network's by their grid, of a call's those of the same
#: extents that meet the same borders.
_Kind = tuple[Any, ...]


class _Stage(NamedTuple):
    """The blocks of one layer of a graph: how many of each kind, and one of each."""

    work: Work | NetworkWork
    names: frozenset[str]
    kinds: Counter[_Kind]
    representatives: dict[_Kind, Part | WantedBlock]


def _stage(layer: Mapping[Any, Any]) -> _Stage | None:
    """The blocks of a layer that a function of this package made; None for others."""
    if not layer.is_materialized():  # type: ignore[attr-defined]  # dask's own
        return None
    works = [each for each in layer.values() if isinstance(each, Work | NetworkWork)]
    if not works:
        return None
    (work,) = works
    kinds: Counter[_Kind] = Counter()
    representatives: dict[_Kind, Part | WantedBlock] = {}
    for task in layer.values():
        if isinstance(task, tuple) and len(task) > 2 and isinstance(task[2], Part | WantedBlock):
            kind = _kind(work, task[2])
            kinds[kind] += 1
            representatives.setdefault(kind, task[2])
    names = frozenset(key[0] for key in layer if isinstance(key, tuple))
    return _Stage(work, names, kinds, representatives)


def _kind(work: Work | NetworkWork, part: Part | WantedBlock) -> _Kind:
    if isinstance(part, WantedBlock):
        return part.kind
    assert isinstance(work, Work)
    region = (part.block.images, part.block.channels, *part.block.sites)
    shape = work.call.tile_shape
    return tuple(
        (stop - start, start == 0, stop == extent)
        for (start, stop), extent in zip(region, shape, strict=True)
    )


def _read_bytes(work: Work | NetworkWork) -> int:
    """Bytes of the arrays whose chunks blocks are made of."""
    if isinstance(work, NetworkWork):
        return sum(work.step.tensors[name].nbytes for name in work.inputs)
    operands = work.call.operands
    return sum(
        math.prod(operands[name].shape) * ITEM_BYTES[operands[name].dtype]
        for name in work.operands
        if name in work.call.streamed
    )


@dataclass(frozen=True)
class _Price:
    """The price of a block: seconds on each worker, bytes that are gathered and made."""

    seconds: tuple[float, ...]
    bytes_in: int
    bytes_out: int


def _price(work: Work | NetworkWork, part: Part | WantedBlock, pool: Sequence[Worker]) -> _Price:
    seconds_of = _network_block if isinstance(work, NetworkWork) else _call_block
    seconds: dict[tuple[MachineModel, int], tuple[float, int, int]] = {}
    prices = []
    for worker in pool:
        key = worker.machine, worker.memory_limit  # models of one name may differ: calibrated ones
        if key not in seconds:
            seconds[key] = seconds_of(work, part, worker)
        prices.append(seconds[key])
    return _Price(tuple(found[0] for found in prices), prices[0][1], prices[0][2])


def _call_block(work: Any, part: Any, worker: Worker) -> tuple[float, int, int]:
    tile = call_of_tile(work.call, part.block)
    specs = {
        name: TensorSpec(operand.shape, operand.dtype, "pageable")
        for name, operand in tile.call.operands.items()
        if name not in tile.call.results
    }
    limit = worker.memory_limit
    target = Target(worker.machine, limit, limit, ORDERS, None, current().overlap)
    planned = plan_call(work.function, tile.call, specs, {}, target, aligned={})
    result = tile.call.operands[work.result]
    streamed = [specs[name] for name in tile.call.streamed if name in specs]
    bytes_out = math.prod(result.shape) * ITEM_BYTES[result.dtype]
    return planned.plan.seconds, sum(spec.nbytes for spec in streamed), bytes_out


def _network_block(work: Any, wanted: Any, worker: Worker) -> tuple[float, int, int]:
    block = step_of_tile(work.step, work.step.outputs[0], wanted.region)
    tensors = block.step.tensors
    specs = {
        name: TensorSpec(extents(region), tensors[name].dtype, "pageable")
        for name, region in block.inputs.items()
    }
    step = standalone_forward(block.step, worker.memory_limit)
    plan = step.planned_for(specs, worker.machine)
    (output,) = block.step.outputs
    gathered = sum(spec.nbytes for spec in specs.values())
    return plan.seconds, gathered, tensors[output].nbytes


def _makespan(seconds: Sequence[tuple[float, ...]], count: int) -> float:
    """Second at which the last block is made, if each goes to the worker that is free first."""
    free = [(0.0, worker) for worker in range(count)]
    heapq.heapify(free)
    for of_block in seconds:
        time, worker = heapq.heappop(free)
        heapq.heappush(free, (time + of_block[worker], worker))
    return max(at for at, _ in free)
