"""The gradient of a convolution's data on the host, by columns that are scattered (Caffe's col2im).

For a box of dx, the windows that reach it: ``columns = w^T . dy`` in one matrix product, then each
tap's row of the columns is added where that tap lies on the box. Boxes share no output, so workers
need no turns; windows at the border of two boxes are computed for both.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from ooc_cudnn import interrupts
from ooc_cudnn.devices.helpers import helpers
from ooc_cudnn.devices.host import convolution as host_convolution
from ooc_cudnn.devices.host.chunks import Array, arithmetic_dtype
from ooc_cudnn.devices.host.stable_matmul import product, spare_elements
from ooc_cudnn.operations.convolution.forward import Convolution
from ooc_cudnn.operations.core.ranges import Range, ranges, valid_positions
from ooc_cudnn.operations.core.row_axis import ROW_AXIS

Box = tuple[Range, ...]


class Scratch(NamedTuple):
    """Sizes of boxes and parts of the workspace, in elements, per worker."""

    workers: int
    box: tuple[int, ...]  #: sites of dx
    gradient: int  #: of y, for the windows that reach a box
    columns: int
    result: int
    spare: int

    @property
    def elements(self) -> int:
        return self.gradient + self.columns + self.result + self.spare


def _scratch(forward: Convolution) -> Scratch | None:
    """Share out the workspace; None where nothing is computed."""
    extents, outputs = forward.x_shape[2:], forward.output_shape[2:]
    if 0 in forward.x_shape or min(outputs) < 1:
        return None
    item = arithmetic_dtype(forward.dtype).itemsize
    depth, per_group = math.prod(forward.w_shape[1:]), forward.w_shape[0] // forward.groups
    workers = host_convolution._workers(forward)
    piece = math.prod(forward.x_shape) + math.prod(forward.output_shape)
    block = min(host_convolution.BLOCK_BYTES, item * piece // workers)
    block = max(block, host_convolution.SMALLEST_BLOCK_BYTES)
    room = max(1, block // (item * (depth + per_group)))  # windows
    box = _box(extents, forward.stride, room, workers)
    windows = math.prod(
        min(output, (size - 1 + (k - 1) * dilation) // stride + 1)
        for output, size, k, dilation, stride in zip(
            outputs, box, forward.w_shape[2:], forward.dilation, forward.stride, strict=True
        )
    )
    return Scratch(
        workers,
        box,
        per_group * windows,
        depth * windows,
        forward.w_shape[1] * math.prod(box),
        spare_elements(depth, per_group, deterministic=forward.deterministic),
    )


def _box(
    extents: tuple[int, ...], strides: tuple[int, ...], room: int, workers: int
) -> tuple[int, ...]:
    """Sites of dx of one box, of about `room` windows: whole strides, and no thin slices.

    A cube has the fewest windows at its border, which are computed twice; rows twice as long run
    faster. What a short axis leaves goes to the others, the innermost first.

    >>> _box((4096, 4096), (1, 1), 800, 1)
    (20, 40)
    >>> _box((2, 4096), (1, 2), 800, 1)
    (2, 684)
    """
    axes = len(extents)
    side = room ** (1 / axes)
    most = [-(-extent // stride) for extent, stride in zip(extents, strides, strict=True)]
    sizes = [min(extent, max(1, int(side + 1e-9))) for extent in most]
    if axes > 1:
        sizes[-1] = min(most[-1], max(1, int(side * 2**0.5)))
        sizes[-2] = min(most[-2], max(1, int(side / 2**0.5)))
    for axis in reversed(range(axes)):
        others = math.prod(sizes) // sizes[axis]
        sizes[axis] = min(most[axis], max(sizes[axis], room // others))
    # As many boxes along the outermost axis that is cut as give each worker the same.
    cut = next((axis for axis in range(axes) if sizes[axis] < most[axis]), None)
    if cut is not None:
        count = -(-most[cut] // sizes[cut])
        count = -(-count // workers) * workers
        sizes[cut] = -(-most[cut] // count)
    return tuple(
        min(extent, size * stride)
        for extent, size, stride in zip(extents, sizes, strides, strict=True)
    )


def workspace_bytes(forward: Convolution) -> int:
    """Scratch bytes: the filter in the arithmetic type, and each worker's blocks."""
    scratch = _scratch(forward)
    if scratch is None:
        return 0
    item = arithmetic_dtype(forward.dtype).itemsize
    return item * (math.prod(forward.w_shape) + scratch.workers * scratch.elements)


