"""Blocks of inference: the step that makes a part of an output, of parts of the inputs.

A rewrite of a step. From the output back, each phase makes what its readers need of its result, as
a call for that block (`operations/core/block_calls.py`), so borders are each operation's own:
padding lies at the borders of the whole map alone. Tensors hold what is needed of them, and no
more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from ooc_cudnn.network.ir.step import Phase, Step
from ooc_cudnn.network.ir.tensor import (
    Tensor,
    common,
    extents,
    hull,
    meet,
    relative_region,
    whole_region,
)
from ooc_cudnn.operations.core.block_calls import (
    call_of_tile,
    is_made_in_tiles,
    may_be_tiled,
    whole_tile,
)
from ooc_cudnn.operations.core.call import Region, Tile, TiledCall
from ooc_cudnn.operations.core.operation import Shape
from ooc_cudnn.operations.core.ranges import Range
from ooc_cudnn.operations.core.row_axis import ROW_AXIS
from ooc_cudnn.operations.core.subcall import SubCall
from ooc_cudnn.operations.external.calls import ExternalCall
from ooc_cudnn.operations.external.tiles import Span, WholeImagesError, tile_of_external
from ooc_cudnn.pipeline.program import inside

#: What lives between steps is whole in every block.
LASTING = ("parameter", "running")


class TileStep(NamedTuple):
    """A step for a block, the region of each input that it is given, and that of the output.

    It may make more of that than was asked for: where another phase reads it, too, with a halo.
    """

    step: Step
    inputs: Mapping[str, Region]
    output: Region


def step_of_tile(step: Step, output: str, region: Region) -> TileStep:
    """The step that makes a region of one output: some images, all channels, some sites.

    Raises
    ------
    ValueError
        If a phase needs whole images, and the block has parts of them; it is named.
    """
    return _TileNeeds(step, output, region).made()


class _TileNeeds:
    """The region needed of each tensor that is no view, from the output back."""

    def __init__(self, step: Step, output: str, region: Region) -> None:
        self.step, self.output = step, output
        self.images = region[0]
        self.count = step.tensors[output].shape[0]
        self.cuts_images = region[ROW_AXIS:] != whole_region(step.tensors[output].shape)[ROW_AXIS:]
        self.needed: dict[str, Region] = {output: region}
        self.tensors: dict[str, Tensor] = {}

    def made(self) -> TileStep:
        """Result that each phase makes, from the last phase back; then its tensors and phases."""
        calls: list[tuple[Phase, Region, TiledCall, Mapping[str, Region]]] = []
        for phase in reversed(self.step.phases):
            wanted = self._wanted(phase)
            if wanted is None:
                continue
            call, regions = self._call(phase, wanted)
            calls.append((phase, wanted, call, regions))
            for operand in call.loaded:
                self._need(phase.binds[operand], regions[operand])
        for name, region in self.needed.items():
            self.tensors[name] = replace(self.step.tensors[name], shape=extents(region))
        phases = tuple(
            replace(phase, call=call, binds=dict(self._binds(phase, call, regions)))
            for phase, _, call, regions in reversed(calls)
        )
        step = replace(
            self.step,
            tensors=self.tensors,
            phases=phases,
            outputs=(self.output,),
            forward_count=len(phases),
        )
        inputs = {
            name: region
            for name, region in self.needed.items()
            if self.step.tensors[name].kind == "input"
        }
        return TileStep(step, inputs, self.needed[self.output])

    def _wanted(self, phase: Phase) -> Region | None:
        """The region of its first result that is needed, of all its results together."""
        region: Region | None = None
        for result in phase.call.results:
            name = phase.binds[result]
            base, place = self.step.place(name)
            needed = self.needed.get(base)
            if needed is None or not meet(needed, place):
                continue
            part = _in_view(common(needed, place), place, self.step.tensors[name].shape)
            region = part if region is None else hull(region, part)
        return region

    def _call(self, phase: Phase, wanted: Region) -> tuple[TiledCall, Mapping[str, Region]]:
        call = phase.call
        everything = whole_tile(call)
        shape = call.operands[call.results[0]].shape
        sites = wanted[ROW_AXIS:]
        if self.cuts_images and isinstance(call, ExternalCall):
            return self._outside(phase, call, sites)
        in_blocks = is_made_in_tiles(call) and may_be_tiled(call)
        if not in_blocks or len(sites) != len(everything.sites):
            if sites != whole_region(shape)[ROW_AXIS:]:
                raise _of_whole_images(phase)
            if self.cuts_images and _reads_sites(call):  # every block would read all of them
                raise _of_whole_images(phase)
            return self._of_images(phase)
        sites = tuple(
            _with_input(call.along(axis), rows) for axis, rows in enumerate(sites, ROW_AXIS)
        )
        block = Tile(self._images_of(phase), everything.channels, sites)
        tile_call, regions = call_of_tile(call, block)
        for result in call.results:
            self._need(phase.binds[result], regions[result])
        return tile_call, regions

    def _outside(
        self, phase: Phase, call: ExternalCall, sites: Region
    ) -> tuple[TiledCall, Mapping[str, Region]]:
        """The same for some sites of what somebody else computes."""
        if call.images != self.count:
            raise _of_whole_images(phase)
        cut = tuple(
            Span(*rows, cut=extent > 1)
            for rows, extent in zip(sites, call.y_shape[ROW_AXIS:], strict=True)
        )
        lasting = {name for name in call.loaded if self._is_lasting(phase.binds[name])}
        try:
            return tile_of_external(call, self.images, cut, lasting)
        except WholeImagesError as error:
            raise _of_whole_images(phase) from error

    def _is_lasting(self, name: str) -> bool:
        return self.step.tensors[self.step.base(name)].kind in LASTING

    def _of_images(self, phase: Phase) -> tuple[TiledCall, Mapping[str, Region]]:
        """The same for some images."""
        call, images = phase.call, self._images_of(phase)
        regions = {name: whole_region(operand.shape) for name, operand in call.operands.items()}
        if images == (0, call.extents.n):
            return call, regions
        part = SubCall.of_images(call, images)
        for name in call.streamed:
            regions[name] = (images, *regions[name][1:])
        return part, regions

    def _images_of(self, phase: Phase) -> Range:
        """Images of a call: those of the block, if it has no others."""
        call = phase.call
        count = call.extents.n
        if count == self.count and call.streamed:
            return self.images
        if call.streamed and self.images != (0, self.count):
            raise ValueError(
                f"{phase.name} takes images together, and so cannot be made of some of them"
            )
        return 0, count

    def _need(self, name: str, region: Region) -> None:
        """Add to what is needed of the tensor that another one lies in."""
        base = self.step.base(name)
        if self.step.tensors[base].kind in LASTING:
            region = whole_region(self.step.tensors[base].shape)
        else:
            region = self._in_base(name, region)
        self.needed[base] = hull(self.needed.get(base, region), region)

    def _in_base(self, name: str, region: Region) -> Region:
        tensor = self.step.tensors[name]
        while tensor.of:
            region = inside(tensor.region, region, tensor.shape)
            tensor = self.step.tensors[tensor.of]
        return region

    def _binds(
        self, phase: Phase, call: TiledCall, regions: Mapping[str, Region]
    ) -> Iterator[tuple[str, str]]:
        """Each operand's tensor: what is needed of it, or a view of the part that is touched."""
        for operand, name in phase.binds.items():
            base = self.step.base(name)
            shape = call.operands[operand].shape
            held = self.needed.get(base)
            if held is None:  # a result that nobody reads
                self.tensors[base] = replace(self.step.tensors[base], shape=shape)
                yield operand, base
                continue
            region = self._in_base(name, regions[operand])
            if self.step.tensors[base].kind in LASTING:
                region = self._in_base(name, whole_region(self.step.tensors[name].shape))
            part = relative_region(region, held)
            tensor = self.tensors[base]
            if part == whole_region(tensor.shape) and shape == tensor.shape:
                yield operand, base
                continue
            view = replace(
                tensor, name=f"{name} for {phase.name}, {operand}", shape=shape, of=base,
                region=part,
            )  # fmt: skip
            self.tensors[view.name] = view
            yield operand, view.name


def _with_input(turned: TiledCall, rows: Range) -> Range:
    """The least rows around these for which no operand is without rows."""
    extent = turned.extents.h_y
    while turned.reads_nothing(rows) and rows != (0, extent):
        rows = max(0, rows[0] - 1), min(extent, rows[1] + 1)
    return rows


def _reads_sites(call: TiledCall) -> bool:
    return any(math.prod(call.operands[name].shape[2:]) > 1 for name in call.streamed)


def _of_whole_images(phase: Phase) -> ValueError:
    return ValueError(
        f"{phase.name} needs whole images, and so cannot be made tile by tile: chunk the "
        "inputs along images alone"
    )


def _in_view(region: Region, place: Region, shape: Shape) -> Region:
    """A region of a tensor as one of a view of `shape` that lies in it at `place`."""
    longer = iter(
        (start - first, stop - first)
        for (start, stop), (first, last) in zip(region, place, strict=True)
        if last - first != 1
    )
    return tuple((0, 1) if extent == 1 else next(longer) for extent in shape)
