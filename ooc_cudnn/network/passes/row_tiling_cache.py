"""Cache input rows of a band on the device, instead of streaming them for each reader.

A rewrite of a step that goes down the rows. A whole tensor may lie on the host; what several phases
of a region read of it would cross the link for each of them. Instead a phase copies it, and they
read the copy, which exists for one band at a time as what is made again does. So does one phase
that takes several channels for each of its results, a convolution: else it would be cut into small
pieces, in order to begin before all of its rows are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeVar

from ooc_cudnn.network.graph.autodiff_emit import identity
from ooc_cudnn.network.ir.step import Phase, Step
from ooc_cudnn.network.ir.tensor import Tensor
from ooc_cudnn.network.passes.row_tiling_regions import TilingRegions
from ooc_cudnn.operations.chain.chain import Chain

#: Makes regions of a step, whose banded tensors may be copies, too.
Cut = Callable[[Step], TilingRegions]


class _Named(Protocol):
    """Rows of a tensor that are to be inserted."""

    @property
    def name(self) -> str:
        """Name of the tensor that holds them."""


R = TypeVar("R", bound=_Named)


class _Copy(NamedTuple):
    """A copy of rows of a tensor that phases of one region read."""

    source: str
    readers: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.source} of {self.readers[0]} remade"


def cache_rows(tiling_regions: TilingRegions, cut: Cut) -> TilingRegions:
    """Rewrite regions so that each reads rows of a whole tensor once."""
    return insert_banded(tiling_regions, tuple(_wanted(tiling_regions)), _insert_copies, cut)


def insert_banded(
    tiling_regions: TilingRegions,
    rows: tuple[R, ...],
    insert: Callable[[Step, tuple[R, ...]], Step],
    cut: Cut,
) -> TilingRegions:
    """Insert rows of tensors, but for those that would not be there for one band at a time."""
    while rows:
        tiling = cut(insert(tiling_regions.step, rows))
        banded = tuple(each for each in rows if each.name in tiling.banded_tensors)
        if banded == rows:
            return tiling
        rows = banded
    return tiling_regions


def copy_rows(phase: Phase, whole: Tensor, source: str, target: str) -> Phase:
    """Return the phase that copies a tensor into rows of it, or back, beside another phase."""
    call = identity(whole)
    bound = {"x": source, "y": target}
    return replace(
        phase, name=f"{whole.name} copy", call=_Rows(call.operations, call.dtype), binds=bound
    )


class _Rows(Chain):
    """A copy, cut along rows alone: such pieces are made where they are to be.

    Others go through a ring, and then wait for what leaves the device.
    """

    def may_cut(self, axis: str) -> bool:
        """Return True of rows alone."""
        return axis == "h_y" and super().may_cut(axis)


def _wanted(tiling_regions: TilingRegions) -> Iterator[_Copy]:
    """Whole tensors, no views, that a region of bands reads and does not write, and is to copy."""
    step = tiling_regions.step
    for start, stop in tiling_regions.intervals:
        part = step.phases[start:stop]
        bases = tiling_regions.bases(n for phase in part for n in phase.binds.values())
        written = tiling_regions.bases(n for phase in part for n in phase.writes)
        if not bases & tiling_regions.banded_tensors:
            continue
        for name in sorted(bases - tiling_regions.banded_tensors - written):
            if not step.tensors[name].is_floating:  # labels
                continue
            readers = tuple(at for at in range(start, stop) if name in step.phases[at].reads)
            if not all(_by_rows(step.phases[at], name) for at in readers):
                continue
            if len(readers) > 1 or any(step.phases[at].call.extents.c_x > 1 for at in readers):
                yield _Copy(name, readers)


def _by_rows(phase: Phase, name: str) -> bool:
    """True if a phase reads a tensor by rows: parameters are read whole."""
    operands = (operand for operand, bound in phase.binds.items() if bound == name)
    return all("h_y" in phase.call.operands[operand].axes for operand in operands)


def _insert_copies(step: Step, copies: tuple[_Copy, ...]) -> Step:
    """The step with these copies, each made just before its first reader."""
    tensors, phases = dict(step.tensors), list[Phase]()
    for copy in copies:
        source = step.tensors[copy.source]
        tensors[copy.name] = source.derived(copy.name, {"copy": "rows"}, kind="map")
    for index, phase in enumerate(step.phases):
        binds = dict(phase.binds)
        for copy in copies:
            if index not in copy.readers:
                continue
            if index == copy.readers[0]:
                whole = step.tensors[copy.source]
                phases.append(copy_rows(phase, whole, copy.source, copy.name))
            binds = {operand: copy.name if n == copy.source else n for operand, n in binds.items()}
        phases.append(replace(phase, binds=binds))
    count = sum(not phase.is_backward for phase in phases)
    return replace(step, tensors=tensors, phases=tuple(phases), forward_count=count)
