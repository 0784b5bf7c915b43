"""Inference of networks on dask arrays: a task for each block of an output.

A block is made of the inputs' chunks and the halo of the whole network around them. Maps between
the layers never leave the worker, and those of the halo are made by every block that needs them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from ooc_cudnn.dask.barriers import (
    Barrier,
    first_barrier,
    isolate_map,
    phases_up_to,
    read_by,
    reduce_results,
    step_behind,
)
from ooc_cudnn.dask.chunks import Regions, Tasks, as_dask, join, starts
from ooc_cudnn.dask.lazily import as_numpy, name_keys
from ooc_cudnn.dask.versions import check_version, version
from ooc_cudnn.dask.work import client_settings, trim
from ooc_cudnn.network.ir.step import Step
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.network.network import Network
from ooc_cudnn.network.runtime.inference import ForwardStep
from ooc_cudnn.network.runtime.inputs import wrong_names
from ooc_cudnn.network.tiled.infer import standalone_forward
from ooc_cudnn.network.tiled.tile_grid import Grid
from ooc_cudnn.network.tiled.tile_step import step_of_tile
from ooc_cudnn.operations.core.call import Region
from ooc_cudnn.settings import settings
from ooc_cudnn.tensor import numpy_dtype

#: Blocks of different shapes whose plans a worker keeps.
REMEMBERED_BLOCKS = 64


def forward(network: Network, /, *outputs: Tensor, **inputs: Any) -> Any:
    """Run inference on dask arrays, lazily; `Network.forward` on each block.

    Parameters
    ----------
    network : Network
        Its inputs have the shapes of the whole arrays: `Network.resized` makes them so.
    *outputs : Tensor
        Maps, of as many images as the inputs. Parameters are taken as they are now.
    **inputs : dask array
        By the names of inputs, chunked along images and any spatial axis.

    Returns
    -------
    dask array, or tuple of them for several outputs
        Chunked as the first input is.

    Raises
    ------
    TypeError, ValueError
        If an input has not the network's shape or dtype, or is missing; if chunks cut images that a
        node needs whole on one worker (a linear layer of a flattened map): it is named. Global
        pooling, and instance and group normalization, may have images in several chunks.

    Examples
    --------
    >>> import dask.array as da, ooc_cudnn, ooc_cudnn.dask as ooc
    >>> net = ooc_cudnn.Network()
    >>> x = net.input("image", (1, 1, 64, 64))
    >>> y = net.pooling(net.activation(net.convolution(x, 2, window=3, padding=1)), window=2)
    >>> ooc.forward(net, y, image=da.zeros((1, 1, 64, 64), chunks=(1, 1, 32, 24), dtype="f4"))
    dask.array<forward, shape=(1, 2, 32, 32), dtype=float32, chunksize=(1, 2, 16, 12), ...
    """
    if not isinstance(network, Network):
        raise TypeError(f"network must be a Network, not {type(network).__name__}")
    if not outputs:
        raise TypeError("forward needs the outputs that are asked for")
    results = tuple(_output(network, output, inputs) for output in outputs)
    return results if len(results) > 1 else results[0]


def _output(network: Network, output: Tensor, inputs: Mapping[str, Any]) -> da.Array:
    step = network.forward_phases(output)
    names = {step.base(name) for phase in step.phases for name in phase.binds.values()}
    kinds = {name: step.tensors[name].kind for name in names}
    wanted = [name for name in network.graph.tensors if kinds.get(name) == "input"]
    said = wrong_names(wanted, inputs)
    if said:
        raise TypeError(f"{output.name} {said}; its inputs are {', '.join(wanted)}")
    arrays = {name: as_dask(inputs[name], name) for name in wanted}
    for name, array in arrays.items():
        _check(step.tensors[name], array)
    lasting = {
        name: np.array(as_numpy(array))  # as they are now, whatever becomes of them
        for held in (network.parameters, network.running)
        for name, array in held.items()
        if name in kinds
    }
    return lazily_forward(step, arrays, lasting)


def _check(tensor: Tensor, array: da.Array) -> None:
    if tuple(array.shape) != tensor.shape:
        raise ValueError(
            f"{tensor.name} must have shape {tensor.shape}, not {array.shape}; "
            f"network.resized({tensor.name}={array.shape}) makes the network for it"
        )
    if str(array.dtype) != tensor.dtype:
        raise TypeError(f"{tensor.name} must be {tensor.dtype}, not {array.dtype}")


def lazily_forward(
    step: Step, arrays: Mapping[str, da.Array], lasting: Mapping[str, Any]
) -> da.Array:
    """The one output of a step of inference, block by block.

    Parameters
    ----------
    arrays : mapping
        The step's inputs.
    lasting : mapping
        Its parameters and running statistics.
    """
    (output,) = step.outputs
    barrier = first_barrier(step, arrays)
    if barrier is not None:
        return _behind(step, barrier, arrays, lasting)
    tensor = step.tensors[output]
    cuts = _cuts(tensor, _guide(tensor, arrays))
    from_client = client_settings()
    token = tokenize(
        repr(step.phases), sorted(step.tensors.items()), output, sorted(from_client.items()), cuts,
        [array.name for array in arrays.values()], sorted(lasting.items()),
    )  # fmt: skip
    name = f"forward-{token}"
    work = NetworkWork(token, step, tuple(arrays), dict(lasting), from_client)
    tasks: Tasks = {name_keys(name, "work"): work}
    for place in Grid(step, cuts):
        operands = [
            Regions(array, tasks, name_keys(name, f"halo_{each}"))[place.inputs[each]]
            for each, array in arrays.items()
        ]
        wanted = WantedBlock(place.region, place.kind)
        tasks[(name, *place.index)] = (run_block, name_keys(name, "work"), wanted, *operands)
    graph = HighLevelGraph.from_collections(name, tasks, dependencies=list(arrays.values()))
    chunks = tuple(tuple(b - a for a, b in pairwise(each)) for each in cuts)
    meta = np.empty((0,) * len(chunks), numpy_dtype(tensor.dtype))
    return da.Array(graph, name, chunks, meta=meta)


def _behind(
    step: Step, barrier: Barrier, arrays: Mapping[str, da.Array], lasting: Mapping[str, Any]
) -> da.Array:
    """The output behind a phase that reads whole images, from its map and its results."""
    step, barrier = isolate_map(step, barrier)
    base, phase = barrier.base, barrier.phase
    known = dict(arrays)
    if base not in known:
        before = phases_up_to(step, base)
        known[base] = lazily_forward(before, read_by(before, arrays), read_by(before, lasting))
    region = step.place(phase.binds["x"]).region
    x = known[base][tuple(slice(*each) for each in region)]
    for result, array in reduce_results(phase.call, x).items():
        tensor = step.tensors[step.base(phase.binds[result])]
        known[tensor.name] = array.reshape(tensor.shape)
    if step.outputs[0] in known:
        return known[step.outputs[0]]
    left = step_behind(step, barrier, known)
    return lazily_forward(left, read_by(left, known), read_by(left, lasting))


def _guide(output: Tensor, arrays: Mapping[str, da.Array]) -> da.Array:
    """The input whose chunks the output follows: a map, if it is one."""
    maps = [
        array
        for array in arrays.values()
        if array.ndim == len(output.shape) and any(extent > 1 for extent in array.shape[2:])
    ]
    return (maps or list(arrays.values()))[0]


def _cuts(output: Tensor, guide: da.Array) -> tuple[tuple[int, ...], ...]:
    """The starts of blocks of the output: over the chunks of an input, as far along each axis."""
    if len(output.shape) < 2 or output.shape[0] != guide.shape[0]:
        raise ValueError(
            f"{output.name} of shape {output.shape} is no map of {guide.shape[0]} images, of which "
            "blocks are made"
        )
    cuts: list[tuple[int, ...]] = []
    for axis, extent in enumerate(output.shape):
        if axis == 1 or axis >= guide.ndim or guide.ndim != len(output.shape):
            cuts.append(starts(guide.chunks[0]) if axis == 0 else (0, extent))
            continue
        whole = guide.shape[axis]
        places = {round(cut * extent / whole) for cut in starts(guide.chunks[axis])}
        cuts.append(tuple(sorted(places)))
    return tuple(cuts)


# On a worker --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NetworkWork:
    """Data that all blocks have in common; one key of the graph.

    Attributes
    ----------
    token : str
        Tells it from others.
    step : Step
        Inference on the whole inputs.
    inputs : tuple of str
        In the order of a task's operands.
    lasting : mapping
        Parameters and running statistics, by name.
    settings : mapping
        `client_settings`.
    version : str
        Of the client's library; a worker with another one refuses the work.
    """

    token: str
    step: Step
    inputs: tuple[str, ...]
    lasting: Mapping[str, Any]
    settings: Mapping[str, Any]
    version: str = field(default_factory=version)


@dataclass(frozen=True)
class WantedBlock:
    """The block that a task makes: its region of the output, and its kind in the grid."""

    region: Region
    kind: tuple[int, ...]


class _Ready:
    """A maker of blocks of one kind: a step, planned once, that runs one block at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._forward: ForwardStep | None = None
        #: The region that is made of the first block, and the one that was wanted.
        self._made: Region = ()
        self._wanted: Region = ()

    def run(self, work: NetworkWork, wanted: WantedBlock, given: Mapping[str, Any]) -> Any:
        """Make a block of what is needed of the inputs."""
        with self._lock:
            if self._forward is None:
                block = step_of_tile(work.step, work.step.outputs[0], wanted.region)
                self._made, self._wanted = block.output, wanted.region
                self._forward = standalone_forward(block.step)
            (output,) = self._forward.run(given, lasting=work.lasting).outputs
        return trim(output, self._made, self._wanted)


@lru_cache(maxsize=REMEMBERED_BLOCKS)
def _ready(token: str, kind: tuple[int, ...]) -> _Ready:
    return _Ready()


def run_block(work: NetworkWork, wanted: WantedBlock, *operands: Any) -> Any:
    """Make one block of the output from what is needed of each input."""
    check_version(work.version)
    with settings(**work.settings, progress=False):
        inputs = {
            name: np.ascontiguousarray(array) if isinstance(array, np.ndarray) else array
            for name, array in zip(work.inputs, map(join, operands), strict=True)
        }
        return _ready(work.token, wanted.kind).run(work, wanted, inputs)
