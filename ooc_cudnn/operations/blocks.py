"""Blocks of a call: images, channels and every spatial axis cut at once; each a call of its own.

A piece is cut along one spatial axis, its plan's rows, and lives inside its call. A block may be
cut along all of them, and what it takes and makes is whole for whoever runs it: another machine.
Which elements of an operand a block touches is what pieces along each axis say (`Splittable`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import singledispatch
from typing import Any, NamedTuple

from ooc_cudnn.operations.backward_data import BackwardData
from ooc_cudnn.operations.backward_filter import BackwardFilter
from ooc_cudnn.operations.backward_pooling import BackwardPooling
from ooc_cudnn.operations.base import Operation, Placed, Shape
from ooc_cudnn.operations.batch_phases import BatchNormalizationData, ChannelMoments, ChannelSums
from ooc_cudnn.operations.broadcast_gradient import BroadcastGradient
from ooc_cudnn.operations.chain import Chain
from ooc_cudnn.operations.channel_argmax import ArgmaxCall
from ooc_cudnn.operations.convolution import Convolution
from ooc_cudnn.operations.flow import needed_rows
from ooc_cudnn.operations.local_response import LocalResponseNormalization
from ooc_cudnn.operations.per_site import (
    ActivationGradient,
    Addition,
    SoftmaxCall,
    SoftmaxGradient,
)
from ooc_cudnn.operations.pooling import Pooling
from ooc_cudnn.operations.rows import ROW_AXIS
from ooc_cudnn.operations.splittable import Region, Splittable
from ooc_cudnn.operations.window import Range, Rows


class Block(NamedTuple):
    """A part of what a call is cut by: the result of forward, dx of gradients, dy of sums.

    `sites` are ranges of its spatial axes.
    """

    images: Range
    channels: Range
    sites: tuple[Range, ...]


class BlockCall(NamedTuple):
    """A call for a block, and the region of the whole call's operands that each of its own is."""

    call: Splittable
    regions: Mapping[str, Region]


def whole_block(call: Splittable) -> Block:
    """The block that is all of a call."""
    shape = cut_shape(call)
    images, channels, *sites = _whole(shape)
    return Block(images, channels, tuple(sites))


def cut_shape(call: Splittable) -> Shape:
    """Shape of what a call is cut by."""
    if isinstance(call, BackwardFilter):
        return call.forward.output_shape
    by = call.results[0]
    if by not in call.streamed:  # sums
        by = call.lead
    return call.operands[by].shape


def channels_may_be_cut(call: Splittable) -> bool:
    """Whether each result channel is made of the same channel of what is streamed, and no other."""
    if isinstance(call, Chain):
        return call.channels_may_be_cut and call.convolution is None
    return isinstance(
        call, BackwardPooling | ActivationGradient | Addition | BatchNormalizationData
    )


def call_of_block(call: Splittable, block: Block) -> BlockCall:
    """The call that makes a block; its results may be larger, where whole windows are looked at.

    What it touches along one axis does not depend on the others.

    Raises
    ------
    TypeError
        If calls of its kind are not made in blocks.
    """
    if block == whole_block(call) and not may_be_cut(call):
        wholes = {name: _whole(operand.shape) for name, operand in call.operands.items()}
        return BlockCall(call, wholes)
    return BlockCall(_made(call, block), _regions(call, block))


def is_made_in_blocks(call: Splittable) -> bool:
    """Whether there are calls for blocks of some sites: not where all are summed over first."""
    return call.sweeps == 1 and _made.dispatch(type(call)) is not _made.dispatch(object)


def may_be_cut(call: Splittable) -> bool:
    """Whether it may be cut at all: not if all it makes is made of padding."""
    axes = range(ROW_AXIS, len(cut_shape(call)))
    return not any(
        reads_nothing(turned, (0, turned.extents.h_y)) for turned in map(call.along, axes)
    )


def legal_cuts(call: Splittable, axis: int, cuts: Iterable[int]) -> tuple[int, ...]:
    """Of places to cut a spatial axis at, those between which every block has something to read.

    An output row may see padding alone, and a row of x may be seen by no window.
    """
    turned, found = call.along(axis), [0]
    extent = turned.extents.h_y
    for cut in sorted(set(cuts)):
        if found[-1] < cut < extent and not reads_nothing(turned, (found[-1], cut)):
            found.append(cut)
    while len(found) > 1 and reads_nothing(turned, (found[-1], extent)):
        found.pop()
    return (*found, extent)


def reads_nothing(turned: Splittable, rows: Range) -> bool:
    """Whether an operand, or an intermediate of a chain, is without rows in such a piece."""
    axis = turned.row_axis
    if isinstance(turned, Chain):
        needed = needed_rows(turned.operations, rows, axis)
        return any(each.start == each.stop for each in needed)
    piece = turned.whole_piece(turned.sweeps - 1)._replace(h_y=rows)
    regions = (turned.region(name, piece) for name in turned.streamed)
    return any(region is not None and region[axis][0] == region[axis][1] for region in regions)


def _whole(shape: Shape) -> Region:
    return tuple((0, extent) for extent in shape)


def _axes(sites: tuple[Range, ...]) -> Iterator[tuple[int, Range]]:
    return enumerate(sites, ROW_AXIS)