def scatter(forward: Convolution, w: Array, dy: Array, dx: Array, workspace: Array) -> None:
    """Write dx; any strides, any of the library's dtypes.

    Parameters
    ----------
    workspace : array of uint8
        At least `workspace_bytes` long.
    """
    scratch = _scratch(forward)
    if scratch is None:
        dx[...] = 0
        return
    memory = workspace[: workspace_bytes(forward)].view(arithmetic_dtype(forward.dtype))
    filters = memory[: w.size].reshape(w.shape)
    np.copyto(filters, w, casting="unsafe")
    shares = memory[w.size :].reshape(scratch.workers, scratch.elements)
    cuts = [ranges(e, size) for e, size in zip(forward.x_shape[2:], scratch.box, strict=True)]
    boxes = list(itertools.product(range(forward.x_shape[0]), itertools.product(*cuts)))

    def work(at: int) -> None:
        mine = boxes[at :: scratch.workers]
        _scatter_boxes(forward, scratch, filters, dy, dx, mine, shares[at])

    helpers.share(work, scratch.workers)


@np.errstate(all="ignore")  # not inherited by other threads
def _scatter_boxes(
    forward: Convolution,
    scratch: Scratch,
    filters: Array,
    dy: Array,
    dx: Array,
    boxes: list[tuple[int, Box]],
    memory: Array,
) -> None:
    """Compute some boxes of dx, one after the other, in scratch memory of their own."""
    groups, c_x = forward.groups, forward.w_shape[1]
    per_group, depth = forward.w_shape[0] // groups, math.prod(forward.w_shape[1:])
    matrix = filters.reshape(groups, per_group, depth)
    borders = np.cumsum([scratch.gradient, scratch.columns, scratch.result])
    gradient, columns, result, spare = np.split(memory, borders)
    for image, box in boxes:
        interrupts.hear()
        windows = tuple(
            forward.window_rows(axis).reaching(range_, forward.output_shape[axis])
            for axis, range_ in enumerate(box, ROW_AXIS)
        )
        sites = tuple(stop - start for start, stop in windows)
        shape = (c_x, *(stop - start for start, stop in box))
        count = math.prod(sites)
        seen = gradient[: per_group * count].reshape(per_group, count)
        rows = columns[: depth * count].reshape(depth, count)
        part = result[: math.prod(shape)].reshape(shape)
        for group in range(groups):
            part[...] = 0
            if count:
                of_y = slice(group * per_group, (group + 1) * per_group)
                inside: tuple[Any, ...] = (image, of_y, *(slice(*range_) for range_ in windows))
                np.copyto(seen.reshape(per_group, *sites), dy[inside], casting="unsafe")
                product(matrix[group].T, seen, rows, spare)
                _add(forward, rows.reshape(c_x, -1, *sites), windows, box, part)
            of_x = slice(group * c_x, (group + 1) * c_x)
            place: tuple[Any, ...] = (image, of_x, *(slice(*range_) for range_ in box))
            np.copyto(dx[place], part, casting="unsafe")


def _add(forward: Convolution, rows: Array, windows: Box, box: Box, part: Array) -> None:
    """Add each tap's row (cX, tap, windows...) to the places of the box that the tap lies on."""
    first = [
        window[0] * stride - before - range_[0]
        for window, stride, (before, _), range_ in zip(
            windows, forward.stride, forward.padding, box, strict=True
        )
    ]
    for number, taps in enumerate(itertools.product(*(range(k) for k in forward.w_shape[2:]))):
        pairs = [
            valid_positions(begin + tap * dilation, stride, extent, count)
            for begin, tap, dilation, stride, extent, count in zip(
                first, taps, forward.dilation, forward.stride, part.shape[1:], rows.shape[2:],
                strict=True,
            )
        ]  # fmt: skip
        sources: tuple[Any, ...] = (slice(None), number, *(pair[0] for pair in pairs))
        targets: tuple[Any, ...] = (slice(None), *(pair[1] for pair in pairs))
        part[targets] += rows[sources]
