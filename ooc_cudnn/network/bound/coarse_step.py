"""The step coarsened for the LP: groups of phases, and tensors or parts of them.

Phases in groups, with what they take; and *things*, the bytes that come and go. A thing is a tensor
that is no view, or a part of one where phases make or read parts of it (concatenations). What is
smaller than `small_bytes` takes no memory and no time here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from ooc_cudnn.network.ir.step import Phase, Step
from ooc_cudnn.network.passes.remat_for_backward import is_repeatable
from ooc_cudnn.operations.core.call import Region
from ooc_cudnn.tensor import ITEM_BYTES

#: A tensor of more parts counts as one, of which readers of a part ask nothing.
MOST_PARTS = 256


class Use(NamedTuple):
    """A phase that touches a thing."""

    phase: int
    reads: bool
    writes: bool


@dataclass
class TensorSummary:
    """Bytes that come and go together.

    Attributes
    ----------
    name : str
        Of the tensor that is no view.
    nbytes : int
    uses : list of Use
        In the order of phases.
    is_given, is_result : bool
        Whether it is on the host from the start, and whether it must be there in the end.
    maker : int, optional
        The forward phase that makes it and may run again.
    shared : float
        Of a step that is one of many alike: the most of it that may be there from the step before.
    """

    name: str
    nbytes: int
    uses: list[Use]
    is_given: bool = False
    is_result: bool = False
    maker: int | None = None
    shared: float = 0.0


class Group(NamedTuple):
    """Phases that follow each other: from `first` on, before `stop`.

    What a phase asks for is made again just before it. From `settled` on none asks for anything
    that another one before it in the group did not.
    """

    first: int
    settled: int
    stop: int


@dataclass(frozen=True)
class CoarseStep:
    """Phases of a step in groups, and the tensors that a decision is about.

    Attributes
    ----------
    seconds : tuple of float
        Of each phase: computing it once.
    groups : tuple of Group
        Phases that follow each other and count as one.
    forward_groups : int
        How many of them are forward.
    things : tuple of TensorSummary
    parents : mapping
        Of each phase that may run again, the things that it reads (by number).
    """

    seconds: tuple[float, ...]
    groups: tuple[Group, ...]
    forward_groups: int
    things: tuple[TensorSummary, ...]
    parents: dict[int, tuple[int, ...]]

    def group_of(self) -> list[int]:
        """The group of each phase."""
        return [at for at, group in enumerate(self.groups) for _ in range(group.first, group.stop)]


def coarsen_step(
    step: Step,
    seconds_of: Callable[[Phase], float],
    *,
    small_bytes: int,
    on_device: frozenset[str] = frozenset(),
    most_groups: int = 10**9,
) -> CoarseStep:
    """Coarsen a step.

    Parameters
    ----------
    small_bytes : int
        Smaller things are left out.
    on_device : frozenset of str
        Tensors that lie on the device in any case.
    most_groups : int
        Of phases of each direction: shorter ones are merged with their neighbours.
    """
    things, of_phase = _tensor_summaries(step, small_bytes, on_device)
    seconds = tuple(seconds_of(phase) for phase in step.phases)
    forward = next(
        (at for at, phase in enumerate(step.phases) if phase.is_backward), len(step.phases)
    )
    parents = {
        at: tuple(of_phase[at])
        for at in {thing.maker for thing in things if thing.maker is not None}
        if at < forward
    }
    for thing in things:
        if thing.maker not in parents:
            thing.maker = None
    groups = _groups(things, seconds, 0, forward, most_groups)
    count = len(groups)
    groups += _groups(things, seconds, forward, len(step.phases), most_groups)
    return CoarseStep(seconds, tuple(groups), count, tuple(things), parents)


def _tensor_summaries(
    step: Step, small_bytes: int, on_device: frozenset[str]
) -> tuple[list[TensorSummary], list[list[int]]]:
    """The things of a step; and for each phase the maps and inputs that it reads, by number."""
    places = {name: step.place(name) for phase in step.phases for name in phase.binds.values()}
    regions: dict[str, set[Region]] = {}
    for base, region in places.values():
        regions.setdefault(base, set()).add(region)
    results, host_inputs = step.results, step.host_inputs
    things, parts = list[TensorSummary](), dict[str, list[tuple[Region, int]]]()
    for base, base_regions in regions.items():
        tensor = step.tensors[base]
        if base in on_device or tensor.nbytes < small_bytes:
            continue
        for region in _parts(base_regions, tensor.shape):
            elements = math.prod(stop - start for start, stop in region)
            nbytes = elements * ITEM_BYTES[tensor.dtype]
            if nbytes < small_bytes:
                continue
            parts.setdefault(base, []).append((region, len(things)))
            things.append(TensorSummary(base, nbytes, [], base in host_inputs, base in results))
    read_by = list[list[int]]()
    for phase_index, phase in enumerate(step.phases):
        reads, writes = set[int](), set[int]()
        for names, touched in ((phase.reads, reads), (phase.writes, writes)):
            for name in names:
                base, region = places[name]
                touched |= {index for part, index in parts.get(base, ()) if _covers(region, part)}
        for index in sorted(reads | writes):
            things[index].uses.append(Use(phase_index, index in reads, index in writes))
        again = not phase.is_backward and is_repeatable(step, phase)
        for index in writes:
            things[index].maker = phase_index if again else None
        read_by.append(
            [i for i in sorted(reads) if step.tensors[things[i].name].kind in ("map", "input")]
        )
    for thing in things:
        if sum(use.writes for use in thing.uses) != 1:
            thing.maker = None
    return things, read_by


def _parts(regions: set[Region], shape: Sequence[int]) -> list[Region]:
    """Parts along one axis, so that every region is made of some; or the whole."""
    whole = tuple((0, extent) for extent in shape)
    cuts = [sorted({edge for region in regions for edge in region[axis]} | {0, extent})
            for axis, extent in enumerate(shape)]  # fmt: skip
    along = [axis for axis, edges in enumerate(cuts) if len(edges) > 2]
    if len(along) != 1 or len(cuts[along[0]]) > MOST_PARTS:
        return [whole]
    axis = along[0]
    return [(*whole[:axis], span, *whole[axis + 1 :]) for span in pairwise(cuts[axis])]


def _covers(region: Region, part: Region) -> bool:
    return all(a[0] <= b[0] and b[1] <= a[1] for a, b in zip(region, part, strict=True))


def _groups(
    things: Sequence[TensorSummary], seconds: Sequence[float], first: int, stop: int, most: int
) -> list[Group]:
    """Group phases: a phase joins the one before it if it asks for no thing that is not there.

    Then, to be `most`, the shortest ones that follow each other.
    """
    asks = [set[int]() for _ in range(stop - first)]
    for index, thing in enumerate(things):
        for use in thing.uses:
            if first <= use.phase < stop:
                asks[use.phase - first].add(index)
    groups, present = list[Group](), set[int]()
    for phase in range(first, stop):
        if groups and asks[phase - first] <= present:
            groups[-1] = groups[-1]._replace(stop=phase + 1)
        else:
            groups.append(Group(phase, phase, phase + 1))
            present = asks[phase - first]
    lasts = [sum(seconds[group.first : group.stop]) for group in groups]
    while len(groups) > most:
        earlier = min(range(len(groups) - 1), key=lambda i: lasts[i] + lasts[i + 1])
        groups[earlier] = groups.pop(earlier + 1)._replace(first=groups[earlier].first)
        lasts[earlier] += lasts.pop(earlier + 1)
    return groups