def _regions(call: Splittable, block: Block) -> dict[str, Region]:
    """What a block touches of each operand: along each axis what a piece of these rows does."""
    piece = call.whole_piece(call.sweeps - 1)._replace(n=block.images)
    if channels_may_be_cut(call):
        piece = piece._replace(c_y=block.channels)
    found = {name: list(call.region(name, piece) or ()) for name in call.operands}
    for axis, rows in _axes(block.sites):
        turned = call.along(axis)
        piece = turned.whole_piece(turned.sweeps - 1)._replace(h_y=rows)
        for name, region in found.items():
            if len(region) > axis:
                region[axis] = (turned.region(name, piece) or ())[axis]
        if isinstance(turned, BackwardPooling):  # made for all of x that is looked at
            found["dx"][axis] = turned.inputs_of(rows)[0]
    return {name: tuple(region) for name, region in found.items()}


@singledispatch
def _made(call: Splittable, block: Block) -> Splittable:
    raise TypeError(f"{type(call).__name__} is not made in blocks")


@_made.register
def _chain(call: Chain, block: Block) -> Chain:
    cut = channels_may_be_cut(call)
    count, operations = block.images[1] - block.images[0], list[Operation]()
    sites = block.sites
    for operation in reversed(call.operations):
        channels = operation.input_shape[1]
        if cut:
            channels = block.channels[1] - block.channels[0]
        made, sites = _on_sites(operation, count, channels, sites)
        operations.append(made)
    return replace(call, operations=tuple(reversed(operations)))


def _on_sites(
    operation: Operation, count: int, channels: int, sites: tuple[Range, ...]
) -> tuple[Any, tuple[Range, ...]]:
    """An operation that makes these sites of so many images, and the sites that it needs."""
    made: Any = operation
    needed = [operation.input_rows(rows, axis) for axis, rows in _axes(sites)]
    if not sites:
        made = made.on_piece(count, Rows(0, 1, 0, 0), channels, ROW_AXIS)
    for (axis, rows), of_axis in zip(_axes(sites), needed, strict=True):
        if isinstance(operation, Placed):
            made = made.on_rows(count, rows, of_axis, channels, axis)
        else:
            made = made.on_piece(count, of_axis, channels, axis)
    return made, tuple((each.start, each.stop) for each in needed)


@_made.register
def _filter_gradient(call: BackwardFilter, block: Block) -> BackwardFilter:
    forward, _ = _on_sites(call.forward, _count(block), call.forward.x_shape[1], block.sites)
    return replace(call, forward=forward)


@_made.register
def _data_gradient(call: BackwardData, block: Block) -> BackwardData:
    forward: Convolution = call.forward
    extents, padding = [], []
    for axis, rows in _axes(block.sites):
        window = forward.window_rows(axis)
        needed = window.contributing(rows, forward.output_shape[axis])
        extents.append(rows[1] - rows[0])
        padding.append((needed.before, needed.after))
    shape = (_count(block), forward.x_shape[1], *extents)
    made = forward.resized(shape, forward.w_shape, tuple(padding), forward.groups)
    return replace(call, forward=made)


@_made.register
def _pooling_gradient(call: BackwardPooling, block: Block) -> BackwardPooling:
    """That of all windows which see the block: they begin and end inside what x is made of."""
    forward: Pooling = call.forward
    extents, padding = [], []
    for axis, rows in _axes(block.sites):
        (start, stop), (before, after) = call.along(axis).inputs_of(rows)
        extents.append(stop - start)
        padding.append((before, max(0, after)))
    channels = block.channels[1] - block.channels[0]
    shape = (_count(block), channels, *extents)
    return replace(call, forward=replace(forward, x_shape=shape, padding=tuple(padding)))


@_made.register(ActivationGradient)
@_made.register(SoftmaxCall)
@_made.register(SoftmaxGradient)
@_made.register(ChannelMoments)
@_made.register(ChannelSums)
@_made.register(BatchNormalizationData)
def _of_one_shape(call: Any, block: Block) -> Splittable:
    made: Splittable = replace(call, shape=_shape(block))
    return made


@_made.register
def _labels(call: ArgmaxCall, block: Block) -> ArgmaxCall:
    count, _, *sites = _shape(block)
    return replace(call, shape=(count, call.shape[1], *sites))


@_made.register
def _addition(call: Addition, block: Block) -> Addition:
    shape = _shape(block)
    b_shape = tuple(
        1 if own == 1 else extent for own, extent in zip(call.b_shape, shape, strict=True)
    )
    return replace(call, shape=shape, b_shape=b_shape)


@_made.register
def _local_response(call: LocalResponseNormalization, block: Block) -> LocalResponseNormalization:
    return replace(call, forward=replace(call.forward, shape=_shape(block)))


@_made.register
def _bias_gradient(call: BroadcastGradient, block: Block) -> BroadcastGradient:
    return replace(call, shape=_shape(block))


def _count(block: Block) -> int:
    return block.images[1] - block.images[0]


def _shape(block: Block) -> Shape:
    ranges = (block.images, block.channels, *block.sites)
    return tuple(stop - start for start, stop in ranges)
