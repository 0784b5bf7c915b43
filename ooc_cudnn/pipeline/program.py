"""The program: calls run one after the other on tensors that they hand on to each other.

A plain function is a program of one task, a chain that memory is short for one of several, and a
training step one of hundreds. A tensor of a program has one binding: an address in the program's
block of device memory, or an array that is handed in when it runs. What a network holds now here
and now there is several such tensors, with moves between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from ooc_cudnn.call_planner.plan import Plan
from ooc_cudnn.call_planner.request import Request, worth_threads
from ooc_cudnn.operations.core.call import Region
from ooc_cudnn.tensor import TensorSpec
from perfmodel.cached import cached_property

COPY_IN, COPY_OUT, COMPUTE = "copy_in", "copy_out", "compute"

#: Bytes of one copy of a move: the link is at its best from 16 MiB on.
MOVE_BYTES = 32 * 2**20
MOST_CHUNKS = 64


@dataclass(frozen=True, eq=False)
class Task:
    """One call on tensors of the program.

    Attributes
    ----------
    name : str
        What it does, for pictures and errors.
    request : Request
        The call; where its operands live, and in which memory order.
    plan : Plan
        How it is cut.
    binds : mapping
        The tensor that each operand is.
    offset : int
        Where its rings and intermediates start in the program's block.
    slowness : float
        How many times as long it computes as the machine's model says, where its engines take less
        workspace than the fastest.
    part : str
        Part of a network's step: "forward", "backward" or "recomputing"; else empty.
    """

    name: str
    request: Request
    plan: Plan
    binds: Mapping[str, str]
    offset: int = 0
    slowness: float = 1.0
    part: str = ""

    @property
    def is_on_host(self) -> bool:
        """True if the host computes it, on tensors that are there."""
        return self.request.chain.on_host


@dataclass(frozen=True, eq=False)
class Move:
    """A copy of a whole tensor over the link, beside the tasks: an offload, or a fetch.

    Attributes
    ----------
    name : str
    stream : str
        "copy_in" or "copy_out".
    source, target : str
        Tensors of one shape; that on the device lies in the program's block.
    """

    name: str
    stream: str
    source: str
    target: str

    @property
    def ends(self) -> tuple[str, str]:
        """The end on the device, and that on the host."""
        return (self.target, self.source) if self.stream == COPY_IN else (self.source, self.target)


@dataclass(frozen=True, eq=False)
class Synchronisation:
    """A wait: what computes after it waits for every copy issued before."""

    name: str = "synchronisation"


Item = Task | Move | Synchronisation


class Binding(NamedTuple):
    """Binding of a program's tensor: where it lives.

    Attributes
    ----------
    spec : TensorSpec
    offset : int, optional
        Of its first element in the program's block; None for what is handed in.
    of, region : str, region
        Of a view of what is handed in: the tensor whose region it is, with more or fewer axes of
        extent 1.
    after : tuple of str
        Of what lives in the program's pinned block: whose bytes it takes, once they are done with.
    """

    spec: TensorSpec
    offset: int | None = None
    of: str = ""
    region: Region = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Program:
    """The tensors and the ordered items of a run.

    Attributes
    ----------
    name : str
        What errors and progress call it.
    items : tuple of Task, Move and Synchronisation
        In the order in which they are issued. Each starts as soon as what it reads is there and
        what it writes is free.
    bindings : mapping
        Every tensor by name.
    device_bytes : int
        The block: everything that the program holds on the device beside what is handed in.
    between : mapping
        Tensors on the host that nobody hands in: they are made for the run.
    pinned : mapping
        Where those of them that follow each other in one block of pinned memory begin in it.
    pinned_bytes : int
        That block.
    overlap : bool
        Whether the three streams run at once.
    pause : int, optional
        The item before which it pauses: the rest reads what is handed in only then. Nothing else
        may work in the block meanwhile, unless what it holds there is brought to safety.
    """

    name: str
    items: tuple[Item, ...]
    bindings: Mapping[str, Binding]
    device_bytes: int
    between: Mapping[str, TensorSpec] = field(default_factory=lambda: MappingProxyType({}))
    overlap: bool = True
    pinned: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    pinned_bytes: int = 0
    pause: int | None = None

    @property
    def host_bytes(self) -> int:
        """Pinned memory that is made for the run."""
        others = (spec.nbytes for name, spec in self.between.items() if name not in self.pinned)
        return self.pinned_bytes + sum(others)

    @property
    def tasks(self) -> Iterator[Task]:
        """The calls, in order."""
        return (item for item in self.items if isinstance(item, Task))

    @cached_property
    def given(self) -> Mapping[str, TensorSpec]:
        """Tensors that are handed in, with their layout; those made for the run are, too."""
        return {
            name: binding.spec
            for name, binding in self.bindings.items()
            if binding.offset is None and not binding.of
        }

    @cached_property
    def in_threads(self) -> bool:
        """True if threads stage what is copied, if there is more than one piece."""
        return worth_threads(self.given.values(), sum(1 for _ in self.tasks))


def program_of(request: Request, plan: Plan) -> Program:
    """The program of one call: its tensors are its operands, handed in."""
    task = Task(plan.function, request, plan, {name: name for name in request.specs})
    bindings = {name: Binding(spec) for name, spec in request.operands}
    return Program(plan.function, (task,), bindings, plan.device_bytes, overlap=plan.overlap)


def inside(outer: Region, inner: Region, shape: tuple[int, ...]) -> Region:
    """A region of a view of `shape`, as a region of the tensor that the view lies in at `outer`.

    >>> inside(((0, 2), (4, 8), (0, 1)), ((0, 2), (1, 3)), (2, 4))
    ((0, 2), (5, 7), (0, 1))
    """
    longer = iter(part for part, extent in zip(inner, shape, strict=True) if extent != 1)
    region = []
    for start, stop in outer:
        first, last = (0, 1) if stop - start == 1 else next(longer)
        region.append((start + first, start + last))
    return tuple(region)


def byte_range(binding: Binding, region: Region) -> tuple[int, int]:
    """The bytes of the block from the first to the last that a region of a tensor takes."""
    spec, offset = binding.spec, binding.offset or 0
    first = sum(low * stride for (low, _), stride in zip(region, spec.strides, strict=True))
    last = sum((high - 1) * stride for (_, high), stride in zip(region, spec.strides, strict=True))
    return offset + first * spec.itemsize, offset + (last + 1) * spec.itemsize


def chunks(spec: TensorSpec) -> Iterator[Region]:
    """Cut a tensor that is moved into copies of `MOVE_BYTES`, along the axis of longest strides.

    That is its images; of a single one its rows, or its channels. Where these are few, copies are
    larger; and there are no more than `MOST_CHUNKS` of a single image.

    >>> [region[0] for region in chunks(TensorSpec((5, 2**23)))]
    [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
    """
    longer = [axis for axis, extent in enumerate(spec.shape) if extent > 1] or [0]
    axis = 0 if 0 in longer else max(longer, key=lambda each: spec.strides[each])
    extent = spec.shape[axis]
    size = max(MOVE_BYTES * extent // max(spec.nbytes, 1), 1)
    if axis:
        size = max(size, -(-extent // MOST_CHUNKS))
    everything = [(0, each) for each in spec.shape]
    for start in range(0, extent, size):
        part = (start, min(start + size, extent))
        yield (*everything[:axis], part, *everything[axis + 1 :])
